"""Which engine runs a bundle on which device."""

from __future__ import annotations

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.errors import UsageError
from starsd_edge.runtime.engine import Engine

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
    from starsd_edge.runtime.onnx_engine import OnnxEngine, open_session

    session = open_session(bundle.path / bundle.manifest.graph.file, threads, spinning)
    return OnnxEngine(session, bundle.manifest, allow_inexact)
