"""Engines of a bundle, up to the build: which library and GPU, what is refused, what is kept, what is built again."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import starsd_export.engines.engine_export as engine_export
from starsd_edge.bundles.bundle import Bundle, write_manifest
from starsd_edge.bundles.engine_manifest import EngineHost, EngineTensor, platform_name, rebuild_command, require_fit
from starsd_edge.bundles.integrity import hash_files
from starsd_edge.bundles.manifest import TensorrtGraph
from starsd_edge.device.gpus import CudaDevice
from starsd_edge.errors import EngineError, StarsdError, UsageError
from starsd_export.engines.builder import BuildError
from starsd_export.engines.engine_export import EngineOptions, engine_name, export_engine
from starsd_export.engines.profiles import engine_limits
from starsd_export.engines.worker import Built, Order
from tests.support.small_bundle import FILES, small_manifest

ORIN = CudaDevice("Orin", "sm87", 8 << 30)
PLAN = b"plan" * 64


class Libraries:
    """Installed libraries, and a builder that notes its orders; the real one is in test_engine_builds.py."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.orders: list[Order] = []
        self.failing = False
        for name, version in (("tensorrt", "10.3.0.30"), ("tensorrt_rtx", "1.7.1.116")):
            monkeypatch.setitem(sys.modules, name, SimpleNamespace(Builder=object, __version__=version))
        monkeypatch.setattr(engine_export, "run_build", self.build)

    def build(self, order: Order, progress: object) -> Built:
        self.orders.append(order)
        if self.failing:
            raise BuildError("it does not build")
        Path(order.plan).write_bytes(PLAN)
        version = "10.3.0.30" if order.engine == "tensorrt" else "1.7.1.116"
        return Built(version, [EngineTensor("input_ids", "input", "int64", [-1])], 1 << 20)


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Libraries:
    monkeypatch.setenv("STARSD_CACHE", str(tmp_path / "cache"))
    return Libraries(monkeypatch)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    directory = tmp_path / "bundle"
    directory.mkdir()
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
    manifest = small_manifest(hash_files(directory))
    graph = msgspec.structs.replace(manifest.graph, weights="fp16", tensorrt=TensorrtGraph(head="fp16", block=0))
    manifest = msgspec.structs.replace(manifest, graph=graph)
    write_manifest(directory, manifest)
    return Bundle(directory, manifest)


def no_driver() -> list[CudaDevice]:
    raise EngineError("there is no NVIDIA driver on this machine")


def orin() -> list[CudaDevice]:
    return [ORIN]


def test_tensorrt_builds_for_the_gpu_that_is_here_and_keeps_its_timings(
    libraries: Libraries, bundle: Bundle, tmp_path: Path
) -> None:
    built = export_engine(bundle, EngineOptions("tensorrt"), devices=orin)
    [order] = libraries.orders
    assert order.compute_capabilities == []
    assert order.graph == str(bundle.path / "model.onnx")
    assert len(order.shapes) == 3
    assert order.timing_cache == str(tmp_path / "cache" / "engines" / "timing" / "tensorrt-10.3.0.30-sm87.cache")
    assert built.path.parent == tmp_path / "cache" / "engines"
    assert built.path.name.startswith("small-tensorrt-sm87-")
    assert (built.manifest.compute_capability, built.manifest.version) == ("sm87", "10.3.0.30")
    assert built.manifest.plan_bytes == len(PLAN)


def test_tensorrt_rtx_builds_ahead_where_no_driver_is(libraries: Libraries, bundle: Bundle) -> None:
    built = export_engine(bundle, EngineOptions("tensorrt-rtx", ("sm120",)), devices=no_driver)
    [order] = libraries.orders
    assert (order.compute_capabilities, order.timing_cache) == (["sm120"], None)
    assert built.manifest.compute_capability == "sm120"


def test_the_driver_is_asked_before_the_library_is_opened(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_export, "open_library", lambda engine: pytest.fail("opened"))
    with pytest.raises(EngineError, match="builds on the device that runs the engine, and there is no NVIDIA driver"):
        export_engine(bundle, EngineOptions("tensorrt"), devices=no_driver)
    with pytest.raises(UsageError, match=r"name the kind of GPU to build for \(--compute-capability sm89\)"):
        export_engine(bundle, EngineOptions("tensorrt-rtx"), devices=no_driver)


def test_another_gpu_than_the_one_here_is_refused(libraries: Libraries, bundle: Bundle) -> None:
    with pytest.raises(UsageError, match=r"for this machine's GPU, which is sm87 \(Orin\), and not for sm89"):
        export_engine(bundle, EngineOptions("tensorrt", ("sm89",)), devices=orin)
    assert libraries.orders == []


def test_a_bundle_for_cpus_is_refused(libraries: Libraries, bundle: Bundle) -> None:
    graph = msgspec.structs.replace(bundle.manifest.graph, tensorrt=None)
    plain = replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, graph=graph))
    with pytest.raises(UsageError, match=r"engines are built from bundles of `starsd-edge export MODEL"):
        export_engine(plain, EngineOptions("tensorrt-rtx", ("sm89",)))


def test_the_same_engine_is_built_once_and_another_beside_it(libraries: Libraries, bundle: Bundle) -> None:
    options = EngineOptions("tensorrt-rtx", ("sm89",))
    first, again = export_engine(bundle, options), export_engine(bundle, options)
    shorter = export_engine(bundle, replace(options, context=16))
    other = export_engine(bundle, replace(options, compute_capabilities=("sm86",)))
    assert (first.was_there, again.was_there, shorter.was_there, other.was_there) == (False, True, False, False)
    assert again.path == first.path
    assert len({first.path, shorter.path, other.path}) == 3
    assert len(libraries.orders) == 3


def test_one_engine_serves_several_kinds_of_gpu(libraries: Libraries, bundle: Bundle) -> None:
    kinds = ("sm86", "sm89", "sm120")
    options = EngineOptions("tensorrt-rtx", kinds)
    built, again = export_engine(bundle, options), export_engine(bundle, options)
    [order] = libraries.orders
    assert order.compute_capabilities == list(kinds)
    assert built.path.name.startswith("small-tensorrt-rtx-sm86-sm89-sm120-")
    assert again.was_there
    assert built.manifest.compute_capabilities == kinds
    for kind in kinds:
        require_fit(built.path, built.manifest, host(kind), bundle.manifest)
    with pytest.raises(EngineError, match=r"another kind of GPU \(sm86, sm89, sm120; here it is sm75\)") as refused:
        require_fit(built.path, built.manifest, host("sm75"), bundle.manifest)
    assert str(refused.value).endswith("--engine tensorrt-rtx --compute-capability sm75`")
    assert rebuild_command(built.manifest).endswith("".join(f" --compute-capability {kind}" for kind in kinds))


def test_an_engine_for_fewer_kinds_of_gpu_is_no_match_where_it_lies(
    libraries: Libraries, bundle: Bundle, tmp_path: Path
) -> None:
    for kinds in (("sm89",), ("sm89", "sm120"), ("sm89",)):
        built = export_engine(bundle, EngineOptions("tensorrt-rtx", kinds), tmp_path / "engine")
        assert not built.was_there
        assert built.manifest.compute_capabilities == kinds


def test_a_kind_of_gpu_that_is_named_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="names a kind of GPU twice: sm89, sm89"):
        EngineOptions("tensorrt-rtx", ("sm89", "sm89"))


def host(kind: str) -> EngineHost:
    return EngineHost("tensorrt_rtx", "1.7.1.116", kind, platform_name())


def test_a_damaged_engine_is_built_again(libraries: Libraries, bundle: Bundle) -> None:
    options = EngineOptions("tensorrt-rtx", ("sm89",))
    path = export_engine(bundle, options).path
    (path / "engine.plan").write_bytes(PLAN[:-1])
    assert not export_engine(bundle, options).was_there
    assert (path / "engine.plan").read_bytes() == PLAN


def test_the_name_of_an_engine_holds_all_that_it_depends_on(bundle: Bundle) -> None:
    manifest, limits = bundle.manifest, engine_limits(bundle.manifest)
    host = EngineHost("tensorrt", "10.3.0.30", "sm87", "linux-aarch64")
    names = {engine_name(bundle, host, limits)}
    names |= {engine_name(bundle, host, engine_limits(manifest, 16))}
    for change in ({"version": "10.3.0.31"}, {"compute_capability": "sm110"}, {"platform": "linux-x86_64"}):
        names.add(engine_name(bundle, replace(host, **change), limits))
    for file in ("model.onnx", "model.onnx.data"):
        changed = msgspec.structs.replace(manifest, files={**manifest.files, file: "0" * 64})
        names.add(engine_name(replace(bundle, manifest=changed), host, limits))
    int4 = msgspec.structs.replace(manifest.graph, weights="int4")
    names.add(engine_name(replace(bundle, manifest=msgspec.structs.replace(manifest, graph=int4)), host, limits))
    assert len(names) == 8


def test_a_failed_build_leaves_nothing_and_the_older_engine_as_it_was(
    libraries: Libraries, bundle: Bundle, tmp_path: Path
) -> None:
    target = tmp_path / "out" / "engine"
    libraries.failing = True
    with pytest.raises(BuildError):
        export_engine(bundle, EngineOptions("tensorrt-rtx", ("sm89",)), target)
    assert list(target.parent.iterdir()) == []
    libraries.failing = False
    older = export_engine(bundle, EngineOptions("tensorrt-rtx", ("sm89",)), target).manifest
    libraries.failing = True
    with pytest.raises(BuildError):
        export_engine(bundle, EngineOptions("tensorrt-rtx", ("sm86",)), target)
    assert [path.name for path in target.parent.iterdir()] == ["engine"]
    assert engine_export.read_engine_manifest(target) == older


def test_a_directory_that_holds_no_engine_is_never_replaced(libraries: Libraries, bundle: Bundle) -> None:
    with pytest.raises(UsageError, match="holds files and no engine: name a new directory"):
        export_engine(bundle, EngineOptions("tensorrt-rtx", ("sm89",)), bundle.path)
    assert (bundle.path / "model.onnx").read_bytes() == FILES["model.onnx"]


def test_no_memory_is_said_before_the_build(
    libraries: Libraries, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = replace(ORIN, memory_bytes=1 << 20)
    with pytest.raises(StarsdError, match=r"this GPU has 0\.00 GB"):
        export_engine(bundle, EngineOptions("tensorrt"), devices=lambda: [tiny])
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1000))
    with pytest.raises(StarsdError, match="too little: close other programs"):
        export_engine(bundle, EngineOptions("tensorrt-rtx", ("sm89",)))
    assert libraries.orders == []


@pytest.mark.parametrize("options", [("openvino", ()), ("tensorrt-rtx", ("sm89", "sm87")), ("tensorrt-rtx", ("8.9",))])
def test_engines_and_gpus_that_there_are_not_are_refused(options: tuple[str, tuple[str, ...]]) -> None:
    with pytest.raises(UsageError, match=r"tensorrt or tensorrt-rtx|one of sm75, sm80, sm86, sm89, sm120, sm121"):
        EngineOptions(*options)


def test_engines_say_which_platform_they_are_for() -> None:
    assert platform_name().startswith("linux-")
