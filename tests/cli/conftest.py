"""The command line under test, with a cache of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import CommandLine


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capfd)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own, not made yet."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("STARSD_CACHE", str(directory))
    return directory
