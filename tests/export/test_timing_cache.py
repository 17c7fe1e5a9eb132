"""What one build measured serves the next; that it is refused, lost or not to be kept costs no finished build."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from starsd_export.engines import worker
from starsd_export.engines.worker import Built, Order

PLAN = b"a plan"
KEPT = b"of an earlier build"
MEASURED = b"of this build"


class _Config:
    """TensorRT's: a cache that it does not take is refused with False, and then there is none to be had."""

    def __init__(self, takes: set[bytes], gives: Any) -> None:
        self._takes, self._gives = takes, gives
        self.offered: list[bytes] = []
        self.taken = False

    def create_timing_cache(self, content: bytes) -> Any:
        self.offered.append(content)
        return content if content in self._takes or content == KEPT else None

    def set_timing_cache(self, cache: bytes, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        self.taken = cache in self._takes
        return self.taken

    def get_timing_cache(self) -> Any:
        return self._gives() if self.taken else None


def library(config: _Config) -> Any:
    network = SimpleNamespace(num_inputs=0, num_outputs=0)
    builder = SimpleNamespace(
        create_network=lambda flags: network,
        create_builder_config=lambda: config,
        build_serialized_network=lambda network, config: PLAN,
    )
    module = SimpleNamespace(
        Builder=lambda log: builder,
        ILogger=object,
        IProgressMonitor=object,
        NetworkDefinitionCreationFlag=SimpleNamespace(STRONGLY_TYPED=0),
        OnnxParser=lambda network, log: SimpleNamespace(parse_from_file=lambda file: True),
    )
    return SimpleNamespace(module=module, version="10.3.0")


def given() -> Any:
    return SimpleNamespace(serialize=lambda: MEASURED)


def fails() -> Any:
    raise RuntimeError("internal error")


@pytest.mark.parametrize(
    ("takes", "gives", "offered", "kept"),
    [
        ({KEPT, b""}, given, [KEPT], MEASURED),
        ({b""}, given, [KEPT, b""], MEASURED),  # refused: of another GPU, say
        (set(), given, [KEPT, b""], KEPT),
        ({KEPT}, lambda: SimpleNamespace(serialize=lambda: None), [KEPT], KEPT),
        ({KEPT}, fails, [KEPT], KEPT),
    ],
)
def test_a_build_ends_well_whatever_becomes_of_its_timings(
    takes: set[bytes], gives: Any, offered: list[bytes], kept: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _Config(takes, gives)
    cache = tmp_path / "timing" / "a.cache"
    cache.parent.mkdir()
    cache.write_bytes(KEPT)
    assert build(config, cache, monkeypatch).version == "10.3.0"
    assert config.offered == offered
    assert (tmp_path / "plan").read_bytes() == PLAN
    assert cache.read_bytes() == kept


@pytest.mark.parametrize("kind", ["a directory in its place", "a file in the place of its directory", "nothing yet"])
def test_a_place_that_keeps_no_timings_costs_no_build(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "timing" / "a.cache"
    if kind == "a directory in its place":
        (cache / "inner").mkdir(parents=True)
    elif kind != "nothing yet":
        cache.parent.write_text("")
    build(_Config({b""}, given), cache, monkeypatch)
    assert (tmp_path / "plan").read_bytes() == PLAN
    if kind == "nothing yet":
        assert cache.read_bytes() == MEASURED
    else:
        assert "not kept for the next one" in capfd.readouterr().err


def build(config: _Config, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Built:
    monkeypatch.setattr(worker, "open_library", lambda engine: library(config))
    place = cache.parents[1]
    order = Order("tensorrt", str(place / "model.onnx"), str(place / "plan"), [], [], str(cache))
    return worker._build(order, lambda report: None, threading.Event())
