"""`starsd-edge run-target --device jetson`, from the command to the calls of TensorRT and CUDA, on fakes of both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.cache import CACHE_VARIABLE, engines_dir
from starsd_edge.bundles.engine_manifest import read_engine_manifest
from starsd_edge.cli.doctor import network as doctor_network
from starsd_edge.device import gpus
from starsd_edge.device.gpus import CudaDevice
from starsd_edge.doctor.curve_store import kept_curves
from starsd_edge.runtime.cuda import CUDA_MODULE
from starsd_edge.runtime.tensorrt import opening
from starsd_edge.runtime.tensorrt.opening import Machine
from tests.support.command_line import CommandLine
from tests.support.fake_cudart import FakeCudart
from tests.support.fake_device import DeviceTraits, FakeDevice
from tests.support.fake_tensorrt import fake_tensorrt
from tests.support.hub_client import running_hub

if TYPE_CHECKING:
    from tests.support.fake_engine import write_fake_engine
else:
    write_fake_engine = pytest.importorskip("tests.support.fake_engine", reason="needs torch").write_fake_engine

pytestmark = pytest.mark.export


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.fixture
def orin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeDevice:
    """What the command finds: an Orin with TensorRT and cuda-python, and an empty cache."""
    device = FakeDevice(DeviceTraits(is_integrated=True))
    modules: dict[str, Callable[[], Any]] = {
        CUDA_MODULE: lambda: FakeCudart(device),
        "tensorrt": lambda: fake_tensorrt(device),
    }
    machine = Machine(lambda: [CudaDevice("Orin", device.name, 8 << 30)], lambda name: modules[name]())
    monkeypatch.setattr(opening, "Machine", lambda: machine)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    return device


async def test_the_link_is_judged_by_passes_of_the_board(
    command: CommandLine, orin: FakeDevice, tiny_tensorrt: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_network, "WARM_UP_S", 0.1)
    bundle = tiny_tensorrt["append"]
    write_fake_engine(bundle, engines_dir() / "orin")
    async with running_hub() as hub:
        asked = ("doctor", "--network", hub.url, "--device", "jetson", "--bundle", bundle.path, "--json")
        done = await asyncio.to_thread(command, *asked)
    content = json.loads(done.out)
    levels = {check["name"]: check["level"] for check in content["checks"]}
    assert (levels["hub"], levels["verify"]) == ("ok", "ok"), done
    assert {figure["label"] for figure in content["figures"]} <= {"GPU"}
    assert len([*(engines_dir().parent / "verify-curves").iterdir()]) == 1


def test_measured_passes_belong_to_the_engine_and_not_to_its_bundle(
    command: CommandLine, orin: FakeDevice, tiny_tensorrt: dict[str, Bundle]
) -> None:
    bundle = tiny_tensorrt["append"]
    write_fake_engine(bundle, engines_dir() / "orin")
    what = ("--passes", 3, "--rows", 4, "--committed", 16, "--threads", 1)
    done = command("bench", "verify", bundle.path, "--device", "jetson", *what)
    assert done.code == 0, done.err
    digest = read_engine_manifest(engines_dir() / "orin").plan_sha256
    assert kept_curves(bundle.manifest, 1, "jetson", digest) is not None
    assert kept_curves(bundle.manifest, 1, "jetson", "another engine") is None
    assert kept_curves(bundle.manifest, 1, "cpu") is None
    assert orin.faults.notes == []


@pytest.mark.parametrize("strategy", ["append", "inplace"])
def test_the_text_is_that_of_the_processor(
    command: CommandLine, orin: FakeDevice, tiny_tensorrt: dict[str, Bundle], strategy: str
) -> None:
    bundle = tiny_tensorrt[strategy]
    write_fake_engine(bundle, engines_dir() / "orin")
    asked = ("run-target", bundle.path, "--prompt", "the cat", "--max-tokens", 24, "--raw", "--json")
    on_cpu, on_jetson = (command(*asked, "--device", device) for device in ("cpu", "jetson"))
    assert on_jetson.code == 0, on_jetson.err
    assert json.loads(on_jetson.out)["text"] == json.loads(on_cpu.out)["text"]
    assert orin.faults.notes == []


def test_a_bundle_without_an_engine_is_one_line(
    command: CommandLine, orin: FakeDevice, tiny_tensorrt: dict[str, Bundle]
) -> None:
    line = command.refused("run-target", tiny_tensorrt["append"].path, "--prompt", "a", "--device", "jetson")
    assert "there is no engine of" in line
    assert "--engine tensorrt` builds one" in line


def test_a_machine_without_a_gpu_is_one_line(
    command: CommandLine, tiny_tensorrt: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "DRIVER_LIBRARY", "libcuda.so.is-not-there")
    line = command.refused("run-target", tiny_tensorrt["append"].path, "--prompt", "a", "--device", "jetson")
    assert line.startswith("error: --device jetson: there is no NVIDIA driver on this machine")
