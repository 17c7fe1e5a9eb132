"""Bundles of a tiny model for TensorRT, one of each KV strategy, and engines of them on the fake TensorRT."""

from __future__ import annotations

from pathlib import Path

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.engine_manifest import require_plan
from starsd_export.pipeline import ExportOptions, export_bundle
from starsd_export.tensorrt_graph import KV_STRATEGIES, TensorrtOptions
from starsd_jetson.tensorrt.engine import TensorrtEngine
from tests.support.fake_cudart import FakeCudart
from tests.support.fake_device import FakeDevice
from tests.support.fake_engine import FakeBuild, write_fake_engine
from tests.support.fake_tensorrt import fake_tensorrt
from tests.support.tiny_llama import write_safetensors

CONTEXT = 192


def export_tiny_tensorrt(place: Path) -> dict[str, Bundle]:
    """By KV strategy, with float16 weights."""
    checkpoint = write_safetensors(place / "checkpoint")
    return {
        strategy: export_bundle(
            checkpoint,
            place / strategy,
            ExportOptions("fp16", tensorrt=TensorrtOptions(kv_strategy=strategy, context=CONTEXT)),
        )
        for strategy in KV_STRATEGIES
    }


def open_on_fake(bundle: Bundle, place: Path, device: FakeDevice, version: str = FakeBuild.version) -> TensorrtEngine:
    """The TensorRT engine of a bundle on a device that is none.

    Args:
        place: a directory for the engine, not there yet.
        version: of TensorRT.
    """
    engine = write_fake_engine(bundle, place, FakeBuild(version=version, compute_capability=device.name))
    trt, cuda = fake_tensorrt(device, version), FakeCudart(device)
    return TensorrtEngine(trt, cuda, require_plan(place, engine), engine, bundle.manifest)
