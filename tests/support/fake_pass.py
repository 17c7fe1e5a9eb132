"""One queued pass: the shapes, addresses and program of a moment, run on whatever the memory holds later."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.fake_engine_state import ContextState
from tests.support.fake_memory import Bytes, Span
from tests.support.fake_plan import PlanTensor, bind_dimensions, count_of, sized
from tests.support.fake_programs import Arrays
from tests.support.fake_streams import Stream, Work
from tests.support.fake_trt_types import NUMPY_TYPES, DataType

_LEFT_BEHIND = 0x5A
_LARGEST_BOOL = 1


class Pass:
    """What a context was set to when it was asked for a pass."""

    def __init__(self, context: ContextState, *, is_captured: bool) -> None:
        """Args:
        is_captured: it goes into a graph, which relies on the context staying as it is.
        """
        self._context = context
        self._device = context.engine.device
        self._plan = context.engine.plan
        sizes = bind_dimensions(self._plan.tensors, context.shapes)
        self._shapes = {tensor.name: sized(tensor, sizes) for tensor in self._plan.tensors}
        self._addresses = dict(context.addresses)
        self._workspace = context.workspace
        self._version = context.version if is_captured else None

    def require_room(self) -> None:
        """Whether every tensor fits the memory that it lies in, and none lies across another."""
        spans = {tensor.name: self._span(tensor) for tensor in self._plan.tensors}
        outputs = {tensor.name for tensor in self._plan.tensors if not tensor.is_input}
        aliases = {frozenset(pair) for pair in self._plan.aliases.items()}
        for one, other in combinations(spans, 2):
            may_overlap = frozenset((one, other)) in aliases or not outputs & {one, other}
            if not may_overlap and spans[one].overlaps(spans[other]):
                raise self._device.faults.undefined(f"{one} and {other} overlap")
        place = self._place()
        for name, span in spans.items():
            if place is not None and place.overlaps(span):
                raise self._device.faults.undefined(f"{name} lies in the memory that the pass works in")

    def require(self, stream: Stream) -> None:
        """Whether it may be queued there, by itself or by a graph that holds it."""
        self._context.require_context()
        if self._version is not None and self._version != self._context.version:
            raise self._device.faults.undefined("a graph was launched whose context was changed after the capture")
        self._context.require_alone(stream)
        place = self._place()
        if place is not None:
            self._device.require_free(place, stream)

    def note(self, work: Work) -> None:
        """It was queued, or a graph that holds it was launched."""
        self._context.flight.append(work)
        place = self._place()
        if place is not None:
            self._device.work_at(place, work)

    def run(self) -> None:
        """Read, compute, write."""
        self._context.require_context()
        place = self._place()
        if place is not None:
            self._device.memory.write(place, np.full(place.count, _LEFT_BEHIND, np.uint8))
        inputs = {tensor.name: self._read(tensor) for tensor in self._plan.tensors if tensor.is_input}
        try:
            results = self._context.engine.program(inputs)
        except Exception as error:  # whatever the program's library raises
            raise self._device.faults.undefined(f"a kernel failed: {error}") from error
        for tensor, content in self._checked(results):
            self._device.memory.write(self._span(tensor), content)

    def _read(self, tensor: PlanTensor) -> npt.NDArray[np.generic]:
        content, _ = self._device.memory.read(self._span(tensor), whole=True)
        if tensor.dtype == "BOOL" and content.max(initial=0) > _LARGEST_BOOL:
            raise self._device.faults.undefined(f"{tensor.name} holds other bytes than 0 and 1")
        return content.view(_numpy_type(tensor)).reshape(self._shapes[tensor.name])

    def _checked(self, results: Arrays) -> Iterator[tuple[PlanTensor, Bytes]]:
        """The bytes of every output, if they are what the plan says."""
        for tensor in self._plan.tensors:
            if tensor.is_input:
                continue
            result, expected = results[tensor.name], (_numpy_type(tensor), self._shapes[tensor.name])
            if (result.dtype, result.shape) != expected:
                raise self._device.faults.undefined(
                    f"the plan says that {tensor.name} is {expected}, its program gave {result.dtype} {result.shape}"
                )
            yield tensor, np.ascontiguousarray(result).reshape(-1).view(np.uint8)

    def _span(self, tensor: PlanTensor) -> Span:
        count = count_of(self._shapes[tensor.name]) * _numpy_type(tensor).itemsize
        return self._found(self._addresses[tensor.name], count, tensor.name)

    def _place(self) -> Span | None:
        """The memory that the pass works in, where the context was given it."""
        if self._workspace is None:
            return None
        return self._found(self._workspace.address, self._workspace.size, "working memory")

    def _found(self, address: int, count: int, what: str) -> Span:
        found = self._device.memory.span(address, count, what)
        if isinstance(found, str):
            raise self._device.faults.undefined(found)
        return found


def _numpy_type(tensor: PlanTensor) -> np.dtype[Any]:
    return NUMPY_TYPES[DataType[tensor.dtype]]
