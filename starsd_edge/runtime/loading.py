"""Which engine runs a bundle on which device: the one place where a target and a hub open a language model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.errors import UsageError
from starsd_edge.runtime.engine import Engine

if TYPE_CHECKING:
    from starsd_edge.runtime.onnx_engine import OnnxEngine, OnnxInplaceEngine

CPU, CUDA, JETSON = "cpu", "cuda", "jetson"
DEVICES = (CPU, CUDA, JETSON)


def check_device(device: str) -> None:
    """Raises UsageError if there is no such device."""
    if device not in DEVICES:
        raise UsageError(f"no device {device!r}: --device is cpu, cuda or jetson")


def open_engine(
    bundle: Bundle,
    device: str = CPU,
    threads: int | None = None,
    *,
    allow_inexact: bool = False,
    spinning: bool = False,
    kv_on_demand: bool = False,
) -> Engine:
    """Open a bundle's engine.

    "jetson" takes an engine of TensorRT. "cuda" takes one of TensorRT or TensorRT-RTX for a bundle of `--runtime
    tensorrt`, else ONNX Runtime on the first GPU. Both keep the KV there. "cpu" takes ONNX Runtime.

    Args:
        device: one of `DEVICES`.
        threads: CPU threads of ONNX Runtime's pool, None for one per core.
        allow_inexact: let a bundle with coarse weights verify trees.
        spinning: let idle pool threads spin; only for a process that has the machine to itself.
        kv_on_demand: take a GPU's memory for KV as sequences grow, not all of it when they are opened. For many
            sequences at once, of which few get long. A commit may then raise `GpuMemoryError`.

    Raises:
        UsageError: no such device, or something is not installed.
        EngineError: no driver, no engine that fits this machine, or one that cannot be opened.
    """
    check_device(device)
    if device == JETSON or (device == CUDA and bundle.manifest.graph.tensorrt is not None):
        from starsd_edge.runtime.tensorrt.opening import open_tensorrt

        return open_tensorrt(bundle, device, allow_inexact=allow_inexact, kv_on_demand=kv_on_demand)
    if device == CUDA:
        from starsd_edge.runtime.onnx_cuda_engine import open_onnx_cuda

        return open_onnx_cuda(bundle, allow_inexact=allow_inexact, kv_on_demand=kv_on_demand)
    file = bundle.path / bundle.manifest.graph.file
    return open_graph(file, bundle.manifest, threads, allow_inexact=allow_inexact, spinning=spinning)


def open_graph(
    file: Path,
    manifest: Manifest,
    threads: int | None = None,
    *,
    allow_inexact: bool = False,
    spinning: bool = False,
) -> OnnxEngine | OnnxInplaceEngine:
    """Load a graph on ONNX Runtime for CPUs, by the KV strategy that its manifest names; arguments as of `open_engine`.

    Raises:
        EngineError: the graph cannot be loaded.
    """
    from starsd_edge.runtime.onnx_engine import OnnxEngine, OnnxInplaceEngine, open_session

    engine = OnnxInplaceEngine if manifest.graph.kv_strategy == "inplace" else OnnxEngine
    return engine(open_session(file, threads, spinning), manifest, allow_inexact)
