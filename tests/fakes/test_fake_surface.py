"""The fakes have no name, parameter, number or return value that the real modules do not have, wherever those can be
loaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import typing
from enum import Enum, IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support import fake_cuda_types
from tests.support.core_10_3 import CORE_10_3, ONLY_RTX, SINCE_10_15
from tests.support.fake_context import IExecutionContext, RtxContext
from tests.support.fake_cuda_types import ERROR_TEXTS
from tests.support.fake_cudart import FakeCudart
from tests.support.fake_device import DeviceTraits, FakeDevice
from tests.support.fake_tensorrt import AliasingEngine, ICudaEngine, Runtime, fake_tensorrt
from tests.support.fake_trt_types import Dims, ILogger, Logger
from tests.support.real_signatures import Signature, plain_type, pybind_signatures

HANDLES = {
    Runtime: "Runtime",
    ICudaEngine: "ICudaEngine",
    AliasingEngine: "ICudaEngine",
    IExecutionContext: "IExecutionContext",
    RtxContext: "IExecutionContext",
}
"""The fake's classes, and what the real ones are called."""
LIBRARIES = {
    "tensorrt_rtx": "pip install 'starsd-edge[tensorrt-rtx]'",
    "tensorrt_lean_bindings": "pip install --no-deps tensorrt-lean-cu13-libs tensorrt-lean-cu13-bindings",
    "tensorrt": "pip install tensorrt, or a Jetson's own",
}
CUDA = "cuda.bindings.runtime"


def real(name: str, how: str) -> ModuleType:
    """A real module; the test is not run without it."""
    try:
        module = importlib.import_module(name)
    except (ImportError, OSError) as error:
        pytest.skip(f"not run: no {name} ({how}): {error}")
    if name != CUDA and not hasattr(module, "Runtime"):
        pytest.skip(f"not run: {name} is empty ({how})")
    return module


@pytest.fixture(params=LIBRARIES)
def trt(request: pytest.FixtureRequest) -> ModuleType:
    """Each of NVIDIA's own modules in turn."""
    return real(request.param, LIBRARIES[request.param])


@pytest.fixture
def cuda() -> ModuleType:
    """NVIDIA's own module."""
    return real(CUDA, "pip install cuda-bindings")


def names_of(kind: type) -> dict[str, Any]:
    """What users of a class of the fake see."""
    found = {name: thing for base in reversed(kind.__mro__[:-1]) for name, thing in vars(base).items()}
    return {name: thing for name, thing in found.items() if not name.startswith(("_", "fake_"))}


def signature_of(function: Any) -> Signature:
    """Of a function of the fake."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    optional = sum(p.default is not p.empty for p in parameters)
    return Signature(tuple(p.name for p in parameters), optional, plain_type(function.__annotations__["return"]))


@pytest.mark.parametrize("kind", HANDLES)
def test_tensorrts_own_classes_have_every_name_and_parameter(trt: ModuleType, kind: type) -> None:
    own, names = getattr(trt, HANDLES[kind]), names_of(kind)
    if trt.__name__ != "tensorrt_rtx":
        names = {name: thing for name, thing in names.items() if name not in ONLY_RTX}
    assert len(names) >= 2
    for name, thing in names.items():
        theirs = getattr(own, name, None)
        assert theirs is not None, f"{own} has no {name}"
        assert isinstance(theirs, property) == isinstance(thing, property), name
        if isinstance(thing, property):
            assert thing.fset is None or theirs.fset is not None, name
        else:
            assert comparable(signature_of(thing)) in map(comparable, pybind_signatures(theirs)), name


def comparable(signature: Signature) -> Signature:
    """pybind's `Dims` are written as sequences in some versions, and its enumerations' values are not compared."""
    return Signature(signature.parameters, signature.optional, signature.returns.replace("sequence", "list"))


def test_a_signature_that_drifts_is_told() -> None:
    class Drifted(ICudaEngine):
        def get_tensor_name(self, number: int) -> str | None:  # the real one says `index`
            return super().get_tensor_name(number)

    own = real("tensorrt_rtx", LIBRARIES["tensorrt_rtx"])
    for function, fits in ((ICudaEngine.get_tensor_name, True), (Drifted.get_tensor_name, False)):
        found = comparable(signature_of(function)) in map(
            comparable, pybind_signatures(own.ICudaEngine.get_tensor_name)
        )
        assert found is fits


def test_tensorrts_own_module_has_every_name_and_number(trt: ModuleType) -> None:
    fake = fake_tensorrt(FakeDevice())
    names = [name for name in vars(fake) if not name.startswith("_")]
    assert len(names) > 10
    for name in names:
        ours, theirs = getattr(fake, name), getattr(trt, name)
        if isinstance(ours, type) and issubclass(ours, Enum):
            assert {m.name: m.value for m in ours}.items() <= {k: int(v) for k, v in theirs.__members__.items()}.items()
    members = trt.ILogger.Severity.__members__
    assert {m.name: int(m) for m in ILogger.Severity} == {name: int(value) for name, value in members.items()}
    assert trt.__version__


def test_tensorrts_own_shapes_and_loggers_behave_like_the_fakes(trt: ModuleType) -> None:
    kind: Any
    for kind in (trt.Dims, Dims):
        shape = kind((2, 3))
        assert (len(shape), list(shape), shape[-1], tuple(shape)) == (2, [2, 3], 3, (2, 3))
        assert shape == (2, 3)
        assert shape == [2, 3]
        assert not isinstance(shape, tuple)
        with pytest.raises(TypeError):
            _ = shape == 2
        with pytest.raises(IndexError):
            _ = shape[2]
        with pytest.raises(TypeError):
            hash(shape)
    for base in (trt.ILogger, ILogger):
        derived: Any = type("Log", (base,), {})
        assert isinstance(derived(), base)
    assert int(trt.Logger.WARNING) == int(Logger.WARNING)


def test_an_engine_of_10_3_has_the_core_and_no_more() -> None:
    assert {kind.__name__: set(names_of(kind)) for kind in (Runtime, ICudaEngine, IExecutionContext)} == CORE_10_3
    assert set(names_of(AliasingEngine)) - CORE_10_3["ICudaEngine"] == SINCE_10_15
    assert set(names_of(RtxContext)) - CORE_10_3["IExecutionContext"] == ONLY_RTX


def test_the_core_is_in_the_binary_of_10_3() -> None:
    spec = importlib.util.find_spec("tensorrt_bindings")
    place = Path(spec.origin).parent if spec and spec.origin else None
    versions = list(place.parent.glob("tensorrt_cu12_bindings-10.3.*")) if place else []
    if place is None or not versions:
        pytest.skip("not run: no bindings of 10.3 (pip install --no-deps tensorrt-cu12-bindings==10.3.0)")
    binary = (place / "tensorrt.so").read_bytes()
    for name in set().union(*CORE_10_3.values()):
        assert name.encode() + b"\0" in binary, name
    for name in SINCE_10_15 | ONLY_RTX:
        assert name.encode() not in binary


def kinds() -> list[type[IntEnum]]:
    found = vars(fake_cuda_types).values()
    return [thing for thing in found if isinstance(thing, type) and issubclass(thing, IntEnum) and len(thing)]


def functions() -> dict[str, Any]:
    return {name: thing for name, thing in names_of(FakeCudart).items() if callable(thing)}


def test_cudas_own_functions_have_every_parameter(cuda: ModuleType) -> None:
    assert len(functions()) > 30
    for name, function in functions().items():
        ours = [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]
        assert list(inspect.signature(getattr(cuda, name)).parameters) == ours, name


def test_cudas_own_numbers_handles_and_words_are_the_same(cuda: ModuleType) -> None:
    for kind in kinds():
        own = getattr(cuda, kind.__name__)
        assert {member.name: int(member) for member in kind} == {m.name: int(getattr(own, m.name)) for m in kind}
    constants = {name: thing for name, thing in names_of(FakeCudart).items() if isinstance(thing, int)}
    assert len(constants) > 5
    assert {name: getattr(cuda, name) for name in constants} == constants
    for error, text in ERROR_TEXTS.items():
        assert cuda.cudaGetErrorString(cuda.cudaError_t(int(error)))[1] == text
    for name in ("cudaStream_t", "cudaEvent_t", "cudaGraph_t", "cudaGraphExec_t"):
        for kind in (getattr(cuda, name), getattr(fake_cuda_types, name)):
            handle = kind(5)
            assert (int(handle), handle == kind(5), handle == kind(6), bool(kind(0))) == (5, True, False, True)
            assert not isinstance(handle, int)


def answers(function: Any) -> int:
    """How many values a function of the fake gives."""
    return len(typing.get_args(inspect.signature(function, eval_str=True).return_annotation))


def test_cudas_own_functions_give_as_many_values(cuda: ModuleType) -> None:
    if cuda.cudaGetDeviceCount()[0] != cuda.cudaError_t.cudaErrorInsufficientDriver:
        pytest.skip("not run: there is a driver, and these calls would be made")
    members = {
        "kind": cuda.cudaMemcpyKind.cudaMemcpyDeviceToDevice,
        "mode": cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal,
        "attr": cuda.cudaDeviceAttr.cudaDevAttrIntegrated,
    }
    for name, function in functions().items():
        if name.startswith("cudaGetError"):
            continue  # they need no driver
        parameters = [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]
        result = getattr(cuda, name)(*(members.get(parameter, 0) for parameter in parameters))
        assert (len(result), result[0].name) == (answers(function), "cudaErrorInsufficientDriver"), name
        assert all(value is None for value in result[1:]), name


def test_the_fake_gives_as_many_values_as_it_says() -> None:
    fake = FakeCudart(FakeDevice(DeviceTraits(has_driver=False)))
    for name, arguments in (("cudaMalloc", (8,)), ("cudaSetDevice", (0,)), ("cudaStreamCreateWithFlags", (1,))):
        assert len(getattr(fake, name)(*arguments)) == answers(functions()[name])
