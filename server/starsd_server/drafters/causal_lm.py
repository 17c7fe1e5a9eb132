"""Drafting with a causal language model of the target's tokenizer, over the Engine contract.

KV row i of a session holds the token at position `first_row` + i: the first token travels in OPEN, every row carries
the next one, so n rows make n + 1 tokens. Draft tokens are committed by one-token passes on top of the true tokens and
stay there. When the true tokens arrive, the longest prefix of draft tokens that equals them is kept, and only the rest
is computed. So a draft is the same as from scratch, and a good drafter hardly ever computes a token twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as ListLike
from contextlib import contextmanager

import numpy as np

from starsd_edge.errors import GpuMemoryError
from starsd_edge.protocol.messages import Hello
from starsd_edge.protocol.rows import NewRows
from starsd_edge.runtime.engine import Engine, Sequence, Step, causal_mask
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_server.drafters.contract import (
    DraftOutcome,
    Failures,
    SessionRefusedError,
    draft_each,
    extend_each,
    no_room,
)
from starsd_server.drafters.dynamic_tree import NextTokens, grow_spine, top_candidates

CAUSAL_LM = "causal-lm"

MAX_BRANCHING = 8
"""Candidates kept below each draft token: the most children of a node in the trees of this drafter."""
_LAZY_ROWS = 8
"""Most true tokens that wait for the next pass instead of getting a pass of their own: a pass takes nearly the same
time with a few tokens more.
"""


class CausalLmDrafter:
    """A drafter with a small causal language model.

    Args:
        engine: the model; used on the drafting thread only.
        tokenizer_fp: fingerprint of its tokenizer, which the target's must equal.
        tokenizer_size: ids that its tokenizer knows; ids above are padding of the output head and are never drafted.
        max_sessions: sessions it holds KV for at once.
        name: what the hub calls it, where it has several of a kind.
    """

    def __init__(
        self, engine: Engine, tokenizer_fp: str, tokenizer_size: int, max_sessions: int, name: str = CAUSAL_LM
    ) -> None:
        self._engine = engine
        self._tokenizer_fp = tokenizer_fp
        self._tokenizer_size = min(tokenizer_size, engine.spec.vocab_size)
        self._max_sessions = max_sessions
        self._name = name
        self._sessions: dict[int, _Session | None] = {}
        """The open sessions. A session is None once its text is longer than the model's context: from then on nothing
        is drafted for it, and no KV kept.
        """
        self._base_lens: dict[int, int] = {}

    @property
    def kind(self) -> str:
        """See `Drafter`."""
        return self._name

    @property
    def fingerprint(self) -> str:
        """See `Drafter`: of the checkpoint."""
        return self._engine.spec.source_fp

    @property
    def feature_codecs(self) -> tuple[str, ...]:
        """See `Drafter`: ids are enough."""
        return ()

    def refuses(self, hello: Hello) -> str | None:
        """See `Drafter`: only the tokenizers must be the same; a padded vocabulary may differ in size."""
        if hello.tokenizer_fp == self._tokenizer_fp:
            return None
        return f"the target's tokenizer {hello.tokenizer_fp} is not the drafter's {self._tokenizer_fp}"

    def warm_up(self) -> None:
        """Run one short pass: the first one allocates."""
        ids = np.zeros(2, dtype=np.int64)
        self._engine.forward(self._engine.open(2), ids, np.arange(2, dtype=np.int64), causal_mask(2), [1])

    def open(self, session: int, first_row: int, t_first: int) -> None:
        """See `Drafter`."""
        if len(self._sessions) >= self._max_sessions:
            raise no_room(self._name, self._max_sessions)
        self._require_known([t_first])
        with self._gpu_memory():
            self._sessions[session] = _Session(self._engine, self._tokenizer_size, t_first)
        self._base_lens[session] = first_row

    def close(self, session: int) -> int:
        """See `Drafter`."""
        state = self._sessions.pop(session, None)
        self._base_lens.pop(session, None)
        return 0 if state is None else state.rows_held

    def extend(self, batch: ListLike[NewRows]) -> Failures:
        """See `Drafter`."""
        return extend_each(batch, self._extend_one)

    def base_len(self, session: int) -> int:
        """See `Drafter`."""
        return self._base_lens[session]

    def draft(self, batch: ListLike[int], shapes: ListLike[DraftShape]) -> ListLike[DraftOutcome]:
        """See `Drafter`. A session longer than the engine's context gets the empty tree."""
        return draft_each(batch, shapes, self._draft_one)

    def _extend_one(self, rows: NewRows) -> None:
        self._require_known(rows.ids)
        state = self._sessions[rows.session]
        if state is not None and state.has_room_for(len(rows.ids)):
            with self._gpu_memory():
                state.extend(rows.ids)
        else:
            self._sessions[rows.session] = None
        self._base_lens[rows.session] += len(rows.ids)

    def _draft_one(self, session: int, shape: DraftShape) -> DraftTree:
        state = self._sessions[session]
        with self._gpu_memory():
            return DraftTree.empty() if state is None else state.draft(shape)

    @contextmanager
    def _gpu_memory(self) -> Iterator[None]:
        """Around what may need memory for KV: where a GPU has none left, the session is refused."""
        try:
            yield
        except GpuMemoryError as error:
            raise SessionRefusedError(
                f"the hub's {self._name} drafter has no GPU memory left for another session's KV: try again later, or "
                "start the hub with a smaller --max-sessions"
            ) from error

    def _require_known(self, ids: ListLike[int]) -> None:
        if len(ids) and not 0 <= min(ids) <= max(ids) < self._engine.spec.vocab_size:
            raise SessionRefusedError(
                f"a token id is outside the {self._name} drafter's vocabulary of {self._engine.spec.vocab_size}: "
                "the target's tokenizer is not the one it claims"
            )


class _Session:
    """One sequence: KV of its true tokens, and of the draft tokens on top of them (`_drafted`).

    Invariants: the sequence's committed rows are the first `_confirmed` true tokens, then `_drafted`. There are draft
    tokens only when every true token has its row. `_next` is empty until the last true token has its row. From then on
    it holds the candidates after that token and after each draft token, and draft token j is the likeliest of
    `_next[j]`.
    """

    def __init__(self, engine: Engine, tokenizer_size: int, t_first: int) -> None:
        self._engine = engine
        self._tokenizer_size = tokenizer_size
        self._seq: Sequence = engine.open(engine.spec.max_context)
        self._true = [t_first]
        self._confirmed = 0
        self._drafted: list[int] = []
        self._next: list[NextTokens] = []

    @property
    def rows_held(self) -> int:
        return self._confirmed + len(self._drafted)

    def has_room_for(self, new: int) -> bool:
        return len(self._true) + new <= self._seq.capacity

    def extend(self, ids: ListLike[int]) -> None:
        """Take in true tokens and compute all but the last few, which go with their successors or with the draft."""
        self._true.extend(ids)
        self._confirm(_agreement(self._drafted, ids), len(ids))
        self._compute_all_but(min(_LAZY_ROWS, self._engine.spec.max_chunk))

    def draft(self, shape: DraftShape) -> DraftTree:
        room = self._seq.capacity - len(self._true) + 1  # tokens of the deepest level need no row of their own
        shape = DraftShape(shape.max_nodes, min(shape.max_depth, room), min(shape.branching, MAX_BRANCHING))
        return grow_spine(shape, self._candidates_after)

    def _confirm(self, right: int, new: int) -> None:
        """Of `new` true tokens the first `right` equal the draft: keep their rows, and later draft tokens if all do."""
        self._confirmed += right
        if right == new:
            self._drafted = self._drafted[right:]
            self._next = self._next[right:]
            return
        self._engine.truncate(self._seq, self._confirmed)
        self._drafted = []
        self._next = []

    def _candidates_after(self, path: ListLike[int]) -> NextTokens:
        """Candidates below the greedy path `path`; computed only if the path is longer than those before it."""
        if not self._next:
            self._next.append(self._compute(self._true[self._confirmed :]))
            self._confirmed = len(self._true)
        if len(path) > len(self._drafted):
            self._next.append(self._compute(path[-1:]))
            self._drafted.append(path[-1])
        return self._next[len(path)]

    def _compute_all_but(self, last: int) -> None:
        """Give the true tokens their rows, in chunks, but not the `last` ones."""
        end = len(self._true) - last
        while self._confirmed < end:
            chunk = self._true[self._confirmed : min(end, self._confirmed + self._engine.spec.max_chunk)]
            self._run(chunk)
            self._confirmed += len(chunk)

    def _compute(self, tokens: ListLike[int]) -> NextTokens:
        logits = self._run(tokens).logits[-1, : self._tokenizer_size]
        return top_candidates(logits, MAX_BRANCHING)

    def _run(self, tokens: ListLike[int]) -> Step:
        """Compute and commit tokens on top of the committed ones."""
        count = len(tokens)
        positions = np.arange(self._seq.length, self._seq.length + count, dtype=np.int64)
        step = self._engine.forward(
            self._seq, np.asarray(tokens, dtype=np.int64), positions, causal_mask(count), [count - 1]
        )
        self._engine.commit(self._seq, range(count))
        return step


def _agreement(drafted: ListLike[int], ids: ListLike[int]) -> int:
    """Length of the common prefix."""
    right = 0
    for draft_token, token in zip(drafted, ids, strict=False):
        if draft_token != token:
            break
        right += 1
    return right
