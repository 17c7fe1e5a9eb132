"""Which passes are recorded, and that a recording which computes something else is never used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from starsd_edge.errors import EngineError
from starsd_edge.runtime.cuda import Device
from starsd_edge.runtime.tensorrt.captured import CapturedPasses
from tests.support.fake_cudart import FakeCudart
from tests.support.fake_device import FakeDevice

SHAPE = (4, 4)


class Context:
    """Counts the passes that it was asked for."""

    def __init__(self, recordable: bool = True, stops_at: int = 0) -> None:
        """Args:
        stops_at: the pass at which Ctrl-C is pressed.
        """
        self.passes = 0
        self.recordable = recordable
        self.stops_at = stops_at

    def can_be_recorded(self) -> bool:
        return self.recordable

    def enqueue(self) -> None:
        self.passes += 1
        if self.passes == self.stops_at:
            raise KeyboardInterrupt


@pytest.fixture
def device() -> Device:
    return Device(FakeCudart(FakeDevice()))


@pytest.fixture
def captured(device: Device) -> CapturedPasses:
    return CapturedPasses(device)


def record(captured: CapturedPasses, context: Context, *values: float) -> bool:
    """Record a pass whose outputs have one value after the other."""
    left = iter(values)
    make: Any = lambda: context  # noqa: E731
    return captured.record(SHAPE, make, lambda: [np.array([next(left)], np.float32)])


def test_a_shape_is_due_when_it_comes_for_the_third_time(captured: CapturedPasses) -> None:
    assert [captured.is_due(SHAPE) for _ in range(4)] == [False, False, True, False]
    assert [captured.is_due((1, 1)) for _ in range(2)] == [False, False]


def test_a_recording_that_gives_the_same_is_used(captured: CapturedPasses) -> None:
    context = Context()
    assert record(captured, context, 0.5, 0.5)
    assert context.passes == 2  # the pass itself, and once while it was recorded
    assert captured.run(SHAPE)
    assert not captured.run((1, 1))
    assert not captured.is_due(SHAPE)


@pytest.mark.parametrize("again", [0.5000001, float("nan")])
def test_one_that_gives_something_else_is_not(
    captured: CapturedPasses, caplog: pytest.LogCaptureFixture, again: float
) -> None:
    context = Context()
    assert not record(captured, context, 0.5, again)
    assert not captured.run(SHAPE)
    assert not any(captured.is_due(SHAPE) for _ in range(5))
    assert "the recording gives other numbers" in caplog.text


def test_what_the_library_calls_unrecordable_is_not_tried(
    captured: CapturedPasses, caplog: pytest.LogCaptureFixture
) -> None:
    context = Context(recordable=False)
    assert not record(captured, context, 0.5)
    assert context.passes == 1  # not in a capture
    assert not captured.run(SHAPE)
    assert "passes of 4 tokens are not recorded: the library says that they cannot be" in caplog.text


def test_a_context_that_cannot_be_made_costs_the_recording_alone(
    captured: CapturedPasses, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> Any:
        raise EngineError("no memory for a context")

    assert not captured.record(SHAPE, make, list)
    assert not captured.is_due(SHAPE)
    assert "passes of 4 tokens are not recorded: no memory for a context" in caplog.text


def test_ctrl_c_within_a_recording_leaves_the_stream_usable(captured: CapturedPasses, device: Device) -> None:
    with pytest.raises(KeyboardInterrupt):
        record(captured, Context(stops_at=2), 0.5)
    device.synchronize()
    assert record(captured, Context(), 0.5, 0.5)
