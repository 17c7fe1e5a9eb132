"""The prompts of one call: from the command line, a file, or standard input."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from starsd_edge.cli.run_target_options import PromptOptions
from starsd_edge.errors import UsageError

STANDARD_INPUT = Path("-")


def gather_prompts(options: PromptOptions) -> list[str]:
    """All prompts, in the order in which they were given; those of the file last.

    Raises:
        UsageError: there is none, one is empty, or the file cannot be read.
    """
    prompts = list(options.prompt)
    if options.prompts is not None:
        prompts += [line for line in _read_lines(options.prompts) if line.strip()]
        if len(prompts) == len(options.prompt):
            raise UsageError(f"there is no prompt in {_name_of(options.prompts)}: write one per line")
    if not prompts:
        raise UsageError("no prompt: give --prompt TEXT, or --prompts FILE with one per line (- is standard input)")
    if not all(prompt.strip() for prompt in prompts):
        raise UsageError("a prompt is empty: give it some text")
    return prompts


def _read_lines(source: Path) -> list[str]:
    try:
        data = sys.stdin.buffer.read() if source == STANDARD_INPUT else source.read_bytes()
        # Not str.splitlines: it also cuts at form feeds and Unicode's separators, which may stand in a prompt.
        return [line.rstrip("\n") for line in io.StringIO(data.decode("utf-8-sig"), newline=None)]
    except OSError as error:
        raise UsageError(f"cannot read the prompts in {source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{_name_of(source)} is not UTF-8 text (byte {error.start}): convert it") from error


def _name_of(source: Path) -> str:
    return "standard input" if source == STANDARD_INPUT else str(source)
