"""Answers where standard error is a log for programs: what would be told beside them becomes lines of the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starsd_edge.cli.answer_output import AnswerOutput
    from starsd_edge.telemetry.summary import Figures, LinkFigures
    from starsd_jetson.decoder import Answer, Piece

log = logging.getLogger(__name__)


class LoggedOutput:
    """Answers as `answers` writes them on standard output, the rest in the log. Prompts are not named there.

    Args:
        answers: writes nothing of worth on standard error.
    """

    def __init__(self, answers: AnswerOutput) -> None:
        self._answers = answers

    def begin(self, number: int, of: int, prompt: str) -> None:
        """Nothing yet."""

    def piece(self, piece: Piece) -> None:
        """As it comes."""
        self._answers.piece(piece)

    def end(self, number: int, answer: Answer, figures: Figures, link: LinkFigures) -> None:
        """The end of the answer, and a line that says how it went."""
        self._answers.end(number, answer, figures, link)
        seconds = answer.prefill_s + answer.decode_s
        log.info(
            "answer %d: %s after %d tokens in %.2f s", number, answer.finish_reason, len(answer.token_ids), seconds
        )

    def total(self, figures: Figures, link: LinkFigures) -> None:
        """Every answer has its line."""

    def notice(self, line: str) -> None:
        """A line about the link."""
        log.info("%s", line)

    def failure(self, number: int, of: int, message: str) -> None:
        """A prompt that could not be answered."""
        log.error("prompt %d of %d: %s", number, of, message)
