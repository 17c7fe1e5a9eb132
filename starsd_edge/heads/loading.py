"""Which engine runs a draft bundle's head, and where.

On a CPU that is ONNX Runtime with the bundle's own weights, the fastest there; torch runs a head on a GPU, and on a CPU
where another precision is asked for.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable

from starsd_edge.errors import UsageError, install_extra
from starsd_edge.heads.draft_bundle import GRAPH_NAME, DraftBundle, embedding_rows
from starsd_edge.heads.engine import HeadEngine

AUTO = "auto"
TORCH_PARTS = ("torch", "safetensors")
"""Packages without which torch runs no head."""
CPU, CUDA = "cpu", "cuda"
FLOAT32, FLOAT16 = "float32", "float16"


def open_head(bundle: DraftBundle, threads: int | None = None, device: str = CPU, precision: str = AUTO) -> HeadEngine:
    """Load the head.

    Args:
        threads: on a CPU, None for one per core.
        device: "cpu", "cuda", or "auto": a GPU where a driver and all that torch needs are there.
        precision: "float32", "float16", "bfloat16", or "auto": float16 on a GPU, the bundle's own weights on a CPU.

    Raises:
        UsageError: what was asked for is not on this machine.
        BundleError: a file does not fit the manifest.
        EngineError: the graph cannot be loaded.
    """
    found, dtype = choose(bundle.manifest.weights, device, precision, cuda_is_likely)
    if dtype is None:
        return _open_onnx(bundle, threads)
    _require_torch(f"--device {CUDA}" if found == CUDA else f"--draft-precision {dtype} on a CPU")
    from starsd_edge.heads.torch_engine import open_torch_head

    return open_torch_head(bundle, found, dtype, threads)


def choose(weights: str, device: str, precision: str, cuda: Callable[[], bool]) -> tuple[str, str | None]:
    """The device, and the precision for torch; None where ONNX Runtime runs the bundle's graph.

    Args:
        weights: of the bundle's graph, "fp32" or "int8".
        cuda: whether there is a GPU; asked for only where it matters.
    """
    if device == AUTO:
        device = CUDA if cuda() else CPU
    if device == CUDA:
        return CUDA, FLOAT16 if precision == AUTO else precision
    own = precision == AUTO or (precision == FLOAT32 and weights == "fp32")
    return CPU, None if own else precision


def cuda_is_likely() -> bool:
    """Whether a head would find NVIDIA's driver, torch and what reads its weights here. To import torch only in order
    to ask takes seconds.
    """
    if _missing_for_torch():
        return False
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    import torch

    return bool(torch.cuda.is_available())


def _open_onnx(bundle: DraftBundle, threads: int | None) -> HeadEngine:
    from starsd_edge.heads.engine import OnnxHeadEngine
    from starsd_edge.runtime.onnx_engine import open_session

    session = open_session(bundle.path / GRAPH_NAME, threads, False)
    return OnnxHeadEngine(session, bundle.manifest.spec, embedding_rows(bundle))


def _require_torch(wish: str) -> None:
    missing = _missing_for_torch()
    if missing:
        raise UsageError(f"{wish} needs {' and '.join(missing)}: {install_extra('export')}, or leave that option out")


def _missing_for_torch() -> list[str]:
    return [name for name in TORCH_PARTS if importlib.util.find_spec(name) is None]
