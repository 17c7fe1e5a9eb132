"""What the parts of the fake of `cuda.bindings.runtime` have in common."""

from __future__ import annotations

import operator
from typing import Any

from tests.support.fake_cuda_types import cudaError_t
from tests.support.fake_device import FakeDevice
from tests.support.fake_streams import Event, Stream

OK = cudaError_t.cudaSuccess
NO_DRIVER = cudaError_t.cudaErrorInsufficientDriver
NO_SUCH_HANDLE = cudaError_t.cudaErrorInvalidResourceHandle
CAPTURE_FORBIDS = cudaError_t.cudaErrorStreamCaptureUnsupported
Code = tuple[cudaError_t]


class CudaPart:
    """Some of the module's functions, over one device."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device

    def _refuse(self, what: str, code: cudaError_t = cudaError_t.cudaErrorInvalidValue) -> Code:
        self._device.faults.note(what)
        return (code,)

    def _stream(self, stream: Any) -> Stream | None:
        return self._device.stream(operator.index(stream))

    def _event(self, event: Any) -> Event | None:
        return self._device.held(Event, operator.index(event))
