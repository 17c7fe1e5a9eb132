"""The request that the decode loop takes, and the answer and its pieces that it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starsd_edge.errors import StarsdError, UsageError
from starsd_edge.speculation.sampling import SamplingParams, TokenLogprob
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.rounds import RoundStats
from starsd_edge.text.grammar import Grammar

CANCELLED = "cancelled"
"""`finish_reason` of an answer that the caller ended before a stop rule did."""


class BusyError(StarsdError):
    """As many requests as may be are taken in already.

    Attributes:
        retry_after_s: whole seconds after which there is room again, by what answers took lately.
    """

    def __init__(self, taken: int, retry_after_s: int) -> None:
        super().__init__(f"{taken} requests are answered or wait already: ask again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Request:
    """One answer that is wanted.

    Attributes:
        prompt: token ids, at least one.
        sampling: how to choose tokens.
        max_tokens: most tokens of the answer.
        context: most tokens of prompt and answer together.
        shape: largest draft tree; `branching` 1 verifies chains only.
        stop: strings that end the answer and are not part of it. Like an end of sequence they do not end it before it
            has the `min_tokens` of `sampling`: one completed by an earlier token is text.
        ignore_eos: an end-of-sequence token is a token of the answer like any other, and `min_tokens` does not forbid
            it.
        grammar: what the answer may look like; None for any text.
        logprobs: give the log-probability of every token and of so many of the likeliest; None gives none.
        shown: special tokens whose text is part of the answer's text; that of others is not.

    Raises:
        UsageError: fewer tokens are allowed than are asked for, or an answer with a grammar is not to end with it.
    """

    prompt: Sequence[int]
    sampling: SamplingParams
    max_tokens: int
    context: int
    shape: DraftShape
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    grammar: Grammar | None = None
    logprobs: int | None = None
    shown: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.sampling.min_tokens > self.max_tokens:
            raise UsageError(
                f"at least {self.sampling.min_tokens} and at most {self.max_tokens} tokens: "
                "lower --min-tokens or raise --max-tokens"
            )
        if self.grammar is not None and self.ignore_eos:
            raise UsageError("an answer held to a grammar ends with it: do not ignore the end of sequence")


@dataclass(frozen=True)
class Span:
    """Text that one token made final.

    Attributes:
        text: not empty.
        origin: what drafted the token: `HUB`, `NGRAM`, or `NONE` for one that the target added itself. Text that waited
            for its last bytes, or in a possible stop string, counts to the token that let it go.
    """

    text: str
    origin: str


@dataclass(frozen=True)
class Piece:
    """What one round added to the answer.

    Attributes:
        spans: text that is final now, by where it is from; none while a character or a possible stop string is
            incomplete.
        tokens: ids of the tokens that the round added.
        origins: for each id what drafted it, as in `Span`.
        logprobs: for each id its log-probability, where the request asks for it.
    """

    spans: tuple[Span, ...]
    tokens: tuple[int, ...]
    origins: tuple[str, ...]
    logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def text(self) -> str:
        """All text of the piece: that of its spans, joined."""
        return "".join(span.text for span in self.spans)


@dataclass(frozen=True)
class Answer:
    """A finished answer.

    Attributes:
        token_ids: the answer's tokens, without the end-of-sequence token that ended it, with the one that completed a
            stop string.
        text: their text, without the stop string.
        finish_reason: "stop" (end of sequence or stop string), "length" (max_tokens or the context) or "cancelled".
        prompt_tokens: length of the prompt.
        reused_tokens: tokens of the prompt whose KV an earlier answer had left.
        stats: sums over the rounds.
        prefill_s: from the start to the first token, in seconds.
        decode_s: from the first token to the end, in seconds.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    prompt_tokens: int
    reused_tokens: int
    stats: RoundStats
    prefill_s: float
    decode_s: float


def check_prompt(request: Request) -> None:
    """Raises UsageError unless the prompt has tokens and leaves room for an answer."""
    if not request.prompt:
        raise UsageError("the prompt is empty: give it some text")
    if len(request.prompt) >= request.context:
        raise UsageError(
            f"the prompt has {len(request.prompt)} tokens and the context holds {request.context}: "
            "shorten the prompt or raise --context"
        )


def empty_answer(request: Request, finish_reason: str) -> Answer:
    """The answer of a request that ended before it began."""
    return Answer((), "", finish_reason, len(request.prompt), 0, RoundStats(), 0.0, 0.0)
