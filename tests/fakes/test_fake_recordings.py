"""Recorded passes of the fake TensorRT."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tests.support.fake_faults import UndefinedBehaviourError
from tests.support.fake_rig import TWICE, Rig, changed, twice

FOUR = np.arange(4, dtype=np.float16)
UNDEFINED = UndefinedBehaviourError


def test_tensorrt_rtx_is_asked_whether_a_pass_can_be_recorded() -> None:
    assert not hasattr(Rig().context, "is_stream_capturable")
    rig = Rig(changed(TWICE, library="tensorrt_rtx"), version="1.4.0.76")
    assert hasattr(rig.engine, "get_aliased_input_tensor")
    rig.bind(x=rig.put(FOUR), y=rig.memory(8))
    for length in (4, 3):
        assert rig.shape("x", length)
        assert not rig.context.is_stream_capturable(int(rig.stream))
        assert rig.execute()
        assert rig.context.is_stream_capturable(int(rig.stream))


def ready_to_capture(rig: Rig) -> None:
    mode = rig.cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    rig.wait()
    rig.ok(rig.cuda.cudaStreamBeginCapture(rig.stream, mode))


def recorded(rig: Rig) -> object:
    """A pass as a graph."""
    assert rig.execute()
    ready_to_capture(rig)
    assert rig.execute()
    graph = rig.ok(rig.cuda.cudaStreamEndCapture(rig.stream))
    return rig.ok(rig.cuda.cudaGraphInstantiate(graph, 0))


def test_a_recorded_pass_computes_on_what_lies_at_its_addresses() -> None:
    rig, x, y = twice(FOUR)
    graph = recorded(rig)
    host = rig.pinned(8)
    for number in (5, 6):
        host.half[:] = number
        rig.ok(rig.up(x, host.address, 8))
        rig.ok(rig.cuda.cudaGraphLaunch(graph, rig.stream))
        assert rig.get(y, 4) == [2 * number] * 4
    assert rig.notes == []


def test_the_first_pass_of_a_shape_or_profile_is_not_recorded() -> None:
    rig, _, _ = twice(FOUR)
    ready_to_capture(rig)
    assert not rig.execute()
    assert "a plain pass has to come before" in rig.said[-1]
    assert rig.code(rig.cuda.cudaStreamEndCapture(rig.stream)) == "cudaErrorStreamCaptureInvalidated"
    assert rig.execute()
    assert rig.shape("x", 3)
    ready_to_capture(rig)
    assert not rig.execute()


def test_a_profile_is_not_chosen_in_a_capture() -> None:
    rig, _, _ = twice(FOUR)
    ready_to_capture(rig)
    assert not rig.context.set_optimization_profile_async(1, int(rig.stream))
    assert rig.code(rig.cuda.cudaStreamEndCapture(rig.stream)) == "cudaErrorStreamCaptureInvalidated"


@pytest.mark.parametrize("what", ["shape", "address", "profile"])
def test_a_recorded_pass_forbids_changing_its_context(what: str) -> None:
    rig, x, _ = twice(FOUR)
    graph = recorded(rig)
    rig.bind(x=x)
    assert rig.shape("x", 4)
    rig.ok(rig.cuda.cudaGraphLaunch(graph, rig.stream))  # what stays as it was is no change
    rig.wait()
    if what == "shape":
        assert rig.shape("x", 3)
    elif what == "address":
        rig.bind(x=rig.put(FOUR))
    else:
        assert rig.context.set_optimization_profile_async(1, int(rig.stream))
    with pytest.raises(UNDEFINED, match="whose context was changed after the capture"):
        rig.cuda.cudaGraphLaunch(graph, rig.stream)


def test_a_recorded_pass_needs_its_context_and_its_memory() -> None:
    rig, x, _ = twice(FOUR)
    graph = recorded(rig)
    rig.ok(rig.cuda.cudaGraphLaunch(graph, rig.stream))
    rig.wait()
    rig.ok(rig.cuda.cudaFree(x))
    rig.ok(rig.cuda.cudaGraphLaunch(graph, rig.stream))
    with pytest.raises(UNDEFINED, match="was freed"):
        rig.wait()
    rig.context = None
    gc.collect()
    with pytest.raises(UNDEFINED, match="a context is gone"):
        rig.cuda.cudaGraphLaunch(graph, rig.stream)


def test_a_recorded_pass_counts_as_a_use_of_its_context() -> None:
    rig, _, _ = twice(FOUR)
    graph = recorded(rig)
    rig.ok(rig.cuda.cudaGraphLaunch(graph, rig.stream))
    with pytest.raises(UNDEFINED, match="on two streams at once"):
        rig.execute(rig.other_stream())
