"""Drafting with an EAGLE head, which predicts from the target's own features.

Sessions share the passes of the head: true rows of several go in at once (`eagle_session`), and so does each level of
their trees (`eagle_draft`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from starsd_edge.heads.engine import HeadEngine
from starsd_edge.protocol.features import FLOAT16, INT8
from starsd_edge.protocol.messages import Hello
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape
from starsd_server.drafters.contract import DraftOutcome, Failures, SessionRefusedError, no_room
from starsd_server.drafters.eagle_draft import TreeDrafter
from starsd_server.drafters.eagle_lines import PastBatch
from starsd_server.drafters.eagle_session import EagleSession, Extender, HeadFeed

EAGLE = "eagle"

FEATURES_OF = {"eagle": "last_hidden", "eagle3": "fused_states"}
"""The kind of features that each kind of head takes, by the kind of head."""


class EagleDrafter:
    """A drafter with one EAGLE head, and its sessions.

    Args:
        engine: the head; used on the drafting thread only.
        draft_ids: int64 [draft vocabulary], the target's id of each token of the head's vocabulary.
        fingerprint: fingerprint of the head.
        accepts: fingerprints of the features that it takes.
        max_sessions: sessions it holds rows for at once.
        name: what the hub calls it, where it has several of a kind.
        target_export: the command that makes a target's bundle with such features, for people.
    """

    def __init__(
        self,
        engine: HeadEngine,
        draft_ids: npt.NDArray[np.int64],
        fingerprint: str,
        accepts: Collection[str],
        max_sessions: int,
        name: str = EAGLE,
        target_export: str = "starsd-edge export",
    ) -> None:
        self._engine = engine
        self._past_batch = PastBatch(engine)
        self._extender = Extender(engine, draft_ids, self._past_batch)
        self._trees = TreeDrafter(engine, draft_ids, self._past_batch)
        self._fingerprint = fingerprint
        self._accepts = frozenset(accepts)
        self._max_sessions = max_sessions
        self._name = name
        self._target_export = target_export
        self._sessions: dict[int, EagleSession] = {}

    @property
    def kind(self) -> str:
        """See `Drafter`."""
        return self._name

    @property
    def fingerprint(self) -> str:
        """See `Drafter`."""
        return self._fingerprint

    @property
    def feature_codecs(self) -> tuple[str, ...]:
        """See `Drafter`."""
        return (FLOAT16, INT8)

    @property
    def rows_in_use(self) -> int:
        """Rows that memory is held for: those of all sessions, and those of the last batch."""
        return sum(session.store.capacity for session in self._sessions.values()) + self._past_batch.rows

    @property
    def bytes_per_row(self) -> int:
        """Bytes of K and V of one true row."""
        return self._engine.spec.kv_row_numbers * self._engine.kv_bytes

    def refuses(self, hello: Hello) -> str | None:
        """See `Drafter`: a head fits the features of one checkpoint."""
        if hello.feature_fp not in self._accepts:
            return (
                f"the target's features {hello.feature_fp} are not those that the head goes on from "
                f"({', '.join(sorted(self._accepts))}, which bundles made by `{self._target_export}` give)"
            )
        spec = self._engine.spec
        kind = FEATURES_OF[spec.kind]
        if (hello.feature_kind, hello.feature_width) != (kind, spec.hidden_size):
            return (
                f"the target sends {hello.feature_width} values of kind {hello.feature_kind!r} with every row, the "
                f"head goes on from {spec.hidden_size} of kind {kind!r}"
            )
        if hello.vocab_size > spec.vocab_size:
            return f"the target's vocabulary of {hello.vocab_size} ids is larger than the head's of {spec.vocab_size}"
        return None

    def warm_up(self) -> None:
        """Run one short pass of each kind: the first ones allocate."""
        session = EagleSession(self._engine)
        ids, features = np.zeros(2, np.int64), np.zeros((2, self._engine.spec.hidden_size), np.float16)
        self._extender.extend([HeadFeed(session, ids, features)])
        self._trees.draft([session], [DraftShape(2, 2, 1)])
        self._past_batch.release()

    def open(self, session: int, first_row: int, t_first: int) -> None:
        """See `Drafter`."""
        if len(self._sessions) >= self._max_sessions:
            raise no_room(self._name, self._max_sessions)
        self._sessions[session] = EagleSession(self._engine, first_row)

    def close(self, session: int) -> int:
        """See `Drafter`."""
        state = self._sessions.pop(session, None)
        if not self._sessions:
            self._past_batch.release()
        return 0 if state is None else state.store.rows

    def extend(self, batch: Sequence[NewRows]) -> Failures:
        """See `Drafter`."""
        failures: dict[int, Exception] = {}
        feeds: dict[int, HeadFeed] = {}
        for rows in batch:
            try:
                feed = self._feed(rows)
            except SessionRefusedError as error:
                failures[rows.session] = error
                continue
            if feed is not None:
                feeds[rows.session] = feed
        self._extender.extend(list(feeds.values()))
        return failures | {session: feed.lost for session, feed in feeds.items() if feed.lost}

    def base_len(self, session: int) -> int:
        """See `Drafter`."""
        state = self._sessions[session]
        return state.first_row + state.store.next_position

    def draft(self, batch: Sequence[int], shapes: Sequence[DraftShape]) -> Sequence[DraftOutcome]:
        """See `Drafter`. A session that has no rows yet gets the empty tree."""
        return self._trees.draft([self._sessions[session] for session in batch], shapes)

    def _feed(self, rows: NewRows) -> HeadFeed | None:
        """The rows, if there are any that the head can take."""
        if not len(rows.ids):
            return None
        spec = self._engine.spec
        if not 0 <= min(rows.ids) <= max(rows.ids) < spec.vocab_size:
            raise SessionRefusedError(
                f"a token id is outside the head's vocabulary of {spec.vocab_size}: "
                "the target's model is not the one it claims"
            )
        if rows.features is None or rows.features.shape != (len(rows.ids), spec.hidden_size):
            raise SessionRefusedError(f"the head needs {spec.hidden_size} feature values with every row")
        return HeadFeed(self._sessions[rows.session], np.asarray(rows.ids, dtype=np.int64), rows.features)
