"""What runs a head: the contract that drafting rests on, whatever library multiplies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from starsd_edge.heads.spec import HeadSpec

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class HeadRows:
    """What goes into one pass: R rows on top of S that have run.

    Attributes:
        ids: int64 [R], the token that follows each feature.
        features: float32 [R, H], true or predicted.
        positions: int64 [R], of the features.
        keys, values: float32 [S, KV heads, D], of the rows before.
        mask: bool [R, S + R]: which rows each row sees; itself always.
        logits_rows: int64 [W], the rows whose logits are wanted.
    """

    ids: npt.NDArray[np.int64]
    features: Floats
    positions: npt.NDArray[np.int64]
    keys: Floats
    values: Floats
    mask: npt.NDArray[np.bool_]
    logits_rows: npt.NDArray[np.int64]


@dataclass(frozen=True)
class HeadStep:
    """What one pass over R rows gave.

    Attributes:
        predicted: float32 [R, H]: the feature after each row.
        keys, values: float32 [R, KV heads, D]: of these rows; keys rotated.
        logits: float32 [W, draft vocabulary]: of the rows that were asked for.
    """

    predicted: Floats
    keys: Floats
    values: Floats
    logits: Floats


class HeadEngine(Protocol):
    """A loaded head; used from one thread at a time."""

    @property
    def spec(self) -> HeadSpec:
        """Its shape."""

    def forward(self, rows: HeadRows) -> HeadStep:
        """Run rows on top of those that have run."""
