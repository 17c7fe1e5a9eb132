"""Plans, runtimes and engines of the fake TensorRT: which are taken, and who has to be kept."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tests.support.fake_device import DeviceTraits
from tests.support.fake_faults import UndefinedBehaviourError
from tests.support.fake_plan import PlanTensor, encode_plan
from tests.support.fake_rig import SCATTER, TWICE, VERSION, WORKSPACE_BYTES, Rig, changed, twice
from tests.support.fake_tensorrt import fake_tensorrt

FOUR = np.arange(4, dtype=np.float16)
UNDEFINED = UndefinedBehaviourError


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
    with pytest.raises(TypeError, match="incompatible"):
        trt.Runtime(None)


def test_a_plan_whose_program_gives_something_else_is_found() -> None:
    tensors = [*TWICE.tensors[:1], PlanTensor("y", False, "FLOAT", ("n",))]
    rig = Rig(changed(TWICE, tensors=tensors))
    assert rig.shape("x", 4)
    rig.bind(x=rig.put(FOUR), y=rig.memory(16))
    assert rig.execute()
    with pytest.raises(UNDEFINED, match="the plan says that y is"):
        rig.wait()


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
