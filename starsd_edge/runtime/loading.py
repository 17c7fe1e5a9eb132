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

LATER_DEVICES = ("cuda", "jetson")


def check_device(device: str) -> None:
    """Whether a model can run on this device.

    Raises:
        UsageError: no such device, or not in this version.
    """
    if device in LATER_DEVICES:
        raise UsageError(f"--device {device} comes with a later version of starsd-edge: use --device cpu for now")
    if device != "cpu":
        raise UsageError(f"no device {device!r}: use --device cpu")


def open_engine(
    bundle: Bundle,
    device: str = "cpu",
    threads: int | None = None,
    *,
    allow_inexact: bool = False,
    spinning: bool = False,
) -> Engine:
    """Load a bundle's graph.

    Args:
        device: "cpu"; "cuda" and "jetson" come with a later version.
        threads: threads of the runtime's pool, None for one per core.
        allow_inexact: let a bundle with coarse weights verify trees.
        spinning: let idle pool threads spin; only for a process that has the machine to itself.

    Raises:
        UsageError: no such device, or not in this version.
        EngineError: the graph cannot be loaded.
    """
    check_device(device)
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
    """Load a graph on ONNX Runtime, by the KV strategy that its manifest names; arguments as of `open_engine`.

    Raises:
        EngineError: the graph cannot be loaded.
    """
    from starsd_edge.runtime.onnx_engine import OnnxEngine, open_session
    from starsd_edge.runtime.onnx_inplace import OnnxInplaceEngine

    engine = OnnxInplaceEngine if manifest.graph.kv_strategy == "inplace" else OnnxEngine
    return engine(open_session(file, threads, spinning), manifest, allow_inexact)
