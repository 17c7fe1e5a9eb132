"""Running `starsd-edge` in this process, and what every refusal must look like."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from starsd_edge.cli.main import run


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


class CommandLine:
    """Runs commands and captures what they print."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: object) -> Ended:
        self._capture.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = self._capture.readouterr()
        return Ended(code, captured.out, captured.err)

    def refused(self, *arguments: object) -> str:
        """The one line with which a command refuses; anything else is a failure of the test."""
        ended = self(*arguments)
        assert ended.code != 0, ended
        assert ended.out == "", ended
        lines = ended.err.splitlines()
        assert len(lines) == 1, ended
        assert lines[0].startswith("error: "), ended
        return lines[0]
