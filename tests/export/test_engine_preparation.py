"""What is settled before a builder runs: the library, the shapes, the memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from starsd_edge.bundles.engine_manifest import EngineLimits
from starsd_edge.errors import StarsdError, UsageError
from starsd_export.engines.builder import open_library
from starsd_export.engines.profiles import (
    PROFILES,
    build_bytes,
    engine_limits,
    profile_shapes,
    require_memory,
    run_bytes,
)
from tests.support.small_bundle import small_manifest

MANIFEST = small_manifest({})  # one layer, one KV head of 4, context 32, trees and chunks of 16
GIGABYTE = 10**9


def library(**contents: Any) -> Any:
    return lambda name: SimpleNamespace(**contents)


def missing(name: str) -> Any:
    raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def broken(name: str) -> Any:
    raise ImportError("libnvinfer.so.10: cannot open shared object file")


def test_a_library_is_known_by_all_parts_of_its_version() -> None:
    opened = open_library("tensorrt", library(Builder=object, __version__="10.3.0.30"))
    assert (opened.version, opened.is_rtx, str(opened)) == ("10.3.0.30", False, "TensorRT 10.3.0.30")
    assert str(open_library("tensorrt-rtx", library(Builder=object, __version__="1.7.1.116"))).startswith(
        "TensorRT-RTX"
    )


@pytest.mark.parametrize(
    ("engine", "load", "said"),
    [
        ("tensorrt-rtx", missing, r"not installed: pip install '\.\[tensorrt-rtx\]'"),
        ("tensorrt", missing, "not installed: it comes with JetPack .*--system-site-packages"),
        ("tensorrt", broken, r"cannot be loaded \(libnvinfer\.so\.10: cannot open"),
        ("tensorrt", library(__path__=[]), "holds no builder"),
        ("tensorrt", library(Builder=object, __version__="8.6.1.6"), "8.6.1.6 is too old: .* 10.3 and newer"),
        ("tensorrt-rtx", library(Builder=object, __version__="1.3.0.1"), "too old"),
        ("tensorrt", library(Builder=object, __version__="10.3"), "bound to all four parts"),
    ],
)
def test_a_library_that_cannot_build_is_refused_with_the_way_to_one(engine: str, load: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        open_library(engine, load)


def test_profiles_are_for_chunks_one_token_and_trees_and_agree_in_themselves() -> None:
    prefill, token, verify = profile_shapes(MANIFEST, EngineLimits(max_context=32, max_tree=16, max_chunk=8))
    assert len(PROFILES) == 3
    assert prefill["input_ids"] == ([1], [8], [8])
    assert prefill["logits_idx"] == ([1], [1], [1])
    assert token["tree_mask"] == ([1, 1], [1, 1], [1, 1])
    assert verify["logits_idx"] == verify["input_ids"] == ([1], [16], [16])
    for shapes in (prefill, token, verify):
        assert set(shapes) == {"input_ids", "position_ids", "tree_mask", "logits_idx", "past_k_0", "past_v_0"}
        assert shapes["past_k_0"] == shapes["past_v_0"] == ([0, 1, 4], [32, 1, 4], [32, 1, 4])
        assert [shape * 2 for shape in shapes["input_ids"]] == list(shapes["tree_mask"])
        assert shapes["position_ids"] == shapes["input_ids"]
        for smallest, usual, largest in shapes.values():
            assert all(a <= b <= c for a, b, c in zip(smallest, usual, largest, strict=True))


def test_the_profile_of_one_token_over_fixed_caches_has_room_for_two() -> None:
    graph = msgspec.structs.replace(MANIFEST.graph, kv_strategy="inplace")
    manifest = msgspec.structs.replace(MANIFEST, graph=graph)
    _, token, _ = profile_shapes(manifest, EngineLimits(max_context=32, max_tree=16, max_chunk=8))
    assert token["input_ids"] == token["position_ids"] == ([1], [1], [2])
    assert token["tree_mask"] == ([1, 1], [1, 1], [2, 2])
    assert token["logits_idx"] == ([1], [1], [1])
    assert "past_k_0" not in token


def test_limits_are_the_bundles_unless_a_smaller_context_is_named() -> None:
    assert engine_limits(MANIFEST) == EngineLimits(max_context=32, max_tree=16, max_chunk=16)
    assert engine_limits(MANIFEST, 20).max_context == 20
    for context in (0, -1, 33):
        with pytest.raises(UsageError, match=rf"--context {context} is not within 1 and 32, the context of small"):
            engine_limits(MANIFEST, context)


def test_too_little_memory_for_the_build_is_refused_with_the_shortfall() -> None:
    limits = engine_limits(MANIFEST)
    needed = build_bytes(GIGABYTE)
    with pytest.raises(StarsdError, match=r"about 9\.31 GB of memory and 8\.31 GB are free, 1\.00 GB too little"):
        require_memory(MANIFEST, limits, GIGABYTE, None, needed - GIGABYTE)
    require_memory(MANIFEST, limits, GIGABYTE, None, needed)


def test_too_little_memory_to_run_is_refused_before_the_build() -> None:
    limits = engine_limits(MANIFEST)
    needed = run_bytes(MANIFEST, limits, GIGABYTE)
    with pytest.raises(StarsdError, match=r"for 32 tokens takes about .* 0\.50 GB too little: give a"):
        require_memory(MANIFEST, limits, GIGABYTE, needed - GIGABYTE // 2, 100 * GIGABYTE)
    require_memory(MANIFEST, limits, GIGABYTE, needed, 100 * GIGABYTE)


def test_what_an_engine_takes_grows_by_its_kv_and_scores_with_the_context() -> None:
    model = msgspec.structs.replace(MANIFEST.model, n_layers=3, n_kv_heads=2, head_dim=8, n_heads=4)
    manifest = msgspec.structs.replace(MANIFEST, model=model)
    sizes = [run_bytes(manifest, EngineLimits(context, 16, 16), 0) for context in (100, 101)]
    kv_row = 2 * 3 * 2 * 8 * 2
    assert sizes[1] - sizes[0] == kv_row + 2 * 16 * 4 * 4
