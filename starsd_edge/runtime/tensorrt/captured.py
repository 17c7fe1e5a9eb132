"""Passes of one shape as one launch: a CUDA graph in the place of some hundred launches from the host.

Only passes whose shapes and addresses stay can be recorded: those of the `inplace` strategy, whose caches have a fixed
size. The rule: a shape that passes of one sequence come to for the third time is recorded, up to eight of them. A
recording is used only if its outputs are those of the plain pass, bit for bit, and has a context of its own, which
nothing changes any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from starsd_edge.errors import EngineError
from starsd_edge.runtime.cuda import Device, GpuMemory, Launchable
from starsd_edge.runtime.tensorrt.plan import Plan

Shape = tuple[int, ...]


class Context:
    """One context.

    Args:
        plan: the engine.
        device: the GPU; its stream takes the passes.
        profile: index of the optimisation profile, for good.
        workspace: memory for what lies between the layers. Contexts whose passes follow each other may share it.

    Raises:
        EngineError: the library refuses.
    """

    def __init__(self, plan: Plan, device: Device, profile: int, workspace: GpuMemory) -> None:
        self._plan, self._device = plan, device
        self._workspace = workspace  # the library does not keep it
        kinds = plan.trt.ExecutionContextAllocationStrategy
        self._context = plan.engine.create_execution_context(kinds.USER_MANAGED)
        plan.require(self._context is not None, "make an execution context")
        chosen = self._context.set_optimization_profile_async(profile, device.stream_handle)
        plan.require(chosen, f"use profile {profile}")
        device.synchronize()  # the profile counts from here on
        self._context.set_device_memory(workspace.address, workspace.size)
        self._addresses: dict[str, int] = {}
        self._bound: Mapping[str, int] = {}
        self._shapes: dict[str, Shape] = {}

    def bind(self, addresses: Mapping[str, int]) -> None:
        """Say where tensors lie."""
        if addresses is self._bound:  # as in all passes of one answer
            return
        for name, address in addresses.items():
            if self._addresses.get(name) != address:
                self._plan.require(self._context.set_tensor_address(name, address), f"take the address of {name}")
                self._addresses[name] = address
        self._bound = addresses  # only now: where one is refused, the rest still has to be told

    def shape(self, shapes: Mapping[str, Shape]) -> None:
        """Say how large inputs are whose size a pass chooses."""
        for name, shape in shapes.items():
            if self._shapes.get(name) != shape:
                self._plan.require(self._context.set_input_shape(name, shape), f"take {name} of shape {list(shape)}")
                self._shapes[name] = shape

    def can_be_recorded(self) -> bool:
        """Whether the library says that a pass of these shapes can be recorded; one that says nothing is tried."""
        ask = getattr(self._context, "is_stream_capturable", None)  # TensorRT-RTX, which compiles kernels as it goes
        return ask is None or bool(ask(self._device.stream_handle))

    def enqueue(self) -> None:
        """Run the pass, in the order of the stream."""
        self._plan.require(self._context.execute_async_v3(self._device.stream_handle), "run a pass")


def make_workspace(plan: Plan, device: Device) -> GpuMemory:
    """Memory that any context of this engine can work in."""
    return device.allocate(max(int(plan.engine.device_memory_size_v2), 1), "the engine's own work")


_RECORDED_AT = 3
_MOST = 8
log = logging.getLogger(__name__)

Key = tuple[int, int]
"""Tokens and rows with logits of a pass."""
Outputs = list[npt.NDArray[np.generic]]


@dataclass(frozen=True)
class _Recording:
    """A graph, and the context that it was recorded from; the graph goes first when both are given back."""

    launchable: Launchable
    context: Context


class CapturedPasses:
    """Those over the caches of one sequence."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._seen: dict[Key, int] = {}
        self._recorded: dict[Key, _Recording | None] = {}

    def run(self, key: Key) -> bool:
        """Launch the pass of this shape; whether there is a recording of it."""
        recording = self._recorded.get(key)
        if recording is None:
            return False
        self._device.launch(recording.launchable)
        return True

    def is_due(self, key: Key) -> bool:
        """Count a pass of this shape; whether it shall be recorded."""
        if key in self._recorded or len(self._recorded) == _MOST:
            return False
        self._seen[key] = self._seen.get(key, 0) + 1
        return self._seen[key] == _RECORDED_AT

    def record(self, key: Key, make_context: Callable[[], Context], outputs: Callable[[], Outputs]) -> bool:
        """Run a pass plainly, record it, and run the recording.

        Args:
            make_context: one of its own, with addresses and shapes set.
            outputs: waits for the pass and gives what came of it.

        Returns:
            Whether the recording is good, and what came of it stands. Else the pass is still to be run: no answer ends
            because a recording failed, for want of memory, say.
        """
        try:
            self._recorded[key] = self._compared(make_context(), outputs)
        except EngineError as error:
            log.warning("passes of %d tokens are not recorded: %s", key[0], error)
            self._recorded[key] = None
        return self._recorded[key] is not None

    def _compared(self, context: Context, outputs: Callable[[], Outputs]) -> _Recording:
        context.enqueue()  # the first pass after a change of shapes must not be the recorded one
        plain = outputs()
        recording = self._record(context)
        self._device.launch(recording.launchable)
        if not all(np.array_equal(*pair) for pair in zip(plain, outputs(), strict=True)):
            raise EngineError("the recording gives other numbers")
        return recording

    def _record(self, context: Context) -> _Recording:
        if not context.can_be_recorded():
            raise EngineError("the library says that they cannot be")
        self._device.begin_capture()
        try:
            context.enqueue()
        except BaseException:  # Ctrl-C too: what comes next on the stream would be recorded, and never run
            self._abandon()
            raise
        return _Recording(self._device.end_capture(), context)

    def _abandon(self) -> None:
        try:
            self._device.end_capture()
        except EngineError as error:
            log.debug("the recording ends: %s", error)
