"""How answers leave the program: text as it comes, or one JSON object per answer; figures and notices beside it on
standard error.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, TextIO

from starsd_edge.cli.run_target.options import sampling_record
from starsd_edge.cli.streams import TextStreams, printable
from starsd_edge.telemetry.summary import Figures, LinkFigures

if TYPE_CHECKING:
    from starsd_edge.speculation.sampling import SamplingParams
    from starsd_jetson.decoder import Answer, Piece


class AnswerOutput:
    """Where answers go. A kind of output defines what it writes; the rest writes nothing."""

    def begin(self, number: int, of: int, prompt: str) -> None:
        """An answer begins."""

    def piece(self, piece: Piece) -> None:
        """More of its text."""

    def end(self, number: int, answer: Answer, figures: Figures, link: LinkFigures) -> None:
        """It is over."""

    def total(self, figures: Figures, link: LinkFigures) -> None:
        """All answers are over."""

    def notice(self, line: str) -> None:
        """A line about the link. Called from another thread."""

    def failure(self, number: int, of: int, message: str) -> None:
        """A prompt could not be answered."""


class JsonOutput(AnswerOutput):
    """One JSON object per answer on `out`, nothing else there."""

    record_type: str | None = None
    """What answers are marked with, where other records stand between them."""

    def __init__(self, out: TextIO, err: TextIO, name: str, sampling: SamplingParams) -> None:
        self._out = out
        self._err = err
        self._name = name
        self._sampling = sampling

    def end(self, number: int, answer: Answer, figures: Figures, link: LinkFigures) -> None:
        """Write the object."""
        record = {
            "target": self._name,
            "prompt": number,
            "text": answer.text,
            "token_ids": list(answer.token_ids),
            "finish_reason": answer.finish_reason,
            "prompt_tokens": answer.prompt_tokens,
            "seed": self._sampling.seed,
            "sampling": sampling_record(self._sampling),
            "figures": figures.named(link),
        }
        self._write(record if self.record_type is None else {"type": self.record_type, **record})

    def notice(self, line: str) -> None:
        """To standard error."""
        self._err.write(f"{printable(line)}\n")

    def failure(self, number: int, of: int, message: str) -> None:
        """To standard error."""
        self._err.write(_failure(number, of, message))

    def _write(self, record: dict[str, object]) -> None:
        self._out.write(json.dumps(record) + "\n")
        self._out.flush()


class StreamJsonOutput(JsonOutput):
    """JSON objects on `out`, nothing else there: {"type": "text", "piece": ...} as the text comes, then the answer."""

    record_type = "answer"

    def piece(self, piece: Piece) -> None:
        """Write its text at once."""
        if piece.text:
            self._write({"type": "text", "piece": piece.text})


class TextOutput(AnswerOutput):
    """The text of the answers on `out` as it comes; figures on `err`."""

    def __init__(self, out: TextIO, err: TextIO, seed: int) -> None:
        self._streams = TextStreams(out, err)
        self._seed = seed

    def begin(self, number: int, of: int, prompt: str) -> None:
        """Say which prompt it is, where there are several."""
        if of > 1:
            start = " ".join(printable(prompt).split())
            self._streams.say(f"[{number}/{of}] {start[:70]}{'…' if len(start) > 70 else ''}")

    def piece(self, piece: Piece) -> None:
        """Write its text at once."""
        self._streams.write(piece.text)

    def end(self, number: int, answer: Answer, figures: Figures, link: LinkFigures) -> None:
        """End the line, then the figures."""
        self._streams.end_line()
        self._streams.table([("finish_reason", answer.finish_reason), *figures.lines(link), ("seed", str(self._seed))])

    def total(self, figures: Figures, link: LinkFigures) -> None:
        """The sums, where there is more than one answer."""
        if figures.answers > 1:
            self._streams.say(f"{figures.answers} answers together")
            self._streams.table(figures.lines(link))

    def notice(self, line: str) -> None:
        """On a line of its own, also in the middle of an answer."""
        self._streams.say(printable(line))

    def failure(self, number: int, of: int, message: str) -> None:
        """On a line of its own."""
        self._streams.say(_failure(number, of, message).rstrip("\n"))


def _failure(number: int, of: int, message: str) -> str:
    where = f"prompt {number} of {of}: " if of > 1 else ""
    return f"error: {where}{printable(' '.join(message.split()))}\n"


log = logging.getLogger(__name__)


class LoggedOutput(AnswerOutput):
    """Answers as `answers` writes them on standard output, the rest in the log. Prompts are not named there.

    Args:
        answers: writes nothing of worth on standard error.
    """

    def __init__(self, answers: AnswerOutput) -> None:
        self._answers = answers

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

    def notice(self, line: str) -> None:
        """A line about the link."""
        log.info("%s", line)

    def failure(self, number: int, of: int, message: str) -> None:
        """A prompt that could not be answered."""
        log.error("prompt %d of %d: %s", number, of, message)
