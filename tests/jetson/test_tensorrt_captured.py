"""Which passes are recorded, and that a recording which computes something else is never used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from starsd_jetson.tensorrt.captured import CapturedPasses
from starsd_jetson.tensorrt.device import Device
from tests.support.fake_cudart import FakeCudart
from tests.support.fake_device import FakeDevice

SHAPE = (4, 4)


class Context:
    """Counts the passes that it was asked for."""

    def __init__(self, recordable: bool = True) -> None:
        self.passes = 0
        self.recordable = recordable

    def can_be_recorded(self) -> bool:
        return self.recordable

    def enqueue(self) -> None:
        self.passes += 1


@pytest.fixture
def captured() -> CapturedPasses:
    return CapturedPasses(Device(FakeCudart(FakeDevice())))


def outputs(*values: float) -> Any:
    """Gives one value after the other as all that came of a pass."""
    left = iter(values)
    return lambda: [np.array([next(left)], np.float32)]


def test_a_shape_is_due_when_it_comes_for_the_third_time(captured: CapturedPasses) -> None:
    assert [captured.is_due(SHAPE) for _ in range(4)] == [False, False, True, False]
    assert [captured.is_due((1, 1)) for _ in range(2)] == [False, False]


def test_a_recording_that_gives_the_same_is_used(captured: CapturedPasses) -> None:
    context = Context()
    captured.record(SHAPE, context, outputs(0.5, 0.5))  # type: ignore[arg-type]
    assert context.passes == 2  # the pass itself, and once while it was recorded
    assert captured.run(SHAPE)
    assert not captured.run((1, 1))
    assert not captured.is_due(SHAPE)


@pytest.mark.parametrize("again", [0.5000001, float("nan")])
def test_one_that_gives_something_else_is_not(
    captured: CapturedPasses, caplog: pytest.LogCaptureFixture, again: float
) -> None:
    context = Context()
    captured.record(SHAPE, context, outputs(0.5, again))  # type: ignore[arg-type]
    assert context.passes == 3  # run once more, plainly: its outputs have to stand
    assert not captured.run(SHAPE)
    assert not any(captured.is_due(SHAPE) for _ in range(5))
    assert "the recording gives other numbers" in caplog.text


def test_what_the_library_calls_unrecordable_is_not_tried(
    captured: CapturedPasses, caplog: pytest.LogCaptureFixture
) -> None:
    context = Context(recordable=False)
    captured.record(SHAPE, context, outputs(0.5))  # type: ignore[arg-type]
    assert context.passes == 2  # none of them in a capture
    assert not captured.run(SHAPE)
    assert "passes of 4 tokens are not recorded: the library says that they cannot be" in caplog.text
