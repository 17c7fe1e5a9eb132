"""The fake of `IExecutionContext`: shapes, addresses and profiles in, passes on a stream out."""

from __future__ import annotations

import operator
from typing import Any

from tests.support.fake_engine_state import ContextState, Workspace
from tests.support.fake_memory import ALIGNMENT
from tests.support.fake_pass import Pass
from tests.support.fake_plan import PlanTensor, Shape, bind_dimensions, sized
from tests.support.fake_streams import Stream, Task
from tests.support.fake_trt_types import Dims


class IExecutionContext:
    """What runs an engine. One pass after the other may be queued, on one stream at a time."""

    def __init__(self, state: ContextState) -> None:
        self._state = state
        self._device = state.engine.device

    @property
    def engine(self) -> Any:
        """The engine."""
        return self._state.engine.require_engine()

    @property
    def active_optimization_profile(self) -> int:
        """0 from the beginning."""
        return self._state.profile

    def set_optimization_profile_async(self, profile_index: int, stream_handle: Any) -> bool:
        """Choose a profile; all shapes have to be set again, and the stream waited for, before the next pass."""
        state, number, stream = self._state, operator.index(profile_index), self._stream(stream_handle)
        if not 0 <= number < self.engine.num_optimization_profiles:
            return self._refuse(f"there is no profile {number}")
        if stream.capture is not None:
            stream.capture.spoilt = True
            return self._refuse("a profile cannot be chosen while a stream is being captured")
        if number == state.profile:
            return True
        state.require_idle("another profile was chosen")
        state.profile = number
        state.forget_shapes()
        self._device.scheduler.submit(stream, Task("a change of profile", lambda: None, queued=state.note_switch))
        return True

    def set_input_shape(self, name: str, shape: Any) -> bool:
        """The shape of an input for the passes to come."""
        if not isinstance(shape, tuple | list | Dims):
            raise TypeError("set_input_shape(): incompatible function arguments.")
        sizes = tuple(operator.index(shape[number]) for number in range(len(shape)))
        tensor = self._tensor(name)
        if tensor is None:
            return False
        why = self._misfit(tensor, sizes)
        if why:
            return self._refuse(f"{name} cannot have the shape {sizes}: {why}")
        if self._state.shapes.get(name) != sizes:
            self._state.shapes[name] = sizes
            self._state.note_shapes()
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        """Where an input or output lies for the passes to come."""
        address, tensor = operator.index(memory), self._tensor(name)
        if tensor is None:
            return False
        if address == 0:
            return self._refuse(f"{name} cannot lie at address 0")
        if address % ALIGNMENT:
            return self._refuse(f"{name} lies at {address:#x}, which is not aligned to {ALIGNMENT} bytes")
        if not self._device.memory.is_device_address(address):
            raise self._device.faults.undefined(f"{name} at {address:#x}, which is not the device's")
        if self._state.addresses.get(name) != address:
            self._state.addresses[name] = address
            self._state.version += 1
        return True

    def get_tensor_address(self, name: str) -> int:
        """Where it lies, 0 where that was not said."""
        return 0 if self._tensor(name) is None else self._state.addresses.get(name, 0)

    def get_tensor_shape(self, name: str) -> Dims:
        """Its shape in the passes to come, -1 where that is not known yet."""
        tensor = self._tensor(name)
        if tensor is None:
            return Dims()
        shapes = self._state.shapes
        return Dims(shapes.get(name) or sized(tensor, bind_dimensions(self._state.engine.plan.tensors, shapes)))

    def infer_shapes(self) -> list[str]:
        """The inputs whose shapes are still to be set.

        Raises:
            RuntimeError: the shapes of two inputs do not agree.
        """
        return self._state.unset_shapes()

    def set_device_memory(self, memory: int, size: int) -> None:
        """Where to work, for a context that was created without such memory."""
        address, count = operator.index(memory), operator.index(size)
        needed = self._state.engine.plan.activation_bytes
        found = self._device.memory.span(address, count, "working memory")
        if not self._state.needs_workspace:
            self._refuse("this context has memory of its own")
        elif address % ALIGNMENT or count < needed:
            self._refuse(f"{count} bytes at {address:#x} are no place to work in")
        elif isinstance(found, str) or not self._device.memory.is_device_address(address):
            raise self._device.faults.undefined(f"working at {address:#x}, where the device has not so much memory")
        else:
            self._state.workspace = Workspace(address, needed)
            self._state.version += 1

    def execute_async_v3(self, stream_handle: Any) -> bool:
        """Queue a pass with the shapes and addresses that are set now."""
        self._state.require_context()
        stream = self._stream(stream_handle)
        is_captured = stream.capture is not None
        why = self._state.unready(in_capture=is_captured)
        if why:
            if stream.capture is not None:
                stream.capture.spoilt = True
            return self._refuse(why)
        made = Pass(self._state, is_captured=is_captured)
        made.require_room()
        self._device.scheduler.submit(stream, Task("a pass", made.run, made.require, made.note))
        if not is_captured:
            self._state.flushed = self._state.shape_version
        return True

    def _misfit(self, tensor: PlanTensor, sizes: Shape) -> str:
        """Why a tensor cannot be given a shape; empty if it can."""
        if not tensor.is_input:
            return "it is no input"
        if len(sizes) != len(tensor.shape):
            return f"it has {len(tensor.shape)} dimensions"
        if not tensor.is_dynamic:
            return "" if sizes == tensor.shape else f"it is always {tensor.shape}"
        smallest, _, largest = self._state.engine.plan.profiles[self._state.profile][tensor.name]
        fits = all(low <= size <= high for low, size, high in zip(smallest, sizes, largest, strict=True))
        return "" if fits else f"profile {self._state.profile} takes {smallest} to {largest}"

    def _tensor(self, name: str) -> PlanTensor | None:
        self._state.require_context()
        return self._state.engine.tensor(name)

    def _stream(self, handle: Any) -> Stream:
        number = operator.index(handle)
        stream = self._device.stream(number)
        if number == 0 or stream is None:
            which = "the default stream" if number == 0 else "a stream that is not there"
            raise self._device.faults.undefined(f"TensorRT was given {which}")
        return stream

    def _refuse(self, what: str) -> bool:
        return self._state.engine.refuse(what)


class RtxContext(IExecutionContext):
    """A context of TensorRT-RTX, which compiles kernels while it runs."""

    def is_stream_capturable(self, stream: Any) -> bool:
        """Whether the next pass may be recorded: its shapes are known and a plain one has compiled what it needs."""
        self._stream(stream)
        return self._state.flushed == self._state.shape_version
