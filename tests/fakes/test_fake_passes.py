"""Passes of the fake TensorRT: what they read and write, on which streams and in which order."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.fake_faults import UndefinedBehaviourError
from tests.support.fake_rig import ROWS, SCATTER, WIDTH, WORKSPACE_BYTES, Rig, twice

FOUR = np.arange(4, dtype=np.float16)
UNDEFINED = UndefinedBehaviourError


def scatter(rig: Rig, *, past: bool = True, shown: int = 1, at: int = 3) -> Rig:
    """Two rows of ones and twos into the cache, from a row on."""
    cache = rig.put(np.zeros((ROWS, WIDTH), np.float16)) if past else rig.memory(ROWS * WIDTH * 2)
    rows = np.repeat(np.array([[1], [2]], np.float16), WIDTH, axis=1)
    assert rig.shape("rows", 2, WIDTH)
    assert rig.shape("shown", 2)
    rig.bind(past=cache, present=cache, rows=rig.put(rows), total=rig.memory(4))
    rig.bind(shown=rig.put(np.full(2, shown, np.uint8)), at=rig.put(np.array([at], np.int64)))
    return rig


def test_an_alias_is_written_where_its_input_lies() -> None:
    rig = scatter(Rig(SCATTER))
    assert rig.execute()
    cache = np.array(rig.get(rig.context.get_tensor_address("past"), ROWS * WIDTH)).reshape(ROWS, WIDTH)
    assert cache[:, 0].tolist() == [0, 0, 0, 1, 2, 0, 0, 0]
    assert rig.get(rig.context.get_tensor_address("total"), 1, np.float32) == [3 * WIDTH]
    assert rig.notes == []


def test_an_alias_elsewhere_is_refused() -> None:
    rig = scatter(Rig(SCATTER))
    rig.bind(present=rig.memory(ROWS * WIDTH * 2))
    assert not rig.execute()
    assert "present must lie where the input lies" in rig.said[-1]


def test_a_cache_that_was_not_cleared_is_found() -> None:
    rig = scatter(Rig(SCATTER), past=False)
    assert rig.execute()
    with pytest.raises(UNDEFINED, match="past: 64 of 64 bytes were never written"):
        rig.wait()


def test_rows_beyond_a_cache_are_found() -> None:
    rig = scatter(Rig(SCATTER), at=ROWS - 1)
    assert rig.execute()
    with pytest.raises(UNDEFINED, match="a kernel failed: 2 rows from 7 on do not fit 8"):
        rig.wait()


def test_truth_values_are_0_and_1() -> None:
    rig = scatter(Rig(SCATTER), shown=2)
    assert rig.execute()
    with pytest.raises(UNDEFINED, match="shown holds other bytes than 0 and 1"):
        rig.wait()


def test_inputs_that_do_not_agree_are_refused() -> None:
    rig = scatter(Rig(SCATTER))
    assert rig.shape("shown", 3)
    assert not rig.execute()
    assert "t is 3 in shown and 2 elsewhere" in rig.said[-1]
    with pytest.raises(RuntimeError, match="shape inference failed"):
        rig.context.infer_shapes()


def test_input_that_nothing_has_written_is_found() -> None:
    rig, _, _ = twice(FOUR)
    assert rig.shape("x", 5)
    assert rig.execute()
    with pytest.raises(UNDEFINED, match="x: 2 of 10 bytes were never written"):
        rig.wait()


def test_outputs_lie_apart_from_everything_else() -> None:
    rig, x, _ = twice(FOUR)
    rig.bind(y=x)
    with pytest.raises(UNDEFINED, match="x and y overlap"):
        rig.execute()


def test_streams_that_are_none_are_found() -> None:
    rig, _, _ = twice(FOUR)
    gone = rig.other_stream()
    rig.ok(rig.cuda.cudaStreamDestroy(gone))
    for stream, said in ((0, "the default stream"), (gone, "a stream that is not there")):
        with pytest.raises(UNDEFINED, match=said):
            rig.execute(stream)
        with pytest.raises(UNDEFINED, match=said):
            rig.context.set_optimization_profile_async(1, int(stream))


def test_a_change_of_profile_forgets_shapes_and_is_waited_for() -> None:
    rig, _, y = twice(FOUR)
    assert rig.context.active_optimization_profile == 0
    assert rig.context.set_optimization_profile_async(1, int(rig.stream))
    assert rig.context.active_optimization_profile == 1
    with pytest.raises(UNDEFINED, match="before the change of profile was waited for"):
        rig.execute()
    rig.wait()
    assert not rig.execute()
    assert not rig.shape("x", 4)
    assert rig.shape("x", 10)
    rig.bind(x=rig.put(np.ones(10, np.float16)))
    assert rig.execute()
    assert rig.get(y, 10) == [2] * 10


def test_a_profile_is_not_changed_under_a_pass() -> None:
    rig, _, _ = twice(FOUR)
    assert rig.execute()
    assert rig.context.set_optimization_profile_async(0, int(rig.stream))  # the one that it has: no change
    with pytest.raises(UNDEFINED, match="while a pass of the context is not done"):
        rig.context.set_optimization_profile_async(1, int(rig.stream))


def test_a_context_serves_one_stream_at_a_time() -> None:
    rig, _, y = twice(FOUR)
    second = rig.other_stream()
    assert rig.execute()
    assert rig.execute()
    with pytest.raises(UNDEFINED, match="on two streams at once"):
        rig.execute(second)
    rig.wait()
    assert rig.execute(second)
    rig.ok(rig.cuda.cudaStreamSynchronize(second))
    assert rig.get(y, 4) == [0, 2, 4, 6]


def with_own_memory(rig: Rig) -> Rig:
    """The same with a context that is given the memory that it works in."""
    addresses = {name: rig.context.get_tensor_address(name) for name in ("x", "y")}
    rig.context = rig.engine.create_execution_context(rig.trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    rig.bind(**addresses)
    assert rig.shape("x", 4)
    return rig


def test_memory_to_work_in_is_given_and_left_full_of_rubbish() -> None:
    rig = with_own_memory(twice(FOUR)[0])
    assert not rig.execute()
    assert "no memory to work in" in rig.said[-1]
    place = rig.put(np.zeros(WORKSPACE_BYTES, np.uint8))
    rig.context.set_device_memory(place, WORKSPACE_BYTES)
    assert rig.execute()
    rig.wait()
    assert set(rig.get(place, WORKSPACE_BYTES, np.uint8)) != {0}


def test_memory_to_work_in_has_to_be_large_enough_aligned_and_the_devices() -> None:
    rig = with_own_memory(twice(FOUR)[0])
    place = rig.memory(2 * WORKSPACE_BYTES)
    rig.context.set_device_memory(place, WORKSPACE_BYTES - 1)
    rig.context.set_device_memory(place + 8, WORKSPACE_BYTES)
    assert not rig.execute()
    for address in (rig.pinned(WORKSPACE_BYTES).address, rig.memory(8)):
        with pytest.raises(UNDEFINED, match="has not so much memory"):
            rig.context.set_device_memory(address, WORKSPACE_BYTES)
    rig.engine.create_execution_context().set_device_memory(place, WORKSPACE_BYTES)
    assert "memory of its own" in rig.said[-1]


def test_no_tensor_lies_in_the_memory_that_a_pass_works_in() -> None:
    rig = with_own_memory(twice(FOUR)[0])
    place = rig.put(np.zeros(WORKSPACE_BYTES, np.uint8), WORKSPACE_BYTES + 512)
    rig.context.set_device_memory(place, WORKSPACE_BYTES)
    rig.bind(y=place + 256)
    with pytest.raises(UNDEFINED, match="y lies in the memory that the pass works in"):
        rig.execute()
    rig.bind(y=place + WORKSPACE_BYTES)
    assert rig.execute()


def test_contexts_share_memory_on_one_stream_only() -> None:
    rig = with_own_memory(twice(FOUR)[0])
    place = rig.memory(WORKSPACE_BYTES)
    rig.context.set_device_memory(place, WORKSPACE_BYTES)
    assert rig.execute()
    first = rig.context
    with_own_memory(rig).context.set_device_memory(place, WORKSPACE_BYTES)
    assert rig.execute()
    second = rig.other_stream()
    rig.wait()
    assert first.execute_async_v3(int(rig.stream))
    with pytest.raises(UNDEFINED, match="two passes on two streams work in one place"):
        rig.execute(second)
