"""The part of the fake of `cuda.bindings.runtime` that is about captured graphs."""

# ruff: noqa: N802, N803  (the names are the library's)

from __future__ import annotations

import operator
from typing import Any

from tests.support.fake_cuda_part import CAPTURE_FORBIDS, NO_SUCH_HANDLE, OK, Code, CudaPart
from tests.support.fake_cuda_types import cudaError_t, cudaGraph_t, cudaGraphExec_t, cudaStreamCaptureMode
from tests.support.fake_streams import Capture, Graph


class Template(Graph):
    """What a capture gave; it has to be instantiated before it is launched."""


class CudaGraphs(CudaPart):
    """Capturing, instantiating, launching."""

    def cudaStreamBeginCapture(self, stream: Any, mode: cudaStreamCaptureMode) -> Code:
        """Note what is queued on a stream, instead of queueing it."""
        cudaStreamCaptureMode(mode)
        found = self._stream(stream)
        if found is None:
            return self._refuse("capturing a stream that is not there", NO_SUCH_HANDLE)
        if found.handle == 0 or found.capture is not None:
            what = "the default stream" if found.handle == 0 else "a stream that is being captured"
            return self._refuse(f"capturing {what}", CAPTURE_FORBIDS)
        found.capture = Capture()
        return (OK,)

    def cudaStreamEndCapture(self, stream: Any) -> tuple[cudaError_t, cudaGraph_t | None]:
        """What was noted, unless something has spoilt it."""
        found = self._stream(stream)
        if found is None or found.capture is None:
            return *self._refuse("the end of a capture that was not begun"), None
        capture, found.capture = found.capture, None
        if capture.spoilt:
            return *self._refuse("a spoilt capture", cudaError_t.cudaErrorStreamCaptureInvalidated), None
        number = self._device.number()
        self._device.hold(number, Template(number, capture.tasks))
        return OK, cudaGraph_t(number)

    def cudaStreamIsCapturing(self, stream: Any) -> tuple[cudaError_t, int | None]:
        """1 while a stream is being captured, 2 once that is spoilt, 0 otherwise."""
        found = self._stream(stream)
        if found is None:
            return *self._refuse("asking for a stream that is not there", NO_SUCH_HANDLE), None
        return OK, 0 if found.capture is None else 1 + found.capture.spoilt

    def cudaGraphInstantiate(self, graph: Any, flags: int) -> tuple[cudaError_t, cudaGraphExec_t | None]:
        """Make a graph ready for launching."""
        found = self._device.held(Template, operator.index(graph))
        if found is None or flags != 0:
            return *self._refuse("a graph that is not there was instantiated", NO_SUCH_HANDLE), None
        if self._device.spoil_captures("instantiating a graph"):
            return CAPTURE_FORBIDS, None
        number = self._device.number()
        self._device.hold(number, Graph(number, list(found.tasks)))
        return OK, cudaGraphExec_t(number)

    def cudaGraphLaunch(self, graphExec: Any, stream: Any) -> Code:
        """Queue all that a graph holds."""
        found, queue = self._executable(graphExec), self._stream(stream)
        if found is None or queue is None:
            return self._refuse("launching a graph, or on a stream, that is not there", NO_SUCH_HANDLE)
        if queue.handle == 0 or queue.capture is not None:
            raise self._device.faults.undefined("a graph launched on the default stream, or within a capture")
        self._device.scheduler.launch(found, queue)
        return (OK,)

    def cudaGraphExecDestroy(self, graphExec: Any) -> Code:
        """Give back what can be launched."""
        found = self._executable(graphExec)
        if found is None:
            return self._refuse("a graph that is not there was destroyed", NO_SUCH_HANDLE)
        self._device.drop(found.handle)
        return (OK,)

    def cudaGraphDestroy(self, graph: Any) -> Code:
        """Give back what was captured; what was instantiated from it stays."""
        found = self._device.held(Template, operator.index(graph))
        if found is None:
            return self._refuse("a graph that is not there was destroyed", NO_SUCH_HANDLE)
        self._device.drop(found.handle)
        return (OK,)

    def _executable(self, handle: Any) -> Graph | None:
        found = self._device.held(Graph, operator.index(handle))
        return None if isinstance(found, Template) else found
