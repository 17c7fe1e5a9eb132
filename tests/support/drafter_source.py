"""A hub's drafter asked without a hub: where a test is about drafts and not about the way they come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.rounds import HUB
from starsd_jetson.drafting import NOW, RoundDraft
from starsd_server.drafters.contract import Drafter, draft_one, extend_one


class DrafterDrafts:
    """A draft source on a drafter."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._session = 0

    def begin(self, prompt: Sequence[int], sampling_kind: str) -> None:
        self._session += 1
        self._drafter.open(self._session, 0, prompt[0])
        self._rows = 0
        self._fresh: list[int] = []
        self._features: list[npt.NDArray[np.float16]] = []

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        self._fresh.extend(ids)
        if features is not None and self._drafter.feature_codecs:
            self._features.append(features.copy())

    def extend(self) -> None:
        features = np.concatenate(self._features) if self._features else None
        extend_one(self._drafter, NewRows(self._session, self._rows, self._fresh, features))
        self._rows += len(self._fresh)
        self._fresh, self._features = [], []

    def ask(self, shape: DraftShape, others: int = 0) -> None:
        self._shape = shape

    def ready_at(self) -> float:
        return NOW

    def take(self) -> RoundDraft:
        self.extend()
        return RoundDraft(draft_one(self._drafter, self._session, self._shape), HUB)

    def verified(self, rows: int, tokens: int, seconds: float) -> None:
        pass

    def end(self) -> None:
        self._drafter.close(self._session)
