"""Which engine runs a bundle on which device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.errors import UsageError
from starsd_edge.runtime.engine import Engine

if TYPE_CHECKING:
    from starsd_edge.runtime.onnx_engine import OnnxEngine
    from starsd_edge.runtime.onnx_inplace import OnnxInplaceEngine

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
) -> Engine:
    """Load a bundle's graph on ONNX Runtime, with its KV on the host. `starsd_jetson.engines` knows engines of TensorRT
    too, and keeps KV on a GPU.

    Args:
        device: "cpu" or "cuda".
        threads: threads of the runtime's pool, None for one per core.
        allow_inexact: let a bundle with coarse weights verify trees.
        spinning: let idle pool threads spin; only for a process that has the machine to itself.

    Raises:
        UsageError: no such device, or not for ONNX Runtime.
        EngineError: the graph cannot be loaded, or the GPU cannot be used.
    """
    check_device(device)
    if device == JETSON:
        raise UsageError("--device jetson runs engines of TensorRT: this command knows cpu and cuda alone")
    file = bundle.path / bundle.manifest.graph.file
    if device == CUDA:
        from starsd_edge.runtime.onnx_cuda_engine import open_cuda_session
        from starsd_edge.runtime.onnx_engine import OnnxEngine

        return OnnxEngine(open_cuda_session(file), bundle.manifest, allow_inexact)
    return open_graph(file, bundle.manifest, threads, allow_inexact=allow_inexact, spinning=spinning)


def open_graph(
    file: Path,
    manifest: Manifest,
    threads: int | None = None,
    *,
    allow_inexact: bool = False,
    spinning: bool = False,
) -> OnnxEngine | OnnxInplaceEngine:
    """Load a graph on ONNX Runtime, by the KV strategy that its manifest names; arguments as of `open_engine`.

    Raises:
        EngineError: the graph cannot be loaded.
    """
    from starsd_edge.runtime.onnx_engine import OnnxEngine, open_session
    from starsd_edge.runtime.onnx_inplace import OnnxInplaceEngine

    engine = OnnxInplaceEngine if manifest.graph.kv_strategy == "inplace" else OnnxEngine
    return engine(open_session(file, threads, spinning), manifest, allow_inexact)
