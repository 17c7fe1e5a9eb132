"""The fake of cuda-python has no name, parameter, number or return value that the real module does not have."""

from __future__ import annotations

import inspect
import typing
from enum import IntEnum
from types import ModuleType
from typing import Any

import pytest

from tests.support import fake_cuda_types
from tests.support.fake_cuda_types import ERROR_TEXTS
from tests.support.fake_cudart import FakeCudart
from tests.support.fake_device import DeviceTraits, FakeDevice


@pytest.fixture
def cuda() -> ModuleType:
    """NVIDIA's own module."""
    why = "not run: no cuda-bindings (pip install cuda-bindings)"
    module: ModuleType = pytest.importorskip("cuda.bindings.runtime", reason=why)
    return module


def kinds() -> list[type[IntEnum]]:
    found = vars(fake_cuda_types).values()
    return [thing for thing in found if isinstance(thing, type) and issubclass(thing, IntEnum) and len(thing)]


def names() -> dict[str, Any]:
    found = {name: thing for base in reversed(FakeCudart.__mro__[:-1]) for name, thing in vars(base).items()}
    return {name: thing for name, thing in found.items() if not name.startswith("_")}


def functions() -> dict[str, Any]:
    return {name: thing for name, thing in names().items() if callable(thing)}


def test_cudas_own_functions_have_every_parameter(cuda: ModuleType) -> None:
    assert len(functions()) > 30
    for name, function in functions().items():
        ours = [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]
        assert list(inspect.signature(getattr(cuda, name)).parameters) == ours, name


def test_cudas_own_numbers_handles_and_words_are_the_same(cuda: ModuleType) -> None:
    for kind in kinds():
        own = getattr(cuda, kind.__name__)
        assert {member.name: int(member) for member in kind} == {m.name: int(getattr(own, m.name)) for m in kind}
    constants = {name: thing for name, thing in names().items() if isinstance(thing, int)}
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
        if name.startswith("cudaGetError") or name.endswith("GetVersion"):
            continue  # they need no driver
        parameters = [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]
        result = getattr(cuda, name)(*(members.get(parameter, 0) for parameter in parameters))
        assert (len(result), result[0].name) == (answers(function), "cudaErrorInsufficientDriver"), name
        assert all(value is None for value in result[1:]), name


def test_the_fake_gives_as_many_values_as_it_says() -> None:
    fake = FakeCudart(FakeDevice(DeviceTraits(has_driver=False)))
    for name, arguments in (("cudaMalloc", (8,)), ("cudaSetDevice", (0,)), ("cudaStreamCreateWithFlags", (1,))):
        assert len(getattr(fake, name)(*arguments)) == answers(functions()[name])
