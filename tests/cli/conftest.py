"""The command line under test."""

from __future__ import annotations

import pytest

from tests.support.command_line import CommandLine


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capfd)
