"""How far one pass is from what is expected of it, tensor by tensor and layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from starsd_edge.parity.passes import Rows, Values

Array = npt.NDArray[Any]


TOP = "the two highest logits"
"""Which some engines name by themselves."""


@dataclass(frozen=True)
class TensorDifference:
    """One tensor of one pass.

    Attributes:
        tensor: "logits", "features", "keys", "values" or `TOP`.
        layer: of keys and values.
        relative: root mean square of the difference over that of what was expected; infinite where the shapes differ or
            a value is not finite.
        of_layer: the layer whose rows these are, where they are those of another one.
        shapes: found and expected, where they differ.
    """

    tensor: str
    layer: int | None
    relative: float
    of_layer: int | None = None
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def name(self) -> str:
        """Like "layer 7 keys"."""
        return self.tensor if self.layer is None else f"layer {self.layer} {self.tensor}"


def differences(found: Values, expected: Values, bound: float) -> list[TensorDifference]:
    """In the order of computation, logits and features last; what either side does not show is left out.

    Args:
        bound: largest `TensorDifference.relative` allowed; rows beyond it are looked for in other layers.
    """
    result = list(_layers(found, expected, bound))
    if found.features is not None and expected.features is not None:
        result.append(_difference("features", None, found.features, expected.features))
    if not found.is_top_right:
        result.append(TensorDifference(TOP, None, np.inf))
    return [*result, _difference("logits", None, found.logits, expected.logits)]


def _layers(found: Values, expected: Values, bound: float) -> Iterator[TensorDifference]:
    kinds = (("keys", found.keys, expected.keys), ("values", found.values, expected.values))
    shown = [(name, ours, theirs) for name, ours, theirs in kinds if ours is not None and theirs is not None]
    other_counts = [(name, ours, theirs) for name, ours, theirs in shown if len(ours) != len(theirs)]
    for name, ours, theirs in other_counts:
        yield TensorDifference(f"the layers of {name}", None, np.inf, shapes=((len(ours),), (len(theirs),)))
    for layer in range(len(shown[0][1]) if shown and not other_counts else 0):
        for name, ours, theirs in shown:
            yield _layer(name, layer, ours, theirs, bound)


def _layer(name: str, layer: int, found: Rows, expected: Rows, bound: float) -> TensorDifference:
    difference = _difference(name, layer, found[layer], expected[layer])
    if is_within(difference, bound) or difference.shapes is not None:
        return difference
    others = (other for other in range(len(expected)) if other != layer)
    owner = next((other for other in others if relative(found[layer], expected[other]) <= bound), None)
    return TensorDifference(name, layer, difference.relative, owner)


def _difference(name: str, layer: int | None, found: Array, expected: Array) -> TensorDifference:
    if found.shape != expected.shape:
        return TensorDifference(name, layer, np.inf, shapes=(found.shape, expected.shape))
    return TensorDifference(name, layer, relative(found, expected))


def relative(found: Array, expected: Array) -> float:
    """Root mean square of the difference over that of what was expected; infinite where something is not finite."""
    wanted = expected.astype(np.float64)
    gap, size = found.astype(np.float64) - wanted, float(np.mean(wanted**2))
    error = float(np.mean(gap**2))
    if error == 0:
        return 0.0
    return float(np.sqrt(error / size)) if np.isfinite(error) and size > 0 else float(np.inf)


def is_within(difference: TensorDifference, bound: float) -> bool:
    """Whether it is small enough."""
    return difference.relative <= bound


def largest(found: Sequence[TensorDifference]) -> float:
    """The largest of them."""
    return max((each.relative for each in found), default=0.0)


def describe(found: Sequence[TensorDifference], bound: float) -> str:
    """What differs in one pass, in words: the first place of the computation, and how far that went.

    Args:
        found: of `differences`; at least one is beyond the bound.
    """
    beyond = [each for each in found if not is_within(each, bound)]
    first = beyond[0]
    if first.shapes is not None:
        return f"{first.name} have the shape {list(first.shapes[0])} and not {list(first.shapes[1])}"
    if first.of_layer is not None:
        return f"{first.name} are those of layer {first.of_layer}: the layers are not in their order"
    if first.tensor == TOP:
        return f"{TOP} that it names are not those of its logits"
    others = f"; so do {len(beyond) - 1} of {len(found) - 1} other tensors" if len(beyond) > 1 else ""
    if not np.isfinite(first.relative):
        return f"{first.name} are not all numbers{others.replace('so do', 'so are')}"
    return f"{first.name} differ by {first.relative:.1e}, {bound:.1e} allowed{others}"
