"""Running `starsd-edge` in this process, and what every refusal must look like."""

from __future__ import annotations

import pwd
from dataclasses import dataclass

import pytest

from starsd_edge.cli.main import run

_PLACES = ("HOME", "STARSD_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")


def without_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user whom the system does not know: no variable, and no entry among the users."""
    for name in _PLACES:
        monkeypatch.delenv(name, raising=False)

    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown)


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
