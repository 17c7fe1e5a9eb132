"""The prompts of one call, answered one after the other."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from starsd_edge.cli.run_target.chat_input import INTERRUPTED
from starsd_edge.cli.run_target.options import PromptOptions
from starsd_edge.errors import StarsdError, UsageError

if TYPE_CHECKING:
    from starsd_edge.cli.run_target.output import AnswerOutput
    from starsd_edge.cli.run_target.setup import TargetSetup
    from starsd_jetson.decoder import Answer


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AnswerRun:
    """A run over prompts.

    Attributes:
        interrupted: asked between passes and between answers.
    """

    setup: TargetSetup
    output: AnswerOutput
    interrupted: Callable[[], bool]

    def answer_all(self, prompts: Sequence[str], raw: bool, system: str = "") -> int:
        """Answer what can be answered; the exit code."""
        from starsd_edge.telemetry.summary import Figures, LinkFigures

        code = 0
        total = Figures()
        link_figures = LinkFigures()
        for number, prompt in enumerate(prompts, 1):
            if self.interrupted():
                break
            self.output.begin(number, len(prompts), prompt)
            try:
                answer = self._answer(prompt, raw, system)
            except UsageError as error:
                self.output.failure(number, len(prompts), str(error))
                code = StarsdError.exit_code  # a prompt that is refused is no wrong option
                continue
            link_figures = self.setup.opened.figures
            figures = Figures()
            for sums in (figures, total):
                sums.add(len(answer.token_ids), answer.prefill_s, answer.decode_s, answer.stats)
            log.debug("answer %d of %d: %d rounds", number, len(prompts), answer.stats.rounds)
            self.output.end(number, answer, figures, link_figures)
        self.output.total(total, link_figures)
        return INTERRUPTED if self.interrupted() else code

    def _answer(self, prompt: str, raw: bool, system: str) -> Answer:
        request = replace(self.setup.request, prompt=self.setup.opened.target.encode(prompt, raw, system))
        log.debug("answering a prompt of %d tokens", len(request.prompt))
        return self.setup.answers.answer(request, self.output.piece, self.interrupted)


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
