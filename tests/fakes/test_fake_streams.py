"""Streams, events and captured graphs of the fake device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.support.fake_cudart import FakeCudart
from tests.support.fake_device import DeviceTraits, FakeDevice
from tests.support.fake_faults import UndefinedBehaviourError
from tests.support.fake_rig import Cuda, Pinned

FORBIDDEN, SPOILT = "cudaErrorStreamCaptureUnsupported", "cudaErrorStreamCaptureInvalidated"
NO_HANDLE = "cudaErrorInvalidResourceHandle"


@pytest.fixture
def gpu() -> Cuda:
    return Cuda()


def filled(gpu: Cuda) -> tuple[Pinned, int]:
    host = gpu.pinned(8)
    host.half[:] = np.arange(4)
    return host, gpu.memory(8)


def new_stream(gpu: Cuda) -> object:
    return gpu.ok(gpu.cuda.cudaStreamCreateWithFlags(gpu.cuda.cudaStreamNonBlocking))


def new_event(gpu: Cuda) -> object:
    return gpu.ok(gpu.cuda.cudaEventCreateWithFlags(gpu.cuda.cudaEventDisableTiming))


def test_work_that_nothing_orders_is_run_as_late_as_can_be(gpu: Cuda) -> None:
    (host, device), second, found = filled(gpu), new_stream(gpu), gpu.pinned(8)
    gpu.ok(gpu.up(device, host.address, 8))
    gpu.ok(gpu.down(found.address, device, 8, second))
    gpu.ok(gpu.cuda.cudaStreamSynchronize(second))
    assert np.isnan(found.half).all()


def test_an_event_orders_two_streams(gpu: Cuda) -> None:
    (host, device), second, found, event = filled(gpu), new_stream(gpu), gpu.pinned(8), new_event(gpu)
    gpu.ok(gpu.up(device, host.address, 8))
    gpu.ok(gpu.cuda.cudaEventRecord(event, gpu.stream))
    gpu.ok(gpu.cuda.cudaStreamWaitEvent(second, event, 0))
    gpu.ok(gpu.down(found.address, device, 8, second))
    gpu.ok(gpu.cuda.cudaStreamSynchronize(second))
    assert found.half.tolist() == [0, 1, 2, 3]


def test_waiting_for_an_event_does_what_came_before_it_and_no_more(gpu: Cuda) -> None:
    (host, device), event = filled(gpu), new_event(gpu)
    first, later = gpu.pinned(8), gpu.pinned(8)
    gpu.ok(gpu.up(device, host.address, 8))
    gpu.ok(gpu.down(first.address, device, 8))
    gpu.ok(gpu.cuda.cudaEventRecord(event, gpu.stream))
    gpu.ok(gpu.down(later.address, device, 8))
    gpu.ok(gpu.cuda.cudaEventSynchronize(event))
    assert first.half.tolist() == [0, 1, 2, 3]
    assert np.isnan(later.half).all()
    gpu.ok(gpu.cuda.cudaDeviceSynchronize())
    assert later.half.tolist() == [0, 1, 2, 3]


def test_asking_again_and_again_comes_to_an_end(gpu: Cuda) -> None:
    (host, device), event = filled(gpu), new_event(gpu)
    for _ in range(3):
        gpu.ok(gpu.up(device, host.address, 8))
    gpu.ok(gpu.cuda.cudaEventRecord(event, gpu.stream))
    answers = [gpu.cuda.cudaEventQuery(event)[0].name for _ in range(5)]
    assert answers == ["cudaErrorNotReady"] * 4 + ["cudaSuccess"]
    assert gpu.cuda.cudaStreamQuery(gpu.stream)[0].name == "cudaSuccess"


def test_a_stream_with_flags_that_there_are_not_is_refused(gpu: Cuda) -> None:
    gpu.ok(gpu.cuda.cudaStreamCreateWithFlags(gpu.cuda.cudaStreamDefault))
    assert gpu.code(gpu.cuda.cudaStreamCreateWithFlags(2)) == "cudaErrorInvalidValue"


def test_an_event_with_flags_that_there_are_not_is_refused(gpu: Cuda) -> None:
    assert gpu.code(gpu.cuda.cudaEventCreateWithFlags(8)) == "cudaErrorInvalidValue"


def test_handles_are_worth_nothing_once_they_are_given_back(gpu: Cuda) -> None:
    cuda, stream, event = gpu.cuda, new_stream(gpu), new_event(gpu)
    gpu.ok(cuda.cudaEventDestroy(event))
    gpu.ok(cuda.cudaStreamDestroy(stream))
    refused = (
        cuda.cudaStreamSynchronize(stream),
        cuda.cudaStreamQuery(stream),
        cuda.cudaStreamIsCapturing(stream),
        cuda.cudaStreamDestroy(stream),
        cuda.cudaEventRecord(event, gpu.stream),
        cuda.cudaEventSynchronize(event),
        cuda.cudaEventQuery(event),
        cuda.cudaEventDestroy(event),
        cuda.cudaStreamWaitEvent(gpu.stream, event, 0),
        cuda.cudaStreamBeginCapture(stream, cuda.cudaStreamCaptureMode.cudaStreamCaptureModeGlobal),
        gpu.up(gpu.memory(8), gpu.pinned(8).address, 8, stream),
        cuda.cudaMemsetAsync(gpu.memory(8), 0, 8, stream),
    )
    assert {gpu.code(result) for result in refused} == {NO_HANDLE}
    assert len(gpu.notes) == len(refused)


def test_a_stream_is_not_destroyed_before_its_work_is_done(gpu: Cuda) -> None:
    host, device = filled(gpu)
    gpu.ok(gpu.up(device, host.address, 8))
    with pytest.raises(UndefinedBehaviourError, match="destroyed before a copy of 8 bytes was done"):
        gpu.cuda.cudaStreamDestroy(gpu.stream)


def test_without_a_driver_every_call_says_so() -> None:
    cuda = FakeCudart(FakeDevice(DeviceTraits(has_driver=False)))
    results = (
        cuda.cudaGetDeviceCount(),
        cuda.cudaSetDevice(0),
        cuda.cudaDeviceGetAttribute(cuda.cudaDeviceAttr.cudaDevAttrIntegrated, 0),
        cuda.cudaStreamCreateWithFlags(1),
        cuda.cudaEventCreateWithFlags(2),
        cuda.cudaMalloc(8),
        cuda.cudaHostAlloc(8, 0),
    )
    assert {result[0].name for result in results} == {"cudaErrorInsufficientDriver"}
    assert cuda.cudaGetErrorName(results[0][0])[1] == b"cudaErrorInsufficientDriver"
    assert b"driver version is insufficient" in cuda.cudaGetErrorString(results[0][0])[1]


def test_the_device_describes_itself() -> None:
    cuda = FakeCudart(FakeDevice(DeviceTraits(is_integrated=True, compute_capability=(11, 0))))
    names = cuda.cudaDeviceAttr
    asked = (names.cudaDevAttrIntegrated, names.cudaDevAttrCanMapHostMemory, names.cudaDevAttrComputeCapabilityMajor)
    assert [cuda.cudaDeviceGetAttribute(name, 0)[1] for name in asked] == [1, 1, 11]
    assert cuda.cudaGetDeviceCount()[1] == 1
    assert cuda.cudaDeviceGetAttribute(names.cudaDevAttrIntegrated, 1)[0].name == "cudaErrorInvalidDevice"
    assert cuda.cudaSetDevice(1)[0].name == "cudaErrorInvalidDevice"


def begin(gpu: Cuda) -> None:
    mode = gpu.cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    gpu.ok(gpu.cuda.cudaStreamBeginCapture(gpu.stream, mode))


def captured(gpu: Cuda) -> object:
    graph = gpu.ok(gpu.cuda.cudaStreamEndCapture(gpu.stream))
    launchable = gpu.ok(gpu.cuda.cudaGraphInstantiate(graph, 0))
    gpu.ok(gpu.cuda.cudaGraphDestroy(graph))
    return launchable


def test_what_is_captured_is_done_by_every_launch_and_not_before(gpu: Cuda) -> None:
    (host, device), found = filled(gpu), gpu.pinned(8)
    begin(gpu)
    gpu.ok(gpu.up(device, host.address, 8))
    gpu.ok(gpu.down(found.address, device, 8))
    launchable = captured(gpu)
    gpu.wait()
    assert np.isnan(found.half).all()
    for number in (5, 6):
        host.half[:] = number
        gpu.ok(gpu.cuda.cudaGraphLaunch(launchable, gpu.stream))
        assert not (found.half == number).any()
        gpu.wait()
        assert (found.half == number).all()
    assert gpu.notes == []


FORBIDDEN_CALLS: dict[str, Callable[[Cuda], tuple[object, ...]]] = {
    "cudaMalloc": lambda gpu: gpu.cuda.cudaMalloc(8),
    "cudaHostAlloc": lambda gpu: gpu.cuda.cudaHostAlloc(8, 0),
    "cudaFree": lambda gpu: gpu.cuda.cudaFree(0),
    "cudaStreamSynchronize": lambda gpu: gpu.cuda.cudaStreamSynchronize(gpu.stream),
    "cudaStreamQuery": lambda gpu: gpu.cuda.cudaStreamQuery(gpu.stream),
    "cudaDeviceSynchronize": lambda gpu: gpu.cuda.cudaDeviceSynchronize(),
    "cudaStreamDestroy": lambda gpu: gpu.cuda.cudaStreamDestroy(gpu.stream),
}


@pytest.mark.parametrize("name", FORBIDDEN_CALLS)
def test_a_capture_forbids_allocating_and_waiting(gpu: Cuda, name: str) -> None:
    begin(gpu)
    assert gpu.code(FORBIDDEN_CALLS[name](gpu)) == FORBIDDEN
    assert "being captured" in gpu.notes[-1]
    if name != "cudaStreamDestroy":
        assert gpu.ok(gpu.cuda.cudaStreamIsCapturing(gpu.stream)) == 2
        assert gpu.code(gpu.cuda.cudaStreamEndCapture(gpu.stream)) == SPOILT
        gpu.wait()


def test_an_event_of_a_capture_is_not_waited_for(gpu: Cuda) -> None:
    event, earlier = new_event(gpu), new_event(gpu)
    gpu.ok(gpu.cuda.cudaEventRecord(earlier, gpu.stream))
    begin(gpu)
    gpu.ok(gpu.cuda.cudaEventRecord(event, gpu.stream))
    assert gpu.code(gpu.cuda.cudaEventSynchronize(event)) == "cudaErrorCapturedEvent"
    assert gpu.code(gpu.cuda.cudaEventQuery(event)) == "cudaErrorCapturedEvent"
    assert gpu.code(gpu.cuda.cudaEventSynchronize(earlier)) == FORBIDDEN
    with pytest.raises(UndefinedBehaviourError, match="one stream at a time"):
        gpu.cuda.cudaStreamWaitEvent(new_stream(gpu), event, 0)


def test_a_capture_is_begun_once_and_ended_once(gpu: Cuda) -> None:
    cuda, mode = gpu.cuda, gpu.cuda.cudaStreamCaptureMode.cudaStreamCaptureModeGlobal
    assert gpu.code(cuda.cudaStreamEndCapture(gpu.stream)) == "cudaErrorInvalidValue"
    assert gpu.code(cuda.cudaStreamBeginCapture(0, mode)) == FORBIDDEN
    begin(gpu)
    assert gpu.ok(cuda.cudaStreamIsCapturing(gpu.stream)) == 1
    assert gpu.code(cuda.cudaStreamBeginCapture(gpu.stream, mode)) == FORBIDDEN
    gpu.ok(cuda.cudaStreamEndCapture(gpu.stream))
    assert gpu.ok(cuda.cudaStreamIsCapturing(gpu.stream)) == 0


def test_a_graph_is_instantiated_before_it_is_launched_and_not_launched_after_it_is_gone(gpu: Cuda) -> None:
    cuda = gpu.cuda
    begin(gpu)
    graph = gpu.ok(cuda.cudaStreamEndCapture(gpu.stream))
    assert gpu.code(cuda.cudaGraphLaunch(graph, gpu.stream)) == NO_HANDLE
    launchable = gpu.ok(cuda.cudaGraphInstantiate(graph, 0))
    assert gpu.code(cuda.cudaGraphDestroy(launchable)) == NO_HANDLE
    begin(gpu)
    assert gpu.code(cuda.cudaGraphInstantiate(graph, 0)) == FORBIDDEN
    assert gpu.code(cuda.cudaStreamEndCapture(gpu.stream)) == SPOILT
    gpu.ok(cuda.cudaGraphDestroy(graph))
    assert gpu.code(cuda.cudaGraphInstantiate(graph, 0)) == NO_HANDLE
    assert gpu.code(cuda.cudaGraphDestroy(graph)) == NO_HANDLE
    gpu.ok(cuda.cudaGraphLaunch(launchable, gpu.stream))
    gpu.ok(cuda.cudaGraphExecDestroy(launchable))
    assert gpu.code(cuda.cudaGraphLaunch(launchable, gpu.stream)) == NO_HANDLE
    assert gpu.code(cuda.cudaGraphExecDestroy(launchable)) == NO_HANDLE


def test_a_graph_is_launched_on_a_stream_of_its_own(gpu: Cuda) -> None:
    begin(gpu)
    launchable = captured(gpu)
    with pytest.raises(UndefinedBehaviourError, match="default stream, or within a capture"):
        gpu.cuda.cudaGraphLaunch(launchable, 0)
    begin(gpu)
    with pytest.raises(UndefinedBehaviourError, match="default stream, or within a capture"):
        gpu.cuda.cudaGraphLaunch(launchable, gpu.stream)


def test_a_graph_that_copies_from_freed_memory_is_found_when_it_is_run(gpu: Cuda) -> None:
    host, device = filled(gpu)
    begin(gpu)
    gpu.ok(gpu.up(device, host.address, 8))
    launchable = captured(gpu)
    gpu.ok(gpu.cuda.cudaFree(device))
    gpu.ok(gpu.cuda.cudaGraphLaunch(launchable, gpu.stream))
    with pytest.raises(UndefinedBehaviourError, match="freed before the work was done"):
        gpu.wait()
