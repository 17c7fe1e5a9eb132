"""A strict fake of TensorRT's runtime classes: handed to starsd-edge in the place of the module.

It refuses what TensorRT refuses, by the same `False` or `None` and a line in the log, and raises where TensorRT would
go on and compute rubbish. Nothing here keeps its owner alive, as the bindings may or may not do: whoever loses a
logger, a runtime or an engine that is still needed is told.
"""

from __future__ import annotations

import operator
import weakref
from types import ModuleType
from typing import Any

from tests.support.fake_context import IExecutionContext, RtxContext
from tests.support.fake_device import FakeDevice
from tests.support.fake_engine_state import ContextState, EngineState
from tests.support.fake_plan import Plan, decode_plan, sized
from tests.support.fake_programs import open_program
from tests.support.fake_trt_types import (
    NUMPY_TYPES,
    DataType,
    Dims,
    ExecutionContextAllocationStrategy,
    ILogger,
    Logger,
    TensorIOMode,
    TensorLocation,
)

_ALIASES_SINCE = (10, 15)


class ICudaEngine:
    """An engine, as far as every version from 10.3 on has it."""

    _context_class = IExecutionContext

    def __init__(self, state: EngineState) -> None:
        self._state = state

    @property
    def num_io_tensors(self) -> int:
        """Inputs and outputs."""
        return len(self._plan.tensors)

    @property
    def num_optimization_profiles(self) -> int:
        """At least 1."""
        return max(1, len(self._plan.profiles))

    @property
    def device_memory_size_v2(self) -> int:
        """Bytes that a context works in."""
        return self._plan.activation_bytes

    def get_tensor_name(self, index: int) -> str | None:
        """Of an input or output by its number."""
        number = operator.index(index)
        if 0 <= number < len(self._plan.tensors):
            return self._plan.tensors[number].name
        self._state.refuse(f"there is no tensor {number}")
        return None

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        """Whether it goes in or comes out."""
        tensor = self._state.tensor(name)
        if tensor is None:
            return TensorIOMode.NONE
        return TensorIOMode.INPUT if tensor.is_input else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        """What it holds."""
        tensor = self._state.tensor(name)
        return DataType.FLOAT if tensor is None else DataType[tensor.dtype]

    def get_tensor_shape(self, name: str) -> Dims:
        """Its shape, -1 where a pass chooses."""
        tensor = self._state.tensor(name)
        return Dims() if tensor is None else Dims(sized(tensor, {}))

    def get_tensor_location(self, name: str) -> TensorLocation:
        """Where it has to be."""
        self._state.tensor(name)
        return TensorLocation.DEVICE

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Dims]:
        """Smallest, usual and largest shape of an input."""
        tensor, number = self._state.tensor(name), operator.index(profile_index)
        if tensor is None or not tensor.is_input or not 0 <= number < self.num_optimization_profiles:
            self._state.refuse(f"no shapes of {name} in profile {number}")
            return []
        if not tensor.is_dynamic:
            return [Dims(sized(tensor, {}))] * 3
        return [Dims(shape) for shape in self._plan.profiles[number][name]]

    def create_execution_context(
        self, strategy: ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy.STATIC
    ) -> IExecutionContext | None:
        """What runs the engine; None where there is no memory for it."""
        if not isinstance(strategy, ExecutionContextAllocationStrategy):
            raise TypeError("create_execution_context(): incompatible function arguments.")
        is_users = strategy is ExecutionContextAllocationStrategy.USER_MANAGED
        needed = 0 if is_users else self._plan.activation_bytes
        if not self._state.device.memory.reserve(needed):
            self._state.refuse(f"no memory for a context of {needed} bytes")
            return None
        state = ContextState(self._state, needs_workspace=is_users)
        context = self._context_class(state)
        state.context = weakref.ref(context)
        weakref.finalize(context, self._state.device.memory.release, needed)
        return context

    @property
    def _plan(self) -> Plan:
        self._state.require_logger()
        return self._state.plan


class AliasingEngine(ICudaEngine):
    """An engine of 10.15 and newer."""

    def get_aliased_input_tensor(self, name: str) -> str | None:
        """The input that an output lies at, if any."""
        self._state.tensor(name)
        return self._plan.aliases.get(name)


class RtxEngine(AliasingEngine):
    """An engine of TensorRT-RTX."""

    _context_class = RtxContext


class Runtime:
    """What opens plans. `fake_tensorrt` makes one of these for its device and version."""

    fake_device: FakeDevice
    fake_library: str
    fake_version: str

    def __init__(self, logger: ILogger) -> None:
        if not isinstance(logger, ILogger):
            raise TypeError("__init__(): incompatible constructor arguments.")
        if not hasattr(logger, "was_initialised"):
            raise TypeError("ILogger.__init__() must be called when overriding __init__")
        self._logger = weakref.ref(logger)

    @property
    def logger(self) -> ILogger:
        """Given when the runtime was made; it has to be there still."""
        logger = self._logger()
        if logger is None:
            raise self.fake_device.faults.undefined("a runtime was used whose logger is gone")
        return logger

    def deserialize_cuda_engine(self, serialized_engine: Any) -> ICudaEngine | None:
        """The engine in a plan, None where it does not fit this library or this device."""
        if not self.fake_device.traits.has_driver:
            raise self.fake_device.faults.undefined("a runtime was used without a driver: the process ends here")
        content = bytes(memoryview(serialized_engine))
        try:
            plan = self._fitting(content)
            program = open_program(plan.program)
        except (ValueError, KeyError) as error:
            self._refuse(f"Error Code 1: Serialization ({error})")
            return None
        if not self.fake_device.memory.reserve(plan.weight_bytes):
            self._refuse(f"Error Code 2: OutOfMemory ({plan.weight_bytes} bytes of weights)")
            return None
        state = EngineState(self.fake_device, plan, program, weakref.ref(self))
        engine = _engine_class(self.fake_library, self.fake_version)(state)
        state.engine = weakref.ref(engine)
        weakref.finalize(engine, self.fake_device.memory.release, plan.weight_bytes)
        return engine

    def _fitting(self, content: bytes) -> Plan:
        plan = decode_plan(content)
        here = (self.fake_library, self.fake_version, self.fake_device.name)
        for built, found in zip((plan.library, plan.version, plan.compute_capability), here, strict=True):
            if built != found:
                raise ValueError(f"the plan was built for {built}, and this is {found}")
        if plan.aliases and not _has_aliases(self.fake_library, self.fake_version):
            raise ValueError("a layer of the plan is not known to this version")
        return plan

    def _refuse(self, what: str) -> None:
        self.logger.log(ILogger.ERROR, what)
        self.fake_device.faults.note(what)


def fake_tensorrt(device: FakeDevice, version: str = "10.16.2.10", library: str = "tensorrt") -> Any:
    """The module, in one version and on one device.

    Args:
        version: all four parts; up to 10.14 there are no aliases.
        library: "tensorrt" or "tensorrt_rtx".
    """
    module = ModuleType(library)
    kind = _engine_class(library, version)
    bound = {"fake_device": device, "fake_version": version, "fake_library": library}
    names: dict[str, object] = {
        "__version__": version,
        "Runtime": type("Runtime", (Runtime,), bound),
        "ICudaEngine": kind,
        "IExecutionContext": kind._context_class,
        "nptype": NUMPY_TYPES.__getitem__,
    }
    shared = (DataType, TensorIOMode, TensorLocation, ExecutionContextAllocationStrategy, Dims, ILogger, Logger)
    names.update((thing.__name__, thing) for thing in shared)
    for name, thing in names.items():
        setattr(module, name, thing)
    return module


def _engine_class(library: str, version: str) -> type[ICudaEngine]:
    if library == "tensorrt_rtx":
        return RtxEngine
    return AliasingEngine if _has_aliases(library, version) else ICudaEngine


def _has_aliases(library: str, version: str) -> bool:
    # TensorRT-RTX counts from 1; 1.4, the oldest that starsd-edge takes, has them.
    return library == "tensorrt_rtx" or tuple(map(int, version.split(".")[:2])) >= _ALIASES_SINCE
