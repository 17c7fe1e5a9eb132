"""The choice of the engine: which runtime runs a bundle on which device, TensorRT included."""

from __future__ import annotations

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.runtime import loading
from starsd_edge.runtime.engine import Engine
from starsd_edge.runtime.loading import CUDA, JETSON, check_device
from starsd_edge.runtime.onnx_cuda_engine import open_onnx_cuda
from starsd_edge.runtime.tensorrt.opening import open_tensorrt


def open_engine(
    bundle: Bundle,
    device: str = "cpu",
    threads: int | None = None,
    *,
    allow_inexact: bool = False,
    spinning: bool = False,
) -> Engine:
    """Open a bundle's engine: TensorRT on a Jetson, and for bundles of `--runtime tensorrt` on other GPUs; else ONNX
    Runtime.

    Args:
        device: "cpu", "cuda" or "jetson".
        threads: threads of ONNX Runtime's pool, None for one per core.
        allow_inexact: let a bundle with coarse weights verify trees.
        spinning: let idle pool threads spin; only for a process that has the machine to itself.

    Raises:
        UsageError: no such device, or something is not installed.
        EngineError: no driver, no engine that fits this machine, or one that cannot be opened.
    """
    check_device(device)
    is_for_tensorrt = bundle.manifest.graph.tensorrt is not None
    if device == JETSON or (device == CUDA and is_for_tensorrt):
        return open_tensorrt(bundle, device, allow_inexact=allow_inexact)
    if device == CUDA:
        return open_onnx_cuda(bundle, allow_inexact=allow_inexact)
    return loading.open_engine(bundle, device, threads, allow_inexact=allow_inexact, spinning=spinning)
