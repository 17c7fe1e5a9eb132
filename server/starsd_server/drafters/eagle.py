"""Drafting with an EAGLE head: it goes on from the target's own features.

Sessions and their memory are in `eagle_session`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from starsd_edge.heads.engine import HeadEngine
from starsd_edge.protocol.features import FLOAT16, INT8
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_server.drafters.contract import SessionRefusedError
from starsd_server.drafters.eagle_session import EagleSession

EAGLE = "eagle"


class EagleDrafter:
    """A head and its sessions.

    Args:
        engine: the head; used on the drafting thread only.
        draft_ids: int64 [draft vocabulary], the target's id of each guess.
        fingerprint: of the head.
        accepts: fingerprints of the features that it goes on from.
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
        self._draft_ids = draft_ids
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
        """Rows that all sessions together hold memory for."""
        return sum(session.capacity for session in self._sessions.values())

    def refuses(self, tokenizer_fp: str, feature_fp: str) -> str | None:
        """See `Drafter`: a head fits the features of one checkpoint."""
        if feature_fp in self._accepts:
            return None
        ours = ", ".join(sorted(accepted[:16] for accepted in self._accepts))
        return (
            f"the target's features {feature_fp[:16]} are not those that the head goes on from ({ours}, which bundles "
            f"made by `{self._target_export}` give)"
        )

    def warm_up(self) -> None:
        """Run one short pass: the first one allocates."""
        session = EagleSession(self._engine, self._draft_ids)
        session.extend(np.zeros(2, dtype=np.int64), np.zeros((2, self._engine.spec.hidden_size), dtype=np.float32))
        session.draft(DraftShape(2, 2, 1))

    def open(self, session: int, first_row: int, t_first: int) -> None:
        """See `Drafter`."""
        if len(self._sessions) >= self._max_sessions:
            raise SessionRefusedError(
                f"the hub's {self._name} drafter holds {self._max_sessions} sessions, its limit: "
                "try again later, or start the hub with a larger --max-sessions"
            )
        self._sessions[session] = EagleSession(self._engine, self._draft_ids)

    def close(self, session: int) -> int:
        """See `Drafter`."""
        state = self._sessions.pop(session, None)
        return 0 if state is None else state.rows

    def extend(self, batch: Sequence[NewRows]) -> None:
        """See `Drafter`."""
        for rows in batch:
            ids = np.asarray(rows.ids, dtype=np.int64)
            self._require_usable(ids, rows.features)
            if len(ids) and rows.features is not None:
                self._sessions[rows.session].extend(ids, rows.features.astype(np.float32))

    def draft(self, batch: Sequence[int], shapes: Sequence[DraftShape]) -> list[DraftTree]:
        """See `Drafter`. Under a root without rows nothing can be guessed."""
        return [self._sessions[session].draft(shape) for session, shape in zip(batch, shapes, strict=True)]

    def _require_usable(self, ids: npt.NDArray[np.int64], features: npt.NDArray[np.float16] | None) -> None:
        spec = self._engine.spec
        if len(ids) and not 0 <= ids.min() <= ids.max() < spec.vocab_size:
            raise SessionRefusedError(
                f"a token id is outside the head's vocabulary of {spec.vocab_size}: "
                "the target's model is not the one it claims"
            )
        if len(ids) and (features is None or features.shape != (len(ids), spec.hidden_size)):
            raise SessionRefusedError(f"the head needs {spec.hidden_size} feature values with every row")
