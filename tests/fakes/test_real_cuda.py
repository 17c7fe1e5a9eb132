"""The TensorRT engine's own calls of CUDA, made once more on NVIDIA's module, as far as that goes without a driver: it
takes every argument as it is, and says what is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.errors import EngineError
from starsd_edge.runtime.cuda import Device
from starsd_edge.runtime.engine import Engine, causal_mask
from tests.support.fake_cudart import FakeCudart

IDS = np.array([5, 9, 17, 3, 11])
Call = tuple[str, tuple[Any, ...]]


@pytest.fixture
def cuda() -> ModuleType:
    """NVIDIA's own module, on a machine without a driver: with one, these calls would be done."""
    why = "not run: no cuda-bindings (pip install cuda-bindings)"
    module: ModuleType = pytest.importorskip("cuda.bindings.runtime", reason=why)
    if module.cudaGetDeviceCount()[0] != module.cudaError_t.cudaErrorInsufficientDriver:
        pytest.skip("not run: there is a driver, and these calls would be done")
    return module


class Recording(FakeCudart):
    """The fake, with a note of every call."""

    calls: list[Call]

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.startswith("cuda") or isinstance(found, type) or not callable(found):
            return found
        calls: list[Call] = self.__dict__.setdefault("calls", [])

        def call(*arguments: Any) -> Any:
            calls.append((name, arguments))
            return found(*arguments)

        return call


def generate(engine: Engine) -> None:
    """A prompt, trees of which a path with a hole is kept, one shape often enough to be recorded, and a rollback."""
    seq = engine.open(64)
    for _ in range(5):
        engine.forward(seq, IDS, seq.length + np.arange(len(IDS)), causal_mask(len(IDS)))
        engine.commit(seq, [0, 2, 3])
    engine.truncate(seq, 4)
    engine.forward(seq, IDS[:1], np.array([4]), causal_mask(1))


def translated(cuda: ModuleType, argument: Any) -> Any:
    """An argument of the fake as one of the real module: its own enumeration, its own kind of handle."""
    name = type(argument).__name__
    if isinstance(argument, Enum):
        return getattr(getattr(cuda, name), argument.name)
    return getattr(cuda, name)(int(argument)) if name.startswith("cuda") else argument


@pytest.mark.export
@pytest.mark.parametrize("shares_memory", [True, False])
@pytest.mark.parametrize("strategy", ["append", "inplace"])
def test_every_call_is_taken_by_the_real_module(
    cuda: ModuleType, tiny_tensorrt: dict[str, Bundle], tmp_path: Path, strategy: str, shares_memory: bool
) -> None:
    support = pytest.importorskip("tests.support.tiny_tensorrt", reason="needs torch")
    opened = support.OnFake(
        tiny_tensorrt[strategy], tmp_path / "engine", support.Board(shares_memory=shares_memory), Recording
    )
    generate(opened.engine)
    opened.require_no_refusal()
    calls: list[Call] = opened.cuda.calls
    expected = {"cudaSetDevice", "cudaHostAlloc", "cudaMalloc", "cudaMemsetAsync", "cudaStreamSynchronize"}
    expected |= {"cudaGraphLaunch"} if strategy == "inplace" else {"cudaMemcpy2DAsync"}
    expected |= {"cudaHostGetDevicePointer"} if shares_memory else {"cudaMemcpyAsync"}
    assert expected <= {name for name, _ in calls}
    for name, arguments in calls:
        function: Callable[..., tuple[Any, ...]] = getattr(cuda, name)
        status, *values = function(*(translated(cuda, argument) for argument in arguments))
        assert (status.name, set(values) - {None}) == ("cudaErrorInsufficientDriver", set()), (name, arguments)


def test_a_machine_without_a_driver_is_one_line_through_the_real_module(cuda: ModuleType) -> None:
    with pytest.raises(EngineError, match=r"is made for a newer CUDA \(\d+\.\d+\) than this machine's NVIDIA driver"):
        Device(cuda)
