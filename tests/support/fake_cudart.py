"""A strict fake of `cuda.bindings.runtime`, as far as starsd-edge uses it: handed to it in the place of the module.

Every call gives a tuple, its error first. What CUDA refuses gets its error code; what it leaves undefined raises.
Where CUDA only becomes slow (host memory that is not pinned, a default stream), this refuses too.
"""

# ruff: noqa: N802, N815  (the names are the library's)

from __future__ import annotations

from typing import Any

from tests.support.fake_cuda_graphs import CudaGraphs
from tests.support.fake_cuda_memory import CudaMemory
from tests.support.fake_cuda_part import CAPTURE_FORBIDS, NO_DRIVER, NO_SUCH_HANDLE, OK, Code
from tests.support.fake_cuda_types import (
    ERROR_TEXTS,
    cudaDeviceAttr,
    cudaError_t,
    cudaEvent_t,
    cudaMemcpyKind,
    cudaStream_t,
    cudaStreamCaptureMode,
)
from tests.support.fake_device import FakeDevice
from tests.support.fake_streams import Event

_EVENT_FLAGS = 7


class FakeCudart(CudaMemory, CudaGraphs):
    """The module's functions as methods, and its names as attributes."""

    cudaStreamDefault = 0
    cudaStreamNonBlocking = 1
    cudaEventDefault = 0
    cudaEventBlockingSync = 1
    cudaEventDisableTiming = 2
    cudaHostAllocDefault = 0
    cudaHostAllocPortable = 1
    cudaHostAllocMapped = 2
    cudaMemAttachGlobal = 1
    cudaMemAttachHost = 2

    def __init__(self, device: FakeDevice) -> None:
        super().__init__(device)
        self.cudaError_t = cudaError_t
        self.cudaMemcpyKind = cudaMemcpyKind
        self.cudaDeviceAttr = cudaDeviceAttr
        self.cudaStreamCaptureMode = cudaStreamCaptureMode

    def cudaGetErrorString(self, error: cudaError_t) -> tuple[cudaError_t, bytes]:
        """What an error means."""
        return OK, ERROR_TEXTS[cudaError_t(error)]

    def cudaGetErrorName(self, error: cudaError_t) -> tuple[cudaError_t, bytes]:
        """How an error is called."""
        return OK, cudaError_t(error).name.encode()

    def cudaDriverGetVersion(self) -> tuple[cudaError_t, int]:
        """CUDA's version, 0 without a driver."""
        return OK, self._device.traits.driver if self._device.traits.has_driver else 0

    def cudaRuntimeGetVersion(self) -> tuple[cudaError_t, int]:
        """That of the runtime in the package."""
        return OK, self._device.traits.runtime

    def cudaGetDeviceCount(self) -> tuple[cudaError_t, int | None]:
        """There is one."""
        return (OK, 1) if self._device.traits.has_driver else (NO_DRIVER, None)

    def cudaSetDevice(self, device: int) -> Code:
        """Which device this thread uses: the only one."""
        traits = self._device.traits
        if not traits.has_driver or traits.runtime > traits.driver:
            return (NO_DRIVER,)
        return (
            (OK,) if device == 0 else self._refuse(f"there is no device {device}", cudaError_t.cudaErrorInvalidDevice)
        )

    def cudaDeviceGetAttribute(self, attr: cudaDeviceAttr, device: int) -> tuple[cudaError_t, int | None]:
        """What the device says of itself."""
        if not self._device.traits.has_driver:
            return NO_DRIVER, None
        if device != 0:
            return *self._refuse(f"there is no device {device}", cudaError_t.cudaErrorInvalidDevice), None
        traits = self._device.traits
        answers = {
            cudaDeviceAttr.cudaDevAttrMultiProcessorCount: 8,
            cudaDeviceAttr.cudaDevAttrIntegrated: int(traits.is_integrated),
            cudaDeviceAttr.cudaDevAttrCanMapHostMemory: 1,
            cudaDeviceAttr.cudaDevAttrUnifiedAddressing: 1,
            cudaDeviceAttr.cudaDevAttrComputeCapabilityMajor: traits.compute_capability[0],
            cudaDeviceAttr.cudaDevAttrComputeCapabilityMinor: traits.compute_capability[1],
            cudaDeviceAttr.cudaDevAttrManagedMemory: 1,
            cudaDeviceAttr.cudaDevAttrConcurrentManagedAccess: int(not traits.is_integrated),
        }
        return OK, answers[attr]

    def cudaDeviceSynchronize(self) -> Code:
        """Wait for everything."""
        if self._device.spoil_captures("waiting for the device"):
            return (CAPTURE_FORBIDS,)
        self._device.scheduler.finish_all()
        return (OK,)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[cudaError_t, cudaStream_t | None]:
        """A new stream."""
        if not self._device.traits.has_driver:
            return NO_DRIVER, None
        if flags not in (self.cudaStreamDefault, self.cudaStreamNonBlocking):
            return *self._refuse(f"no stream has the flags {flags}"), None
        number = self._device.number()
        self._device.hold(number, self._device.scheduler.open(number))
        return OK, cudaStream_t(number)

    def cudaStreamDestroy(self, stream: Any) -> Code:
        """Give a stream back, what is queued on it must be done."""
        found = self._stream(stream)
        if found is None or found.handle == 0:
            return self._refuse("a stream that is not there was destroyed", NO_SUCH_HANDLE)
        if found.capture is not None:
            return self._refuse("a stream was destroyed while it is being captured", CAPTURE_FORBIDS)
        if found.queue:
            raise self._device.faults.undefined(f"a stream was destroyed before {found.queue[0].what} was done")
        self._device.drop(found.handle)
        return (OK,)

    def cudaStreamSynchronize(self, stream: Any) -> Code:
        """Wait for all that is queued on a stream."""
        found = self._stream(stream)
        if found is None:
            return self._refuse("waiting for a stream that is not there", NO_SUCH_HANDLE)
        if self._device.spoil_captures("waiting for a stream"):
            return (CAPTURE_FORBIDS,)
        self._device.scheduler.finish(found.last)
        return (OK,)

    def cudaStreamQuery(self, stream: Any) -> Code:
        """Whether all that is queued on a stream is done; where it is not, one thing more is."""
        found = self._stream(stream)
        if found is None:
            return self._refuse("asking for a stream that is not there", NO_SUCH_HANDLE)
        if self._device.spoil_captures("asking for a stream"):
            return (CAPTURE_FORBIDS,)
        return (OK,) if self._device.scheduler.step(found.last) else (cudaError_t.cudaErrorNotReady,)

    def cudaStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> Code:
        """What is queued from now on comes after an event."""
        found, mark = self._stream(stream), self._event(event)
        if found is None or mark is None or flags != 0:
            return self._refuse("a stream or an event that is not there", NO_SUCH_HANDLE)
        if found.capture is not None or mark.captured:
            raise self._device.faults.undefined("this fake captures one stream at a time, without events")
        if mark.mark is not None:
            self._device.scheduler.wait_on(found, mark.mark)
        return (OK,)

    def cudaEventCreateWithFlags(self, flags: int) -> tuple[cudaError_t, cudaEvent_t | None]:
        """A new event."""
        if not self._device.traits.has_driver:
            return NO_DRIVER, None
        if flags & ~_EVENT_FLAGS:
            return *self._refuse(f"no event has the flags {flags}"), None
        number = self._device.number()
        self._device.hold(number, Event(number))
        return OK, cudaEvent_t(number)

    def cudaEventRecord(self, event: Any, stream: Any) -> Code:
        """Mark where a stream is now."""
        mark, found = self._event(event), self._stream(stream)
        if found is None or mark is None:
            return self._refuse("a stream or an event that is not there", NO_SUCH_HANDLE)
        mark.captured = found.capture is not None
        mark.mark = None if mark.captured else self._device.scheduler.mark(found)
        return (OK,)

    def cudaEventSynchronize(self, event: Any) -> Code:
        """Wait until a stream has come to where it was marked."""
        mark = self._event(event)
        if mark is None:
            return self._refuse("waiting for an event that is not there", NO_SUCH_HANDLE)
        if mark.captured:
            return self._refuse("waiting for an event of a capture", cudaError_t.cudaErrorCapturedEvent)
        if self._device.spoil_captures("waiting for an event"):
            return (CAPTURE_FORBIDS,)
        self._device.scheduler.finish(mark.mark)
        return (OK,)

    def cudaEventQuery(self, event: Any) -> Code:
        """Whether a stream has come there; where it has not, it does one thing more."""
        mark = self._event(event)
        if mark is None:
            return self._refuse("asking for an event that is not there", NO_SUCH_HANDLE)
        if mark.captured:
            return self._refuse("asking for an event of a capture", cudaError_t.cudaErrorCapturedEvent)
        return (OK,) if self._device.scheduler.step(mark.mark) else (cudaError_t.cudaErrorNotReady,)

    def cudaEventDestroy(self, event: Any) -> Code:
        """Give an event back."""
        mark = self._event(event)
        if mark is None:
            return self._refuse("an event that is not there was destroyed", NO_SUCH_HANDLE)
        self._device.drop(mark.handle)
        return (OK,)
