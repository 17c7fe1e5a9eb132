"""An execution context in one profile: addresses told once, shapes told when they change, and the pass itself."""

from __future__ import annotations

from collections.abc import Mapping

from starsd_jetson.tensorrt.device import Device, Memory
from starsd_jetson.tensorrt.plan import Plan

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

    def __init__(self, plan: Plan, device: Device, profile: int, workspace: Memory) -> None:
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
        self._bound = addresses
        for name, address in addresses.items():
            if self._addresses.get(name) != address:
                self._plan.require(self._context.set_tensor_address(name, address), f"take the address of {name}")
                self._addresses[name] = address

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


def make_workspace(plan: Plan, device: Device) -> Memory:
    """Memory that any context of this engine can work in."""
    return device.allocate(max(int(plan.engine.device_memory_size_v2), 1), "the engine's own work")
