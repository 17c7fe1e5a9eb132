"""A small correct program against the fakes, in steps that a test can leave out or do wrongly."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tests.support.fake_cudart import FakeCudart
from tests.support.fake_device import DeviceTraits, FakeDevice
from tests.support.fake_plan import Plan, PlanTensor, encode_plan
from tests.support.fake_tensorrt import fake_tensorrt

VERSION = "10.16.2.10"
WORKSPACE_BYTES = 512
ROWS, WIDTH = 8, 4
"""Of the cache that the program "scatter" writes into."""

TWICE = Plan(
    library="tensorrt",
    version=VERSION,
    compute_capability="sm87",
    program="numpy:twice",
    tensors=[PlanTensor("x", True, "HALF", ("n",)), PlanTensor("y", False, "HALF", ("n",))],
    profiles=[{"x": ((1,), (4,), (8,))}, {"x": ((9,), (9,), (300,))}],
    activation_bytes=WORKSPACE_BYTES,
)
"""y = 2 x; the second profile is for long ones."""
SCATTER = Plan(
    library="tensorrt",
    version=VERSION,
    compute_capability="sm87",
    program="numpy:scatter",
    tensors=[
        PlanTensor("past", True, "HALF", (ROWS, WIDTH)),
        PlanTensor("rows", True, "HALF", ("t", WIDTH)),
        PlanTensor("shown", True, "BOOL", ("t",)),
        PlanTensor("at", True, "INT64", (1,)),
        PlanTensor("present", False, "HALF", (ROWS, WIDTH)),
        PlanTensor("total", False, "FLOAT", (1,)),
    ],
    profiles=[{"rows": ((1, WIDTH), (1, WIDTH), (ROWS, WIDTH)), "shown": ((1,), (1,), (ROWS,))}],
    aliases={"present": "past"},
)
"""Rows go into a cache that lies where it comes out."""


@dataclass(frozen=True)
class Pinned:
    """Host memory that stays where it is."""

    address: int
    bytes: npt.NDArray[np.uint8]

    @property
    def half(self) -> npt.NDArray[np.float16]:
        """The same bytes as float16."""
        return self.bytes.view(np.float16)


class Cuda:
    """The fake of cuda-python over a device of its own, and a stream."""

    def __init__(self, traits: DeviceTraits | None = None) -> None:
        self.device = FakeDevice(traits)
        self.cuda = FakeCudart(self.device)
        self.kinds = self.cuda.cudaMemcpyKind
        self.stream: Any = self.ok(self.cuda.cudaStreamCreateWithFlags(self.cuda.cudaStreamNonBlocking))

    @property
    def notes(self) -> list[str]:
        """What was refused."""
        return self.device.faults.notes

    def ok(self, result: tuple[Any, ...]) -> Any:
        """The value of a call that has to succeed."""
        assert result[0] == self.cuda.cudaError_t.cudaSuccess, (result, self.notes)
        return result[1] if len(result) > 1 else None

    def code(self, result: tuple[Any, ...]) -> str:
        """Name of the error of a call that must not succeed."""
        assert all(value is None for value in result[1:])
        return str(result[0].name)

    def memory(self, size: int) -> int:
        """Device memory."""
        return int(self.ok(self.cuda.cudaMalloc(size)))

    def pinned(self, size: int, flags: int = 0) -> Pinned:
        """Pinned host memory."""
        address = int(self.ok(self.cuda.cudaHostAlloc(size, flags)))
        view = (ctypes.c_uint8 * size).from_address(address)
        return Pinned(address, np.ctypeslib.as_array(view))

    def up(self, target: int, source: int, size: int, stream: Any = None) -> tuple[Any, ...]:
        """From the host to the device."""
        kind = self.kinds.cudaMemcpyHostToDevice
        return self.cuda.cudaMemcpyAsync(target, source, size, kind, self.stream if stream is None else stream)

    def down(self, target: int, source: int, size: int, stream: Any = None) -> tuple[Any, ...]:
        """From the device to the host."""
        kind = self.kinds.cudaMemcpyDeviceToHost
        return self.cuda.cudaMemcpyAsync(target, source, size, kind, self.stream if stream is None else stream)

    def wait(self) -> None:
        """For the stream."""
        self.ok(self.cuda.cudaStreamSynchronize(self.stream))

    def put(self, array: npt.NDArray[Any], size: int = 0) -> int:
        """Device memory of at least so many bytes that begins with this array."""
        host = self.pinned(array.nbytes)
        host.bytes[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        address = self.memory(max(size, array.nbytes))
        self.ok(self.up(address, host.address, array.nbytes))
        self.wait()
        return address

    def get(self, address: int, count: int, dtype: npt.DTypeLike = np.float16) -> list[float]:
        """What the device has there, once it has done all it was given."""
        size = count * np.dtype(dtype).itemsize
        host = self.pinned(size)
        self.ok(self.down(host.address, address, size))
        self.wait()
        numbers: list[float] = host.bytes.view(dtype).tolist()
        return numbers


class Rig(Cuda):
    """An engine on that device, with a context that works in memory of its own."""

    def __init__(self, plan: Plan = TWICE, traits: DeviceTraits | None = None, version: str = VERSION) -> None:
        super().__init__(traits)
        self.trt = fake_tensorrt(self.device, version, plan.library)
        self.said: list[str] = []
        self.log = self._make_log()
        self.runtime = self.trt.Runtime(self.log)
        self.engine: Any = self.runtime.deserialize_cuda_engine(encode_plan(changed(plan, version=version)))
        self.context: Any = self.engine.create_execution_context() if self.engine else None

    def _make_log(self) -> Any:
        said = self.said

        class Log(self.trt.ILogger):  # type: ignore[misc, name-defined]
            def log(self, severity: Any, message: str) -> None:
                said.append(message)

        return Log()

    def bind(self, **addresses: int) -> None:
        """Set addresses, all of which have to be taken."""
        for name, address in addresses.items():
            assert self.context.set_tensor_address(name, address), self.said

    def shape(self, name: str, *shape: int) -> bool:
        """Set an input's shape."""
        return bool(self.context.set_input_shape(name, shape))

    def execute(self, stream: Any = None) -> bool:
        """Queue a pass."""
        return bool(self.context.execute_async_v3(int(self.stream if stream is None else stream)))

    def other_stream(self) -> Any:
        """A second stream."""
        return self.ok(self.cuda.cudaStreamCreateWithFlags(self.cuda.cudaStreamNonBlocking))


def changed(plan: Plan, **changes: Any) -> Plan:
    """The same plan with some of it changed."""
    return msgspec.structs.replace(plan, **changes)


def twice(numbers: npt.NDArray[np.float16], room: int = 600) -> tuple[Rig, int, int]:
    """A rig that is ready for a pass over these numbers, and where x and y lie."""
    rig = Rig()
    x, y = rig.put(numbers, room), rig.memory(room)
    assert rig.shape("x", len(numbers))
    rig.bind(x=x, y=y)
    return rig, x, y
