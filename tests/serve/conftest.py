"""One target and one server for a whole file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from starsd_edge import open_target
from starsd_jetson import target as target_module
from tests.support.letter_bundle import write_bundle
from tests.support.prefix_engine import PrefixEngine
from tests.support.served import Served, served

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}a"
CONTEXT = 128


@pytest.fixture(scope="module")
def letters_served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The letter bundle, without a hub."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target_module, "open_engine", lambda *arguments, **named: PrefixEngine(1, max_context=CONTEXT))
        with open_target(write_bundle(folder / "bundle", TEMPLATE)) as target, served(target) as server:
            yield server
