"""An engine on the GPU of this machine, built and opened as `starsd-edge` does it."""

from __future__ import annotations

import pytest

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.errors import UsageError
from starsd_edge.runtime.cuda_driver import cuda_devices
from starsd_edge.runtime.engine import Engine
from starsd_export.engines.engine_export import EngineOptions, export_engine
from starsd_export.engines.libraries import COMPUTE_CAPABILITIES, ENGINES, open_library
from starsd_jetson.engines import open_engine


def engine_here(bundle: Bundle) -> Engine:
    """TensorRT's where it is installed, else TensorRT-RTX's if it builds for this kind of GPU."""
    kind = cuda_devices()[0].compute_capability
    for name in ENGINES:
        try:
            open_library(name)
        except UsageError:
            continue
        if name == "tensorrt" or kind in COMPUTE_CAPABILITIES:
            export_engine(bundle, EngineOptions(name), bundle.path / "engines" / name)
            return open_engine(bundle, "cuda")
    pytest.skip(f"not run: no TensorRT, and no TensorRT-RTX for {kind}")
