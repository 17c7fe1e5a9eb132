"""The names and numbers of `cuda.bindings.runtime` that the fake has, and its handles."""

# ruff: noqa: N801, N815  (the names are the library's)

from __future__ import annotations

from enum import IntEnum


class cudaError_t(IntEnum):
    """What every call gives first."""

    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorInvalidPitchValue = 12
    cudaErrorInsufficientDriver = 35
    cudaErrorInvalidDevice = 101
    cudaErrorInvalidResourceHandle = 400
    cudaErrorNotReady = 600
    cudaErrorIllegalAddress = 700
    cudaErrorStreamCaptureUnsupported = 900
    cudaErrorStreamCaptureInvalidated = 901
    cudaErrorStreamCaptureImplicit = 906
    cudaErrorCapturedEvent = 907


class cudaMemcpyKind(IntEnum):
    """From where to where."""

    cudaMemcpyHostToHost = 0
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2
    cudaMemcpyDeviceToDevice = 3


class cudaStreamCaptureMode(IntEnum):
    """Whose forbidden calls spoil a capture: this fake takes all modes for the strictest."""

    cudaStreamCaptureModeGlobal = 0
    cudaStreamCaptureModeThreadLocal = 1
    cudaStreamCaptureModeRelaxed = 2


class cudaDeviceAttr(IntEnum):
    """What a device can be asked about itself."""

    cudaDevAttrMultiProcessorCount = 16
    cudaDevAttrIntegrated = 18
    cudaDevAttrCanMapHostMemory = 19
    cudaDevAttrUnifiedAddressing = 41
    cudaDevAttrComputeCapabilityMajor = 75
    cudaDevAttrComputeCapabilityMinor = 76
    cudaDevAttrManagedMemory = 83
    cudaDevAttrConcurrentManagedAccess = 89


ERROR_TEXTS = {
    cudaError_t.cudaSuccess: b"no error",
    cudaError_t.cudaErrorInvalidValue: b"invalid argument",
    cudaError_t.cudaErrorMemoryAllocation: b"out of memory",
    cudaError_t.cudaErrorInvalidPitchValue: b"invalid pitch argument",
    cudaError_t.cudaErrorInsufficientDriver: b"CUDA driver version is insufficient for CUDA runtime version",
    cudaError_t.cudaErrorInvalidDevice: b"invalid device ordinal",
    cudaError_t.cudaErrorInvalidResourceHandle: b"invalid resource handle",
    cudaError_t.cudaErrorNotReady: b"device not ready",
    cudaError_t.cudaErrorIllegalAddress: b"an illegal memory access was encountered",
    cudaError_t.cudaErrorStreamCaptureUnsupported: b"operation not permitted when stream is capturing",
    cudaError_t.cudaErrorStreamCaptureInvalidated: b"operation failed due to a previous error during capture",
    cudaError_t.cudaErrorStreamCaptureImplicit: b"operation would make the legacy stream depend on a capturing "
    b"blocking stream",
    cudaError_t.cudaErrorCapturedEvent: b"operation not permitted on an event last recorded in a capturing stream",
}


class _Handle:
    """A number that is no int: it has to be turned into one, and bears no arithmetic."""

    def __init__(self, init_value: int = 0) -> None:
        self._value = init_value

    def __int__(self) -> int:
        return self._value

    __index__ = __int__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handle) and type(other) is type(self) and int(other) == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._value:#x}>"


class cudaStream_t(_Handle):
    """A stream."""


class cudaEvent_t(_Handle):
    """An event."""


class cudaGraph_t(_Handle):
    """What was captured."""


class cudaGraphExec_t(_Handle):
    """What can be launched."""
