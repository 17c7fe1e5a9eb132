"""What starsd-edge calls of TensorRT and CUDA: nothing that TensorRT 10.3 or the fakes do not have."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import starsd_edge.runtime
from tests.support import fake_cuda_types
from tests.support.core_10_3 import CORE_10_3, ONLY_RTX, SINCE_10_15
from tests.support.fake_cudart import FakeCudart
from tests.support.fake_device import FakeDevice

ROOM = Path(starsd_edge.runtime.__file__).parent
SOURCES = sorted([*ROOM.glob("tensorrt/*.py"), *ROOM.glob("cuda*.py")])


def used_names() -> set[str]:
    """Every attribute that the TensorRT engine, and what it rests on, reads; and every word that may name one."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in SOURCES]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    words = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)} | words


def test_tensorrt_10_3_has_all_that_is_used_of_it() -> None:
    trt = pytest.importorskip("tensorrt_rtx", reason="not run: no tensorrt_rtx (pip install '.[tensorrt-rtx]')")
    known = {name for kind in (trt.Runtime, trt.ICudaEngine, trt.IExecutionContext) for name in dir(kind)}
    used = {name for name in used_names() & known if not name.startswith("_")} - {"name"}
    assert {"execute_async_v3", "set_tensor_address", "deserialize_cuda_engine"} <= used
    assert used <= set().union(*CORE_10_3.values()) | SINCE_10_15 | ONLY_RTX


def test_the_fake_has_all_that_is_used_of_cuda() -> None:
    kinds = [thing for thing in vars(fake_cuda_types).values() if hasattr(thing, "__members__")]
    known = {*dir(FakeCudart(FakeDevice())), *(member for kind in kinds for member in kind.__members__)}
    used = {name for name in used_names() if name.isidentifier() and name.startswith("cuda") and name[4:5].isupper()}
    assert {"cudaMalloc", "cudaStreamBeginCapture", "cudaMemcpy2DAsync", "cudaSuccess"} <= used
    assert used <= known
