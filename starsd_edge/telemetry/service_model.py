"""S(b, shape) as measured: what one pass of a drafter costs, from how many sessions, levels and nodes it drafts.

    S = fixed + per_session * b + per_level * levels + per_node * nodes

fitted by least squares over the last passes, with no coefficient below zero. For requests of one shape this is the
S(b) = s0 + s1 * b of the batching law. Passes are forgotten slowly, so that the model follows a machine that gets
slower or faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starsd_edge.speculation.tree import DraftShape

_KEEP = 1 - 1 / 128
"""Factor on the weight of the passes so far, at each new one: about the last hundred count."""
_SWEEPS = 4
"""Sweeps of coordinate descent after each pass; they begin at the last coefficients, so a few are enough."""
_DOUBT = 1e-3
"""Strength of the pull towards the present coefficients (a ridge, as a share of the normal equations' diagonal). It
decides only while the passes seen say nothing about a coefficient.
"""
_SURPRISE = 3.0
"""Most that a pass counts for, as a multiple of its expected cost: a pass beyond it was held up by other work on the
machine.
"""
_TRUSTED_AFTER = 8
"""Passes after which the model is trusted enough to cut a pass to `_SURPRISE` times its expected cost."""
_FIRST_COST = (1e-3, 1e-4, 1e-3, 0.0)
"""Coefficients before the first pass, in seconds: per pass, session, level and node. Only their ratios matter then."""


@dataclass(frozen=True)
class PassSize:
    """What one pass of a drafter has to do.

    Attributes:
        batch: number of sessions.
        levels: levels of the deepest tree.
        nodes: nodes of all trees together.
    """

    batch: int
    levels: int
    nodes: int


@dataclass(frozen=True)
class ServiceCost:
    """Coefficients of S(b, shape), in seconds: per pass, session, level and node."""

    fixed_s: float
    per_session_s: float
    per_level_s: float
    per_node_s: float

    def predict(self, size: PassSize) -> float:
        """Expected seconds of a pass of this size."""
        return (
            self.fixed_s
            + self.per_session_s * size.batch
            + self.per_level_s * size.levels
            + self.per_node_s * size.nodes
        )

    def line(self, shape: DraftShape) -> tuple[float, float]:
        """s0 and s1 in seconds: S(b) = s0 + s1 * b where all b sessions ask for this shape."""
        one = size_of([shape])
        return (
            self.fixed_s + self.per_level_s * one.levels,
            self.per_session_s + self.per_node_s * one.nodes,
        )


def size_of(shapes: Sequence[DraftShape]) -> PassSize:
    """Size of the pass that drafts trees of these shapes together."""
    levels = [min(shape.max_depth, shape.max_nodes) for shape in shapes]
    nodes = [deep if shape.branching == 1 else shape.max_nodes for deep, shape in zip(levels, shapes, strict=True)]
    return PassSize(len(shapes), max(levels, default=0), sum(nodes))


class ServiceModel:
    """The cost model of one drafter's passes. One thread observes; others may read `cost` and `row_s`.

    Attributes:
        passes: number of passes taken in.
        cost: the fitted coefficients, replaced as a whole.
        row_s: seconds of one true row where many are fed at once; 0 before any were.
    """

    def __init__(self) -> None:
        self.passes = 0
        self.cost = ServiceCost(*_FIRST_COST)
        self.row_s = 0.0
        self._products = [[0.0] * 4 for _ in range(4)]
        self._moments = [0.0] * 4
        self._fed_rows = 0.0
        self._fed_s = 0.0

    def observe(self, size: PassSize, seconds: float) -> None:
        """Take in a pass of this size that took `seconds`."""
        if self.passes >= _TRUSTED_AFTER:
            seconds = min(seconds, _SURPRISE * self.cost.predict(size))
        self.passes += 1
        if self.passes == 1:
            self._begin_at(seconds / self.cost.predict(size))
        inputs = (1.0, float(size.batch), float(size.levels), float(size.nodes))
        for row, moment_input in enumerate(inputs):
            self._moments[row] = _KEEP * self._moments[row] + moment_input * seconds
            for column, other in enumerate(inputs):
                self._products[row][column] = _KEEP * self._products[row][column] + moment_input * other
        self.cost = ServiceCost(*self._fit())

    def observe_rows(self, rows: int, seconds: float) -> None:
        """Take in the feeding of `rows` true rows of one session, which took `seconds`."""
        self._fed_rows = _KEEP * self._fed_rows + rows
        self._fed_s = _KEEP * self._fed_s + seconds
        self.row_s = self._fed_s / self._fed_rows

    def _begin_at(self, factor: float) -> None:
        """Scale the initial coefficients to the first pass. A quantity that never varies keeps its initial share."""
        fixed_s, per_session_s, per_level_s, per_node_s = (factor * seconds for seconds in _FIRST_COST)
        self.cost = ServiceCost(fixed_s, per_session_s, per_level_s, per_node_s)

    def _fit(self) -> list[float]:
        """Coordinate descent on the normal equations, from the present coefficients, never below zero."""
        cost = self.cost
        start = (cost.fixed_s, cost.per_session_s, cost.per_level_s, cost.per_node_s)
        fit = list(start)
        for _ in range(_SWEEPS):
            for at, products in enumerate(self._products):
                doubt = _DOUBT * products[at]
                rest = (
                    self._moments[at]
                    - sum(product * value for product, value in zip(products, fit, strict=True))
                    + products[at] * fit[at]
                )
                fit[at] = max(0.0, (rest + doubt * start[at]) / (products[at] + doubt)) if products[at] else start[at]
        return fit
