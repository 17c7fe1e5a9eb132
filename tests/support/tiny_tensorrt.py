"""Bundles of a tiny model for TensorRT, one of each KV strategy, and engines of them on the fake TensorRT."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from starsd_edge.bundles.bundle import Bundle, load_bundle
from starsd_edge.bundles.engine_manifest import require_plan
from starsd_edge.runtime.tensorrt.engine import TensorrtEngine
from starsd_export.pipeline import ExportOptions, export_bundle
from starsd_export.tensorrt_graph import KV_STRATEGIES, TensorrtOptions
from tests.support.bundle_store import tiny_copy
from tests.support.fake_cudart import FakeCudart
from tests.support.fake_device import DeviceTraits, FakeDevice
from tests.support.fake_engine import FakeBuild, write_fake_engine
from tests.support.fake_tensorrt import fake_tensorrt
from tests.support.tiny_llama import write_safetensors

CONTEXT = 192


@dataclass(frozen=True)
class Board:
    """What an engine is run on.

    Attributes:
        version: of TensorRT.
        memory_bytes: of the GPU.
        shares_memory: with the processor, as on a Jetson.
    """

    version: str = "10.16.2.10"
    memory_bytes: int = 1 << 30
    shares_memory: bool = True

    def device(self) -> FakeDevice:
        """A new one."""
        return FakeDevice(DeviceTraits(memory_bytes=self.memory_bytes, is_integrated=self.shares_memory))


def export_tiny_tensorrt(place: Path) -> dict[str, Bundle]:
    """By KV strategy, with float16 weights."""
    checkpoint = write_safetensors(place / "checkpoint")

    def kept(strategy: str) -> Bundle:
        options = ExportOptions("fp16", tensorrt=TensorrtOptions(kv_strategy=strategy, context=CONTEXT))
        return tiny_copy(
            place / strategy,
            f"tiny-tensorrt-{strategy}",
            load_bundle,
            lambda made: export_bundle(checkpoint, made, options),
        )

    return {strategy: kept(strategy) for strategy in KV_STRATEGIES}


class OnFake:
    """The TensorRT engine of a bundle on a board that is none.

    Args:
        place: a directory for the engine, not there yet.
        cuda: makes the fake of CUDA of a device.
    """

    def __init__(
        self, bundle: Bundle, place: Path, board: Board | None = None, cuda: type[FakeCudart] = FakeCudart
    ) -> None:
        board = board or Board()
        self.device = board.device()
        self.cuda = cuda(self.device)
        engine = write_fake_engine(bundle, place, FakeBuild(version=board.version))
        self.engine = TensorrtEngine(
            fake_tensorrt(self.device, board.version),
            self.cuda,
            require_plan(place, engine),
            engine,
            bundle.manifest,
        )

    def require_no_refusal(self) -> None:
        """Whether everything that was asked of the device so far was right."""
        assert self.device.faults.notes == []
