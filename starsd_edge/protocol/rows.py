"""Rows of a session: the true tokens (and features) that a target sends to the hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class NewRows:
    """True tokens that a session gained, in order, without gaps.

    Attributes:
        session: key of the session, unique while the hub lives.
        first_row: index of the first of these rows; equals the rows that the receiver already has.
        ids: row i carries the token at position i + 1.
        features: float16 [len(ids), F] for drafters that want them, else None.
    """

    session: int
    first_row: int
    ids: Sequence[int]
    features: npt.NDArray[np.float16] | None = None
