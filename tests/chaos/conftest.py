"""What holds for every test here: no fault of our own."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_fault_of_our_own(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing happens that hub, link or event loop would call an error."""
    yield
    errors = [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert not [record for record in errors if record.name.startswith(("starsd", "asyncio"))]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """An exception that ends a thread of the link is a failure of the test."""
    for item in items:
        if item.path.parent.name == "chaos":
            item.add_marker(pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning"))
