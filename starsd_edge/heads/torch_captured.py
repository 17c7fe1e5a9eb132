"""Passes of a head as captured CUDA graphs.

A pass of few rows is over sooner than its kernels can be launched one by one; a graph launches them all at once. It
does so for one shape and from one place in memory. So shapes are rounded up, what comes in is copied to the place of
its shape's graph, and the spare rows, lines and columns are zero and seen by nobody.

To capture takes longer than several passes kernel by kernel. Where many targets make more shapes than there are graphs,
one makes room for another only when it is out of use and the other one is not: else all would be captured anew all the
time.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

MOST_GRAPHS = 32
"""Kept at once; each holds its inputs."""
STALE_AFTER = 1024
"""Passes after which a graph that was not used may go."""
WANTED_AFTER = 8
"""Passes of a shape, after which such a graph goes for it."""
_MOST_WANTED = 1024
"""Shapes that are counted; beyond that the count begins anew."""
MOST_ROWS = 256
"""Of a pass that is captured: a larger one is bound by its arithmetic."""
_PAST_STEP, _LATE_STEP = 256, 16


class HeadInputs(NamedTuple):
    """`HeadRows` as tensors on one device: the same fields."""

    ids: torch.Tensor
    features: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    places: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    lengths: torch.Tensor
    late_keys: torch.Tensor
    late_values: torch.Tensor
    seen: torch.Tensor
    wanted: torch.Tensor


class HeadOutputs(NamedTuple):
    """`HeadStep` as tensors on one device."""

    predicted: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    tokens: torch.Tensor
    scores: torch.Tensor


Run = Callable[[HeadInputs], HeadOutputs]
Capture = Callable[[Run, HeadInputs], tuple[Callable[[], None], HeadOutputs]]
"""From what is to run and its inputs to a replay of it, and the outputs that a replay writes."""


class PassShape(NamedTuple):
    """Lines, places of a line, true rows and draft tokens of a pass."""

    lines: int
    places: int
    past: int
    late: int

    @classmethod
    def of(cls, inputs: HeadInputs) -> PassShape:
        """Of a pass as it comes."""
        lines, places = inputs.slots.shape
        return cls(lines, places, inputs.keys.shape[2], inputs.late_keys.shape[2])

    def rounded(self) -> PassShape:
        """The shape that it is captured in."""
        return PassShape(
            1 << (self.lines - 1).bit_length(),
            1 << (self.places - 1).bit_length(),
            _up(self.past, _PAST_STEP),
            _up(self.late, _LATE_STEP),
        )


@dataclass
class _Captured:
    inputs: HeadInputs
    outputs: HeadOutputs
    replay: Callable[[], None]
    used_at: int = 0
    """The pass that it was last used for."""


class HeadPasses:
    """Runs passes, those of few rows by replaying them."""

    def __init__(self, run: Run, capture: Capture) -> None:
        self._run = run
        self._capture = capture
        self._graphs: OrderedDict[PassShape, _Captured] = OrderedDict()
        """The one that was not used for longest first."""
        self._wanted: Counter[PassShape] = Counter()
        """How often shapes without a graph came."""
        self._passes = 0

    def __call__(self, inputs: HeadInputs) -> HeadOutputs:
        """What `run` gives for them."""
        shape = PassShape.of(inputs)
        whole = shape.rounded()
        if whole.lines * whole.places > MOST_ROWS:
            return self._run(inputs)
        graph = self._graph(whole, inputs)
        if graph is None:
            return self._run(inputs)
        _fill(graph.inputs, inputs, shape, whole)
        graph.replay()
        rows, wanted = len(inputs.ids), len(inputs.wanted)
        out = graph.outputs
        lines, places = shape.lines, shape.places
        # Copies, because the next replay writes to the same place.
        return HeadOutputs(
            out.predicted[:rows].clone(),
            out.keys[:lines, :, :places].clone(),
            out.values[:lines, :, :places].clone(),
            out.tokens[:wanted].clone(),
            out.scores[:wanted].clone(),
        )

    def _graph(self, whole: PassShape, like: HeadInputs) -> _Captured | None:
        """The graph of a shape; None while there is no room for it."""
        self._passes += 1
        if whole not in self._graphs:
            if not self._has_room_for(whole):
                return None
            inputs = _blank(whole, like)
            replay, outputs = self._capture(self._run, inputs)
            self._graphs[whole] = _Captured(inputs, outputs, replay)
        graph = self._graphs[whole]
        graph.used_at = self._passes
        self._graphs.move_to_end(whole)
        return graph

    def _has_room_for(self, whole: PassShape) -> bool:
        """Whether a graph may be added, perhaps in the place of another."""
        if len(self._graphs) < MOST_GRAPHS:
            return True
        if len(self._wanted) >= _MOST_WANTED:
            self._wanted.clear()
        self._wanted[whole] += 1
        oldest = next(iter(self._graphs))
        is_stale = self._passes - self._graphs[oldest].used_at > STALE_AFTER
        if not is_stale or self._wanted[whole] < WANTED_AFTER:
            return False
        del self._graphs[oldest], self._wanted[whole]
        return True


def capture_cuda(run: Run, inputs: HeadInputs) -> tuple[Callable[[], None], HeadOutputs]:
    """See `Capture`. What libraries set up on first use must have been set up before."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):
            run(inputs)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run(inputs)
    return graph.replay, outputs


def _blank(whole: PassShape, like: HeadInputs) -> HeadInputs:
    rows = whole.lines * whole.places
    shapes = HeadInputs(
        ids=(rows,),
        features=(rows, like.features.shape[1]),
        positions=(rows,),
        slots=(whole.lines, whole.places),
        places=(rows,),
        keys=(whole.lines, like.keys.shape[1], whole.past, like.keys.shape[3]),
        values=(whole.lines, like.keys.shape[1], whole.past, like.keys.shape[3]),
        lengths=(whole.lines,),
        late_keys=(whole.lines, like.keys.shape[1], whole.late, like.keys.shape[3]),
        late_values=(whole.lines, like.keys.shape[1], whole.late, like.keys.shape[3]),
        seen=(whole.lines, whole.places, whole.late + whole.places),
        wanted=(rows,),
    )
    return HeadInputs(*(part.new_zeros(shape) for part, shape in zip(like, shapes, strict=True)))


def _fill(into: HeadInputs, given: HeadInputs, shape: PassShape, whole: PassShape) -> None:
    """Copy a pass to the beginning of each dimension of the larger one."""
    for buffer in into:
        buffer.zero_()  # what is left of another pass may be no number, and zero times that is none either
    for name in ("ids", "features", "positions", "lengths", "wanted"):
        part = getattr(given, name)
        getattr(into, name)[: len(part)] = part
    into.slots[: shape.lines, : shape.places] = given.slots
    line = torch.div(given.places, shape.places, rounding_mode="floor")
    into.places[: len(given.places)] = line * whole.places + given.places % shape.places
    into.keys[: shape.lines, :, : shape.past] = given.keys
    into.values[: shape.lines, :, : shape.past] = given.values
    into.late_keys[: shape.lines, :, : shape.late] = given.late_keys
    into.late_values[: shape.lines, :, : shape.late] = given.late_values
    drafted, own = given.seen[..., : shape.late], given.seen[..., shape.late :]
    into.seen[: shape.lines, : shape.places, : shape.late] = drafted
    into.seen[: shape.lines, : shape.places, whole.late : whole.late + shape.places] = own


def _up(count: int, step: int) -> int:
    return max(1, -(-count // step)) * step
