"""One answer, pass by pass: chunks of the prompt, then rounds of draft, verify, commit, until a stop rule ends it.

Plain decoding is the same with empty trees. Every token is the target's own choice from its own logits (`verify`), so
the answer does not depend on what the draft source gives; a tree that does not fit is cut to fit. Nor does it depend on
what the engine does between two passes: each pass is committed before the next one, of whichever answer, begins.

Lengths: with n committed tokens (`base_len`) and the root t_n, the sequence has n + 1 tokens. A verify pass over a tree
of depth d fills the KV up to n + 1 + d rows and emits at most d + 1 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from starsd_jetson.answers import CANCELLED, Answer, Piece, Request, Span
from starsd_jetson.drafting import NOW, DraftSource, RoundDraft
from starsd_jetson.kept_sequences import KeptSequence


def fit(tree: DraftTree, shape: DraftShape, vocab_size: int) -> DraftTree:
    """What of this tree may be verified: within the shape, and only if every id exists."""
    if len(tree) and not 0 <= int(tree.tokens.min()) <= int(tree.tokens.max()) < vocab_size:
        return DraftTree.empty()
    return tree.clip(shape.max_nodes, shape.max_depth, shape.branching)


class Answering:
    """The state of one answer: what is committed, what is emitted, whether it is over.

    Args:
        source: where drafts come from; begun here, and ended by `close`.
        kept: the answer's sequence, with the rows that need not run again; at least the prompt's last token is left.
        clock: monotonic seconds, for the figures only.
        began: when the request began, by this clock.
        on_piece: called with every piece of the answer.
        on_round: called after every round with its figures.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        request: Request,
        source: DraftSource,
        kept: KeptSequence,
        clock: Callable[[], float],
        began: float,
        on_piece: Callable[[Piece], None],
        on_round: Callable[[Round], None],
    ) -> None:
        self.request = request
        self.kept = kept
        self.finish_reason: str | None = None
        self._engine = engine
        self._spec = engine.spec
        self._source = source
        self._clock = clock
        self._on_piece = on_piece
        self._on_round = on_round
        self._began = self._first_token_at = began
        self._shape = request.shape.clamp(self._spec.max_tree - 1, request.shape.max_depth)
        eos_ids = frozenset[int]() if request.ignore_eos else tokenizer.eos_ids
        self._prompt = [int(token) for token in request.prompt]
        self._constraint = None if request.grammar is None else tokenizer.constraint(request.grammar)
        self._sampler = Sampler(request.sampling, tokenizer.size, request.prompt, eos_ids, self._constraint)
        self._tokenizer_size = tokenizer.size
        self._stream = TextStream(tokenizer, request.stop, request.sampling.min_tokens, request.shown)
        self._stopper = Stopper(StopRules(eos_ids, request.max_tokens, request.context - len(self._prompt)))
        self._reused = kept.seq.length
        self._tokens: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        """Of the tokens chosen and not yet emitted."""
        self._last_origin = NONE
        self._stats = RoundStats()
        source.begin(self._prompt, "greedy" if request.sampling.temperature == 0 else "sampled")
        if self._reused:
            self._append(self._prompt[1 : self._reused + 1], kept.features())
            source.extend()

    @property
    def is_prefilling(self) -> bool:
        """Whether the first token is still to come."""
        return not self._tokens and self.finish_reason is None

    def ready_at(self) -> float:
        """When the next pass is to run, on the clock of the draft source; not later than now where nothing has to be
        waited for. To be asked again: a draft may come sooner.
        """
        return NOW if self.is_prefilling else self._source.ready_at()

    def step(self, others: int = 0, idle_s: float = 0.0) -> None:
        """Run one pass: a chunk of the prompt, or a round. If that is not ready yet, it is waited for.

        Args:
            others: answers that use the engine while this one waits.
            idle_s: seconds for which the engine has waited for this answer's draft already.
        """
        if self.is_prefilling:
            self._prefill_chunk(others)
        else:
            self._round(others, idle_s)

    def cancel(self) -> None:
        """End the answer with what it has."""
        if self.finish_reason is None:
            self.finish_reason = CANCELLED

    def close(self) -> None:
        """The draft source is free for another answer."""
        self._source.end()

    def _prefill_chunk(self, others: int) -> None:
        """Commit the next chunk of the prompt; after the last one choose the first token."""
        start = self.kept.seq.length
        chunk = np.asarray(self._prompt[start : start + self._spec.max_chunk], dtype=np.int64)
        rows = len(chunk)
        positions = np.arange(start, start + rows, dtype=np.int64)
        step = self._engine.forward(self.kept.seq, chunk, positions, causal_mask(rows), [rows - 1])
        self._commit(chunk.tolist(), range(rows), step)
        following = self._prompt[start + 1 : start + rows + 1]
        self._append(following, step.features[: len(following)])
        self._source.extend()
        if start + rows == len(self._prompt):
            self._first_token(step, others)

    def _first_token(self, step: Step, others: int) -> None:
        first = self._choose(step, 0, len(self._prompt)).token
        self._first_token_at = self._clock()
        piece = self._emit([first], accepted=0, origin=NONE)
        if self.finish_reason is None:
            self._append([first], step.features[-1:])
            self._source.ask(self._round_shape(), others)
        self._deliver(piece)

    def _round(self, others: int, idle_s: float) -> None:
        """One draft, one verification: emits at least one token."""
        began = self._clock() - idle_s
        base_len, root = self.kept.seq.length, self._tokens[-1]
        draft = self._source.take()
        draft = replace(draft, wait_s=draft.wait_s + idle_s)
        if self._constraint is not None:
            draft = _within_grammar(draft, self._constraint)
        tree = fit(draft.tree, self._round_shape(), self._spec.vocab_size)
        before_verify = self._clock()
        step = self._engine.forward(
            self.kept.seq, tree.verify_tokens(root), tree.verify_positions(base_len), tree.verify_mask()
        )
        verify_s = self._clock() - before_verify
        verdict = verify(tree, range(step.rows), base_len, partial(self._choose, step))
        accepted = len(verdict.rows) - 1
        piece = self._emit(verdict.tokens, accepted, draft.origin)
        if self.finish_reason is None:
            # The hub drafts while this side commits and prints.
            self._append(verdict.tokens, step.features[list(verdict.rows)])
            self._source.ask(self._round_shape(ahead=len(verdict.rows)), others)
            self._commit([root, *verdict.tokens[:accepted]], verdict.rows, step)
        self._source.verified(len(tree) + 1, len(piece.tokens), self._clock() - began - draft.wait_s)
        self._deliver(piece)
        done = _figures(draft, tree, verdict.rows, len(piece.tokens), verify_s, self._clock() - began)
        self._stats.add(done)
        self._on_round(done)

    def answer(self) -> Answer:
        """The answer as it stands, with the text that was held back."""
        rest = self._stream.finish()
        self._deliver(Piece((Span(rest, self._last_origin),) if rest else (), (), ()))
        if self._stream.stopped:  # perhaps only now: the last characters may have waited for their bytes
            self.finish_reason = "stop"
        return Answer(
            token_ids=tuple(self._tokens),
            text="".join(self._text),
            finish_reason=self.finish_reason or CANCELLED,
            prompt_tokens=len(self._prompt),
            reused_tokens=self._reused,
            stats=self._stats,
            prefill_s=self._first_token_at - self._began,
            decode_s=self._clock() - self._first_token_at,
        )

    def _round_shape(self, ahead: int = 0) -> DraftShape:
        """The largest tree worth verifying next, `ahead` rows from now: within the KV, and no deeper than the tokens
        that may still be emitted.
        """
        base_len = self.kept.seq.length + ahead
        tokens_left = self.request.max_tokens - len(self._tokens)
        return self._shape.clamp(self._shape.max_nodes, min(self.request.context - base_len - 1, tokens_left - 1))

    def _choose(self, step: Step, row: int, position: int, path: Sequence[int] = ()) -> Choice:
        """The token of a position, and its log-probability where that is asked for."""
        choice = self._chosen(step, row, position, path)
        if self.request.logprobs is not None:
            known = step.logits[row][: self._tokenizer_size]
            self._logprobs.append(token_logprob(known, choice.token, self.request.logprobs))
        return choice

    def _chosen(self, step: Step, row: int, position: int, path: Sequence[int]) -> Choice:
        """The token of a position, from no more of the logits than it takes."""
        if step.top is not None:
            choice = self._sampler.choose_from_two(step.top.ids[row], step.top.logits[row], position)
            if choice is not None:
                return choice
        return self._sampler.choose(step.logits[row], position, path)

    def _append(self, ids: Sequence[int], features: npt.NDArray[np.float16]) -> None:
        self._source.append(ids, features if self._spec.feature_width else None)

    def _commit(self, ids: Sequence[int], rows: Sequence[int], step: Step) -> None:
        self._engine.commit(self.kept.seq, rows)
        self.kept.commit(ids, rows, step.features)

    def _emit(self, tokens: Sequence[int], accepted: int, origin: str) -> Piece:
        """Take in chosen tokens one by one until a stop rule ends the answer; what follows is dropped."""
        kept: list[int] = []
        spans: list[Span] = []
        origins = [*(accepted * [origin]), NONE]
        for token, token_origin in zip(tokens, origins, strict=True):
            reason = self._stopper.push(token)
            if reason == "stop":
                self.finish_reason = reason
                break
            kept.append(token)
            self._last_origin = token_origin
            text = self._stream.push(token)
            if text:
                spans.append(Span(text, token_origin))
            if self._stream.stopped or reason is not None:
                self.finish_reason = "stop" if self._stream.stopped else reason
                break
        self._tokens.extend(kept)
        self._sampler.append(kept)
        logprobs, self._logprobs = tuple(self._logprobs[: len(kept)]), []
        return Piece(tuple(spans), tuple(kept), tuple(origins[: len(kept)]), logprobs)

    def _deliver(self, piece: Piece) -> None:
        if piece.text or piece.tokens:
            self._text.append(piece.text)
            self._on_piece(piece)


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
