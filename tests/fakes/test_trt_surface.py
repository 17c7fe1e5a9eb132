"""The fake TensorRT has no name, parameter, number or return value that the real classes do not have: those of each
generation that is on this machine.
"""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any

import pytest

from tests.support.core_10_3 import CORE_10_3, ONLY_RTX, SINCE_10_15
from tests.support.fake_context import IExecutionContext, RtxContext
from tests.support.fake_device import FakeDevice
from tests.support.fake_tensorrt import AliasingEngine, ICudaEngine, Runtime, fake_tensorrt
from tests.support.fake_trt_types import Dims, ILogger, Logger
from tests.support.real_bindings import BINDINGS, Binding
from tests.support.real_signatures import Signature, plain_type

HANDLES = {
    Runtime: "Runtime",
    ICudaEngine: "ICudaEngine",
    AliasingEngine: "ICudaEngine",
    IExecutionContext: "IExecutionContext",
    RtxContext: "IExecutionContext",
}
"""The fake's classes, and what the real ones are called."""
EACH = pytest.mark.parametrize("binding", [pytest.param(binding, id=binding.name) for binding in BINDINGS])


def names_of(kind: type) -> dict[str, Any]:
    """What users of a class of the fake see."""
    found = {name: thing for base in reversed(kind.__mro__[:-1]) for name, thing in vars(base).items()}
    return {name: thing for name, thing in found.items() if not name.startswith(("_", "fake_"))}


def signature_of(function: Any) -> Signature:
    """Of a function of the fake."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    optional = sum(p.default is not p.empty for p in parameters)
    return Signature([p.name for p in parameters], optional, plain_type(function.__annotations__["return"]))


@EACH
def test_the_real_classes_have_every_name_and_parameter(binding: Binding) -> None:
    surface, is_rtx = binding.surface(), binding.module.startswith("tensorrt_rtx")
    for kind, real in HANDLES.items():
        for name, thing in names_of(kind).items():
            if name in ONLY_RTX and not is_rtx:
                continue
            theirs = surface.classes[real].get(name)
            assert theirs is not None, f"{surface.version} has no {real}.{name}"
            if isinstance(thing, property):
                assert (theirs.is_property, thing.fset) == (True, None), name
            else:
                assert signature_of(thing) in theirs.overloads, name


@EACH
def test_the_real_modules_have_every_name_and_number(binding: Binding) -> None:
    surface, fake = binding.surface(), fake_tensorrt(FakeDevice())
    names = {name for name in vars(fake) if not name.startswith("_")}
    assert len(names) > 10
    assert names <= set(surface.names)
    enumerations = {name: getattr(fake, name) for name in names} | {"Severity": ILogger.Severity}
    for name, kind in enumerations.items():
        if isinstance(kind, type) and issubclass(kind, Enum):
            assert {member.name: member.value for member in kind}.items() <= surface.enumerations[name].items(), name


def test_a_signature_that_drifts_is_told() -> None:
    class Drifted(ICudaEngine):
        def get_tensor_name(self, number: int) -> str | None:  # the real one says `index`
            return super().get_tensor_name(number)

        def get_tensor_location(self, name: str) -> str:  # type: ignore[override]
            return str(super().get_tensor_location(name))

    theirs = BINDINGS[0].surface().classes["ICudaEngine"]
    for name in ("get_tensor_name", "get_tensor_location"):
        assert signature_of(getattr(ICudaEngine, name)) in theirs[name].overloads
        assert signature_of(getattr(Drifted, name)) not in theirs[name].overloads


def test_real_shapes_and_loggers_behave_like_the_fakes() -> None:
    trt = pytest.importorskip("tensorrt_rtx", reason="not run: no tensorrt_rtx (starsd-edge[tensorrt-rtx])")
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
    oldest = Binding("tensorrt_bindings", "10.3.0", "tensorrt-cu12-bindings==10.3.0")
    file = oldest.place / "tensorrt_bindings" / "tensorrt.so"
    if not file.is_file():
        pytest.skip(f"not run: no {oldest.name} ({oldest.how_to_get})")
    binary = file.read_bytes()  # it cannot be imported without its library, which no index has
    for name in set().union(*CORE_10_3.values()):
        assert name.encode() + b"\0" in binary, name
    for name in SINCE_10_15 | ONLY_RTX:
        assert name.encode() not in binary
