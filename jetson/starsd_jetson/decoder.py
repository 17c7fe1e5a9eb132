"""Answer one request: as a call (`decode`) or as a generator of pieces (`stream`). The loop is that of `AnswerSet`."""

from __future__ import annotations

from collections.abc import Callable, Generator

from starsd_edge.runtime.engine import Engine
from starsd_edge.telemetry.rounds import Round
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.answer_set import AnswerSet
from starsd_jetson.answers import Answer, Piece, Request, Span
from starsd_jetson.drafting import DraftSource
from starsd_jetson.kept_sequences import KeptSequences

__all__ = ["Answer", "Piece", "Request", "Span", "decode", "stream", "whole"]


def decode(
    engine: Engine,
    tokenizer: Tokenizer,
    request: Request,
    source: DraftSource,
    *,
    clock: Callable[[], float],
    kept: KeptSequences | None = None,
    on_piece: Callable[[Piece], None] = lambda piece: None,
    on_round: Callable[[Round], None] = lambda done: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Answer:
    """`stream` as one call, for those who need no pieces or take them as they come.

    Args:
        on_piece: called with every piece; what it raises ends the answer. The other arguments are those of `stream`.
    """
    pieces = stream(engine, tokenizer, request, source, clock=clock, kept=kept, on_round=on_round, cancelled=cancelled)
    return whole(pieces, on_piece)


def whole(pieces: Generator[Piece, None, Answer], on_piece: Callable[[Piece], None] = lambda piece: None) -> Answer:
    """Read an answer to its end, and give it back; what `on_piece` raises ends it."""
    try:
        while True:
            on_piece(next(pieces))
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    finally:
        pieces.close()


def stream(
    engine: Engine,
    tokenizer: Tokenizer,
    request: Request,
    source: DraftSource,
    *,
    clock: Callable[[], float],
    kept: KeptSequences | None = None,
    on_round: Callable[[Round], None] = lambda done: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Generator[Piece, None, Answer]:
    """Answer one request piece by piece: after the prefill and after every round that added something.

    Args:
        source: where drafts come from; begun and ended here.
        clock: monotonic seconds, for the figures only.
        kept: the KV of earlier answers of this engine; what this prompt begins with is not run again.
        on_round: called after every round with its figures.
        cancelled: asked between passes; True ends the answer with what it has.

    Raises:
        UsageError: the prompt is empty, or leaves no room in the context; a logit bias names no token, or forbids all.
        EngineError: the engine cannot open a sequence of this length.
    """
    sequences = kept or KeptSequences(engine, None, is_keeping=False)
    answers = AnswerSet(engine, tokenizer, lambda: source, sequences, clock, on_round=on_round)
    return (yield from answers.stream(request, cancelled))
