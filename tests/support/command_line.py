"""Running `starsd-edge` in this process, and what every refusal must look like."""

from __future__ import annotations

import functools
import pwd
from dataclasses import dataclass
from typing import Any

import pytest
from typer.main import get_command

from starsd_edge.cli import main

_PLACES = ("HOME", "STARSD_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")


_build_app = main.build_app


@functools.cache
def program() -> Any:
    """The application, put together once: that takes longer than most commands."""
    return get_command(_build_app())


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
        with pytest.MonkeyPatch.context() as patch:
            if main.build_app is _build_app:  # a test may have put another in its place
                patch.setattr(main, "build_app", program)
            code = main.run([str(argument) for argument in arguments])
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
