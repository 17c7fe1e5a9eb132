"""The fake TensorRT: a right program runs, and wrong names, shapes and addresses are told."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.fake_faults import UndefinedBehaviourError
from tests.support.fake_rig import ROWS, SCATTER, WIDTH, Rig, twice

FOUR = np.arange(4, dtype=np.float16)
UNDEFINED = UndefinedBehaviourError


def test_a_pass_computes_on_what_lies_there_when_it_is_run() -> None:
    rig, _, y = twice(FOUR)
    assert rig.execute()
    assert rig.get(y, 4) == [0, 2, 4, 6]
    assert rig.notes == rig.said == []


def test_nothing_is_computed_before_somebody_waits() -> None:
    rig, x, y = twice(FOUR)
    late, host = rig.pinned(8), rig.pinned(8)
    late.half[:] = 7
    rig.ok(rig.up(x, late.address, 8))
    assert rig.execute()
    rig.ok(rig.down(host.address, y, 8))
    assert np.isnan(host.half).all()
    late.half[:] = 8
    rig.wait()
    assert host.half.tolist() == [16, 16, 16, 16]


def test_the_engine_says_what_it_is() -> None:
    engine, trt = (rig := Rig(SCATTER)).engine, rig.trt
    names = [engine.get_tensor_name(number) for number in range(engine.num_io_tensors)]
    assert names == ["past", "rows", "shown", "at", "present", "total"]
    assert [engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT for name in names] == [True] * 4 + [False] * 2
    assert [engine.get_tensor_dtype(name).name for name in names] == ["HALF", "HALF", "BOOL", "INT64", "HALF", "FLOAT"]
    assert tuple(engine.get_tensor_shape("rows")) == (-1, WIDTH)
    shapes = engine.get_tensor_profile_shape("rows", 0)
    assert [tuple(shape) for shape in shapes] == [(1, WIDTH), (1, WIDTH), (ROWS, WIDTH)]
    assert [tuple(shape) for shape in engine.get_tensor_profile_shape("past", 0)] == [(ROWS, WIDTH)] * 3
    assert engine.get_aliased_input_tensor("present") == "past"
    assert engine.get_aliased_input_tensor("total") is None
    assert engine.num_optimization_profiles == 1
    assert engine.device_memory_size_v2 == SCATTER.activation_bytes
    assert rig.notes == []


def test_names_and_numbers_that_are_not_there_are_answered_with_nothing() -> None:
    rig = Rig()
    engine, context = rig.engine, rig.context
    assert engine.get_tensor_name(2) is None
    assert engine.get_tensor_mode("z") == rig.trt.TensorIOMode.NONE
    assert len(engine.get_tensor_shape("z")) == 0
    assert engine.get_tensor_profile_shape("z", 0) == []
    assert engine.get_tensor_profile_shape("y", 0) == []
    assert engine.get_tensor_profile_shape("x", 2) == []
    assert not context.set_tensor_address("z", rig.memory(8))
    assert not context.set_input_shape("z", (4,))
    assert not context.set_optimization_profile_async(2, int(rig.stream))
    assert context.get_tensor_address("z") == 0
    assert len(context.get_tensor_shape("z")) == 0
    assert len(rig.notes) == len(rig.said) >= 10
    with pytest.raises(TypeError):
        engine.get_tensor_shape(0)


@pytest.mark.parametrize("shape", [(0,), (9,), (-1,), (2, 2), ()])
def test_a_shape_outside_the_profile_is_refused(shape: tuple[int, ...]) -> None:
    rig, _, _ = twice(FOUR)
    assert not rig.shape("x", *shape)
    assert "cannot have the shape" in rig.said[-1]
    assert tuple(rig.context.get_tensor_shape("y")) == (4,)


def test_only_inputs_are_given_shapes_and_fixed_ones_only_their_own() -> None:
    rig = Rig(SCATTER)
    assert not rig.shape("present", ROWS, WIDTH)
    assert not rig.shape("past", ROWS + 1, WIDTH)
    assert rig.shape("past", ROWS, WIDTH)
    assert rig.context.set_input_shape("rows", [2, WIDTH])
    assert tuple(rig.context.get_tensor_shape("rows")) == (2, WIDTH)
    with pytest.raises(TypeError):
        rig.context.set_input_shape("rows", np.array([2, WIDTH]))


def test_a_pass_without_all_its_shapes_is_refused() -> None:
    rig = Rig()
    rig.bind(x=rig.put(FOUR), y=rig.memory(8))
    assert rig.context.infer_shapes() == ["x"]
    assert tuple(rig.context.get_tensor_shape("y")) == (-1,)
    assert not rig.execute()
    assert "no shape was set for x" in rig.said[-1]


@pytest.mark.parametrize("missing", ["x", "y"])
def test_a_pass_without_all_its_addresses_is_refused(missing: str) -> None:
    rig = Rig()
    assert rig.shape("x", 4)
    rig.bind(**{"y" if missing == "x" else "x": rig.put(FOUR)})
    assert not rig.execute()
    assert f"no address was set for {missing}" in rig.said[-1]


@pytest.mark.parametrize("change", [2, 8, 128, 255])
def test_an_address_that_is_not_aligned_is_refused(change: int) -> None:
    rig, x, _ = twice(FOUR)
    assert not rig.context.set_tensor_address("x", x + change)
    assert not rig.context.set_tensor_address("x", 0)
    assert rig.context.get_tensor_address("x") == x
    assert rig.context.set_tensor_address("x", x + 256)


def test_host_memory_is_no_place_for_a_tensor() -> None:
    rig, _, y = twice(FOUR)
    for flags in (rig.cuda.cudaHostAllocDefault, rig.cuda.cudaHostAllocMapped):
        host = rig.pinned(8, flags)
        with pytest.raises(UNDEFINED, match="not the device's"):
            rig.context.set_tensor_address("x", host.address)
    host.half[:] = 5
    rig.bind(x=rig.ok(rig.cuda.cudaHostGetDevicePointer(host.address, 0)))
    assert rig.execute()
    assert rig.get(y, 4) == [10, 10, 10, 10]


def test_a_tensor_that_does_not_fit_its_memory_is_found() -> None:
    for name in ("x", "y"):
        rig, _, _ = twice(FOUR)
        rig.bind(**{name: rig.put(FOUR[:3])})
        with pytest.raises(UNDEFINED, match=f"{name}: 8 bytes from 0 on do not fit an allocation of 6 bytes"):
            rig.execute()


def test_a_tensor_in_freed_memory_is_found() -> None:
    rig, x, _ = twice(FOUR)
    assert rig.execute()
    rig.ok(rig.cuda.cudaFree(x))
    with pytest.raises(UNDEFINED, match="was freed"):
        rig.execute()
    with pytest.raises(UNDEFINED, match="was freed"):
        rig.wait()
