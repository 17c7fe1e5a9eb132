"""The `starsd-edge` command lines that stand in files of the repository, and reading one with the real command line
without running it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from starsd_edge.cli import config, options
from starsd_edge.cli.commands import Settings
from starsd_edge.cli.main import PROGRAM
from tests.support.command_line import program

_ENDS = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "2>", "<"})


@dataclass(frozen=True)
class WrittenCommand:
    """A command line and where it stands.

    Attributes:
        is_mention: it stands in a sentence, where a command may be named without what it is given.
    """

    where: str
    arguments: tuple[str, ...]
    is_mention: bool

    def __str__(self) -> str:
        return f"{self.where}: {' '.join(self.arguments)}"


class _ReadError(BaseException):
    def __init__(self, read: object) -> None:
        self.read = read


# Read before it is replaced for a moment: a module that is first imported meanwhile would keep the replacement.
_assemble = config.assemble


def read_command(arguments: Sequence[str]) -> Any:
    """The options as the command would get them, with what `--config` and the environment say; nothing is run.

    Raises:
        UsageError, typer.TyperException: as for a user.
    """

    def stop(kind: type[Any], values: Any) -> Any:
        with patch.object(options, "assemble", _assemble):
            raise _ReadError(_assemble(kind, values))

    with patch.object(options, "assemble", stop):
        try:
            program()(list(arguments), prog_name=PROGRAM, standalone_mode=False, obj=Settings())
        except _ReadError as stopped:
            return stopped.read
    return None


def commands_in(file: Path) -> list[WrittenCommand]:
    """Those of a file, by its kind."""
    text = file.read_text(encoding="utf-8")
    found = _in_markdown if file.suffix == ".md" else _in_container_file if "Dockerfile" in file.name else _in_lines
    return [WrittenCommand(file.name, arguments, is_mention) for arguments, is_mention in found(text) if arguments]


def after_program(words: Sequence[str]) -> tuple[str, ...]:
    """What follows the program, or a container image of it, up to the end of that command."""
    for place, word in enumerate(words):
        is_image = word.startswith(f"{PROGRAM}:") and "run" in words[:place]
        if word == PROGRAM or word.endswith(f"/bin/{PROGRAM}") or is_image:
            rest = words[place + 1 :]
            end = next((at for at, each in enumerate(rest) if each in _ENDS), len(rest))
            return tuple(each for each in rest[:end] if each not in ("--help", "..."))
    return ()


def _in_markdown(text: str) -> Iterator[tuple[tuple[str, ...], bool]]:
    blocks = re.findall(r"^```([a-z]*)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    for block in (block for language, block in blocks if language != "text"):  # which is what programs print
        for line in block.replace("\\\n", " ").splitlines():
            if PROGRAM in line and not line.startswith("["):
                yield after_program(shlex.split(line, comments=True)), False
    prose = re.sub(r"^```[a-z]*\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`]+)`", prose):
        words = code.split()
        if words[:1] == [PROGRAM] and len(words) > 1 and not words[1].startswith("--"):
            yield after_program(shlex.split(code)), True


def _in_container_file(text: str) -> Iterator[tuple[tuple[str, ...], bool]]:
    start = json.loads(re.findall(r"^ENTRYPOINT (\[.*\])", text, flags=re.MULTILINE)[-1])
    usual = json.loads(re.findall(r"^CMD (\[.*\])", text, flags=re.MULTILINE)[-1])
    yield after_program([*start, *usual]), False


def _in_lines(text: str) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Units, scripts, configuration: a command ends with its line, or with what quotes it. Words of a sentence that
    follow the program's name are none.
    """
    for line in text.replace("\\\n", " ").splitlines():
        for before, said in re.findall(r"(^|  |[`\"'/(])starsd-edge ([a-z-][^`\"')]*)", line):
            yield after_program([PROGRAM, *said.split()]), before in ("`", "(")
