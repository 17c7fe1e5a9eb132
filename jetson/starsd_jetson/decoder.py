"""The decode loop: prefill, then rounds of draft, verify, commit, until a stop rule ends the answer.

Plain decoding is this same loop with empty trees. Every token is the target's own choice from its own logits
(`verify`), so the answer does not depend on what the draft source gives; a tree that does not fit is cut to fit.

Lengths: with n committed tokens (`base_len`) and the root t_n, the sequence has n + 1 tokens. A verify pass over a tree
of depth d fills the KV up to n + 1 + d rows and emits at most d + 1 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from starsd_edge.runtime.engine import Engine, Step, causal_mask
from starsd_edge.speculation.sampling import Choice, Sampler, TokenLogprob, token_logprob
from starsd_edge.speculation.stops import Stopper, StopRules
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.speculation.verify import verify
from starsd_edge.telemetry.rounds import GRAMMAR, NONE, Round, RoundStats
from starsd_edge.text.grammar import GrammarConstraint
from starsd_edge.text.stream import TextStream
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.answers import CANCELLED, Answer, Piece, Request, Span, check_prompt
from starsd_jetson.drafting import DraftSource, RoundDraft
from starsd_jetson.kept_sequence import KeptSequence

__all__ = ["Answer", "Piece", "Request", "Span", "decode", "fit", "stream", "whole"]


def decode(
    engine: Engine,
    tokenizer: Tokenizer,
    request: Request,
    source: DraftSource,
    *,
    clock: Callable[[], float],
    kept: KeptSequence | None = None,
    on_piece: Callable[[Piece], None] = lambda piece: None,
    on_round: Callable[[Round], None] = lambda done: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Answer:
    """`stream` as one call, for those who need no pieces or take them as they come.

    Args:
        on_piece: called with every piece; what it raises ends the answer.
    """
    pieces = stream(engine, tokenizer, request, source, clock=clock, kept=kept, on_round=on_round, cancelled=cancelled)
    return whole(pieces, on_piece)


def whole(pieces: Generator[Piece, None, Answer], on_piece: Callable[[Piece], None] = lambda piece: None) -> Answer:
    """Read an answer to its end; what `on_piece` raises ends it."""
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
    kept: KeptSequence | None = None,
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
    check_prompt(request)
    pieces: list[Piece] = []
    answering = _Answering(engine, tokenizer, request, source, clock, kept, pieces.append, on_round)
    prompt = [int(token) for token in request.prompt]
    source.begin(prompt, "greedy" if request.sampling.temperature == 0 else "sampled")
    try:
        answering.prefill(cancelled)
        yield from _drained(pieces)
        while answering.finish_reason is None:
            if cancelled():
                answering.finish_reason = CANCELLED
            else:
                answering.round()
            yield from _drained(pieces)
    finally:
        source.end()
    answer = answering.answer()
    yield from _drained(pieces)
    return answer


def _drained(pieces: list[Piece]) -> list[Piece]:
    taken = pieces[:]
    pieces.clear()
    return taken


def fit(tree: DraftTree, shape: DraftShape, vocab_size: int) -> DraftTree:
    """What of this tree may be verified: within the shape, and only if every id exists."""
    if len(tree) and not 0 <= int(tree.tokens.min()) <= int(tree.tokens.max()) < vocab_size:
        return DraftTree.empty()
    return tree.clip(shape.max_nodes, shape.max_depth, shape.branching)


class _Answering:
    """The state of one answer: what is committed, what is emitted, whether it is over."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        request: Request,
        source: DraftSource,
        clock: Callable[[], float],
        kept: KeptSequence | None,
        on_piece: Callable[[Piece], None],
        on_round: Callable[[Round], None],
    ) -> None:
        self.engine = engine
        self.spec = engine.spec
        self.request = request
        self.source = source
        self.clock = clock
        self.on_piece = on_piece
        self.on_round = on_round
        self.started = self.first_token_at = clock()
        self.shape = request.shape.clamp(self.spec.max_tree - 1, request.shape.max_depth)
        eos_ids = frozenset[int]() if request.ignore_eos else tokenizer.eos_ids
        self.constraint = None if request.grammar is None else tokenizer.constraint(request.grammar)
        self.tokenizer_size = tokenizer.size
        self.sampler = Sampler(request.sampling, tokenizer.size, request.prompt, eos_ids, self.constraint)
        self.stream = TextStream(tokenizer, request.stop, request.sampling.min_tokens, request.shown)
        self.stopper = Stopper(StopRules(eos_ids, request.max_tokens, request.context - len(request.prompt)))
        self.kept = kept
        self.seq = kept.resume(engine, request.prompt, request.context) if kept else engine.open(request.context)
        self.reused = self.seq.length
        self.finish_reason: str | None = None
        self.tokens: list[int] = []
        self.text: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        """Of the tokens chosen and not yet emitted."""
        self.last_origin = NONE
        self.stats = RoundStats()

    def prefill(self, cancelled: Callable[[], bool]) -> None:
        """Commit the prompt chunk by chunk and choose the first token."""
        prompt = np.asarray(self.request.prompt, dtype=np.int64)
        if self.kept and self.reused:
            self._append(prompt[1 : self.reused + 1].tolist(), self.kept.features())
            self.source.extend()
        for start in range(self.reused, len(prompt), self.spec.max_chunk):
            if cancelled():
                self.finish_reason = CANCELLED
                return
            chunk = prompt[start : start + self.spec.max_chunk]
            rows = len(chunk)
            positions = np.arange(start, start + rows, dtype=np.int64)
            step = self.engine.forward(self.seq, chunk, positions, causal_mask(rows), [rows - 1])
            self._commit(chunk.tolist(), range(rows), step)
            following = prompt[start + 1 : start + rows + 1]
            self._append(following.tolist(), step.features[: len(following)])
            self.source.extend()
        first = self._choose(step, 0, len(prompt)).token
        self.first_token_at = self.clock()
        piece = self._emit([first], accepted=0, origin=NONE)
        if self.finish_reason is None:
            self._append([first], step.features[-1:])
            self.source.ask(self._round_shape())
        self._deliver(piece)

    def round(self) -> None:
        """One draft, one verification: emits at least one token."""
        began = self.clock()
        base_len, root = self.seq.length, self.tokens[-1]
        draft = self.source.take()
        if self.constraint is not None:
            draft = _within_grammar(draft, self.constraint)
        tree = fit(draft.tree, self._round_shape(), self.spec.vocab_size)
        before_verify = self.clock()
        step = self.engine.forward(
            self.seq, tree.verify_tokens(root), tree.verify_positions(base_len), tree.verify_mask()
        )
        verify_s = self.clock() - before_verify
        verdict = verify(tree, range(step.rows), base_len, partial(self._choose, step))
        accepted = len(verdict.rows) - 1
        piece = self._emit(verdict.tokens, accepted, draft.origin)
        if self.finish_reason is None:
            # The hub drafts while this side commits and prints.
            self._append(verdict.tokens, step.features[list(verdict.rows)])
            self.source.ask(self._round_shape(ahead=len(verdict.rows)))
            self._commit([root, *verdict.tokens[:accepted]], verdict.rows, step)
        self.source.verified(len(tree) + 1, len(piece.tokens), self.clock() - began - draft.wait_s)
        self._deliver(piece)
        done = _figures(draft, tree, verdict.rows, len(piece.tokens), verify_s, self.clock() - began)
        self.stats.add(done)
        self.on_round(done)

    def answer(self) -> Answer:
        """The answer as it stands, with the text that was held back."""
        rest = self.stream.finish()
        self._deliver(Piece((Span(rest, self.last_origin),) if rest else (), (), ()))
        if self.stream.stopped:  # perhaps only now: the last characters may have waited for their bytes
            self.finish_reason = "stop"
        return Answer(
            token_ids=tuple(self.tokens),
            text="".join(self.text),
            finish_reason=self.finish_reason or CANCELLED,
            prompt_tokens=len(self.request.prompt),
            reused_tokens=self.reused,
            stats=self.stats,
            prefill_s=self.first_token_at - self.started,
            decode_s=self.clock() - self.first_token_at,
        )

    def _round_shape(self, ahead: int = 0) -> DraftShape:
        """The largest tree worth verifying next, `ahead` rows from now: within the KV, and no deeper than the tokens
        that may still be emitted.
        """
        base_len = self.seq.length + ahead
        tokens_left = self.request.max_tokens - len(self.tokens)
        return self.shape.clamp(self.shape.max_nodes, min(self.request.context - base_len - 1, tokens_left - 1))

    def _choose(self, step: Step, row: int, position: int, path: Sequence[int] = ()) -> Choice:
        """The token of a position, and its log-probability where that is asked for."""
        choice = self._chosen(step, row, position, path)
        if self.request.logprobs is not None:
            known = step.logits[row][: self.tokenizer_size]
            self.logprobs.append(token_logprob(known, choice.token, self.request.logprobs))
        return choice

    def _chosen(self, step: Step, row: int, position: int, path: Sequence[int]) -> Choice:
        """The token of a position, from no more of the logits than it takes."""
        if step.top is not None:
            choice = self.sampler.choose_from_two(step.top.ids[row], step.top.logits[row], position)
            if choice is not None:
                return choice
        return self.sampler.choose(step.logits[row], position, path)

    def _append(self, ids: Sequence[int], features: npt.NDArray[np.float16]) -> None:
        self.source.append(ids, features if self.spec.feature_width else None)

    def _commit(self, ids: Sequence[int], rows: Sequence[int], step: Step) -> None:
        self.engine.commit(self.seq, rows)
        if self.kept is not None:
            self.kept.commit(ids, rows, step.features[list(rows)])

    def _emit(self, tokens: Sequence[int], accepted: int, origin: str) -> Piece:
        """Take in chosen tokens one by one until a stop rule ends the answer; what follows is dropped."""
        kept: list[int] = []
        spans: list[Span] = []
        origins = [*(accepted * [origin]), NONE]
        for token, token_origin in zip(tokens, origins, strict=True):
            reason = self.stopper.push(token)
            if reason == "stop":
                self.finish_reason = reason
                break
            kept.append(token)
            self.last_origin = token_origin
            text = self.stream.push(token)
            if text:
                spans.append(Span(text, token_origin))
            if self.stream.stopped or reason is not None:
                self.finish_reason = "stop" if self.stream.stopped else reason
                break
        self.tokens.extend(kept)
        self.sampler.append(kept)
        logprobs, self.logprobs = tuple(self.logprobs[: len(kept)]), []
        return Piece(tuple(spans), tuple(kept), tuple(origins[: len(kept)]), logprobs)

    def _deliver(self, piece: Piece) -> None:
        if piece.text or piece.tokens:
            self.text.append(piece.text)
            self.on_piece(piece)


def _within_grammar(draft: RoundDraft, constraint: GrammarConstraint) -> RoundDraft:
    """The draft without what the grammar forbids, or what the grammar forces where that is longer."""
    tree = constraint.prune(draft.tree)
    forced = constraint.forced()
    if len(forced) > tree.depth:
        return replace(draft, tree=DraftTree.chain(forced), origin=GRAMMAR)
    return replace(draft, tree=tree)


def _figures(
    draft: RoundDraft, tree: DraftTree, rows: Sequence[int], emitted: int, verify_s: float, round_s: float
) -> Round:
    accepted = len(rows) - 1
    has_more = (rows[-1] - 1) in tree.children
    return Round(
        origin=draft.origin if len(tree) else NONE,
        drafted=len(tree),
        accepted=accepted,
        levels_offered=accepted + int(has_more),
        emitted=emitted,
        late=draft.late and len(tree) > 0,
        bytes_up=draft.bytes_up,
        bytes_down=draft.bytes_down,
        round_s=round_s,
        verify_s=verify_s,
        wait_s=draft.wait_s,
        draft_s=draft.service_s,
        why_off=draft.why_off,
    )
