"""The prompts of one call, answered one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from starsd_edge.cli.interrupt import INTERRUPTED
from starsd_edge.errors import StarsdError, UsageError

if TYPE_CHECKING:
    from starsd_edge.cli.answer_output import AnswerOutput
    from starsd_edge.cli.target_setup import TargetSetup
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

    def answer_all(self, prompts: Sequence[str], raw: bool) -> int:
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
                answer = self._answer(prompt, raw)
            except UsageError as error:
                self.output.failure(number, len(prompts), str(error))
                code = StarsdError.exit_code  # a prompt that is refused is no wrong option
                continue
            link_figures = self.setup.link.figures if self.setup.link else link_figures
            figures = Figures()
            for sums in (figures, total):
                sums.add(len(answer.token_ids), answer.prefill_s, answer.decode_s, answer.stats)
            log.debug("answer %d of %d: %d rounds", number, len(prompts), answer.stats.rounds)
            self.output.end(number, answer, figures, link_figures)
        self.output.total(total, link_figures)
        return INTERRUPTED if self.interrupted() else code

    def _answer(self, prompt: str, raw: bool) -> Answer:
        request = replace(self.setup.request, prompt=self.setup.target.encode(prompt, raw))
        log.debug("answering a prompt of %d tokens", len(request.prompt))
        return self.setup.answer(request, self.output.piece, self.interrupted)
