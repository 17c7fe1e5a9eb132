"""`run-target` on the numpy engine, with the letter bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from starsd_jetson import target as target_module
from tests.support.command_line import CommandLine, Ended
from tests.support.letter_bundle import write_bundle
from tests.support.prefix_engine import UnhurriedEngine


class LetterTarget:
    """`starsd-edge [GLOBAL OPTIONS] run-target BUNDLE ...`"""

    def __init__(self, cli: CommandLine, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.cli = cli
        self.bundle = write_bundle(folder / "bundle")
        engine = UnhurriedEngine(1, max_context=128)
        monkeypatch.setattr(target_module, "open_engine", lambda *arguments, **named: engine)

    def __call__(self, *arguments: object, before: tuple[object, ...] = ()) -> Ended:
        return self.cli(*before, "run-target", self.bundle, *arguments)

    def record(self, *arguments: object, before: tuple[object, ...] = ()) -> dict[str, Any]:
        """The one answer, as JSON."""
        ended = self(*arguments, "--json", before=before)
        assert ended.code == 0, ended
        answer: dict[str, Any] = json.loads(ended.out)
        return answer
