"""The fake TensorRT: a right program runs, and each kind of wrong one is told."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tests.support.fake_device import DeviceTraits
from tests.support.fake_faults import UndefinedBehaviourError
from tests.support.fake_plan import PlanTensor, encode_plan
from tests.support.fake_rig import ROWS, SCATTER, TWICE, VERSION, WIDTH, WORKSPACE_BYTES, Rig, changed, twice
from tests.support.fake_tensorrt import fake_tensorrt

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


def test_inputs_that_do_not_agree_are_refused() -> None:
    rig = scatter(Rig(SCATTER))
    assert rig.shape("shown", 3)
    assert not rig.execute()
    assert "t is 3 in shown and 2 elsewhere" in rig.said[-1]
    with pytest.raises(RuntimeError, match="shape inference failed"):
        rig.context.infer_shapes()


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


def test_a_plan_whose_program_gives_something_else_is_found() -> None:
    tensors = [*TWICE.tensors[:1], PlanTensor("y", False, "FLOAT", ("n",))]
    rig = Rig(changed(TWICE, tensors=tensors))
    assert rig.shape("x", 4)
    rig.bind(x=rig.put(FOUR), y=rig.memory(16))
    assert rig.execute()
    with pytest.raises(UNDEFINED, match="the plan says that y is"):
        rig.wait()


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


@pytest.mark.parametrize(
    ("lost", "said"),
    [("log", "whose logger is gone"), ("runtime", "whose runtime is gone"), ("engine", "whose engine is gone")],
)
def test_whoever_loses_what_is_still_needed_is_told(lost: str, said: str) -> None:
    rig, _, _ = twice(FOUR)
    assert rig.execute()
    setattr(rig, lost, None)
    gc.collect()
    with pytest.raises(UNDEFINED, match=said):
        rig.wait()
    with pytest.raises(UNDEFINED, match=said):
        rig.execute()


def test_a_context_is_kept_until_its_passes_are_done() -> None:
    rig, _, _ = twice(FOUR)
    assert rig.execute()
    rig.context = None
    gc.collect()
    with pytest.raises(UNDEFINED, match="a context is gone whose pass was not done"):
        rig.wait()


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


def opened(content: bytes, version: str = VERSION, traits: DeviceTraits | None = None) -> list[str]:
    """What is said when this is opened as a plan, which has to fail."""
    rig = Rig(traits=traits)
    runtime = fake_tensorrt(rig.device, version).Runtime(rig.log)
    assert runtime.deserialize_cuda_engine(memoryview(content)) is None
    return rig.said


def test_plans_that_are_damaged_or_of_elsewhere_are_not_opened() -> None:
    whole = encode_plan(TWICE)
    assert "magic tag" in opened(b"nonsense")[-1]
    assert "truncated" in opened(whole[:-5])[-1]
    assert "built for 10.16.2.10, and this is 10.16.2.11" in opened(whole, "10.16.2.11")[-1]
    assert "built for sm87, and this is sm110" in opened(whole, traits=DeviceTraits(compute_capability=(11, 0)))[-1]
    rtx = encode_plan(changed(TWICE, library="tensorrt_rtx"))
    assert "built for tensorrt_rtx, and this is tensorrt" in opened(rtx)[-1]
    assert Rig(traits=DeviceTraits(memory_bytes=4095)).engine is None


def test_an_old_version_knows_no_aliases() -> None:
    old = "10.3.0.30"
    aliased = encode_plan(changed(SCATTER, version=old))
    assert "not known to this version" in opened(aliased, old)[-1]
    assert not hasattr(Rig(version=old).engine, "get_aliased_input_tensor")
    assert hasattr(Rig(version="11.4.0.106").engine, "get_aliased_input_tensor")


def test_a_context_that_finds_no_memory_is_none() -> None:
    rig = Rig(traits=DeviceTraits(memory_bytes=TWICE.weight_bytes + WORKSPACE_BYTES + 100))
    kinds = rig.trt.ExecutionContextAllocationStrategy
    assert rig.context is not None
    assert rig.engine.create_execution_context(kinds.STATIC) is None
    assert rig.engine.create_execution_context(kinds.USER_MANAGED) is not None
    rig.context = None
    gc.collect()
    assert rig.engine.create_execution_context() is not None
    with pytest.raises(TypeError):
        rig.engine.create_execution_context(2)


def test_a_runtime_without_a_driver_ends_the_process() -> None:
    rig = Rig()
    rig.device.traits = DeviceTraits(has_driver=False)
    runtime = rig.trt.Runtime(rig.log)
    with pytest.raises(UNDEFINED, match="without a driver"):
        runtime.deserialize_cuda_engine(encode_plan(TWICE))


def test_a_runtime_wants_a_logger_that_was_made_as_one() -> None:
    trt = Rig().trt

    class Forgetful(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            """Nothing of its base."""

    with pytest.raises(TypeError, match="must be called"):
        trt.Runtime(Forgetful())
    with pytest.raises(TypeError):
        trt.Runtime(None)


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
