"""An engine is opened only where it fits: every difference is said plainly, with the command that rebuilds."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from starsd_edge.bundles.engine_manifest import (
    ENGINE_NAME,
    PLAN_NAME,
    EngineHost,
    EngineLimits,
    EngineManifest,
    EngineTensor,
    graph_digest,
    read_engine_manifest,
    require_fit,
    require_plan,
)
from starsd_edge.errors import EngineError
from tests.support.small_bundle import small_manifest

PLAN = bytes(range(256)) * 16
BUNDLE = small_manifest({"model.onnx": "aa", "model.onnx.data": "bb", "tokenizer.json": "cc"})
HERE = EngineHost("tensorrt", "10.3.0.30", "sm87", "linux-aarch64")
ENGINE = EngineManifest(
    schema_version=1,
    bundle="small",
    graph_digest=graph_digest(BUNDLE),
    library="tensorrt",
    version="10.3.0.30",
    compute_capability="sm87",
    platform="linux-aarch64",
    weights="fp16",
    kv_strategy="append",
    limits=EngineLimits(max_context=32, max_tree=16, max_chunk=16),
    profiles=["prefill", "token", "verify"],
    tensors=[EngineTensor("input_ids", "input", "int64", [-1])],
    aliases={},
    plan_bytes=len(PLAN),
    plan_sha256=hashlib.sha256(PLAN).hexdigest(),
    created_by="the tests",
    build_seconds=1.5,
    build_memory_bytes=1,
)


def write_engine(directory: Path, engine: EngineManifest = ENGINE, plan: bytes = PLAN) -> Path:
    directory.mkdir()
    (directory / ENGINE_NAME).write_bytes(msgspec.json.encode(engine))
    (directory / PLAN_NAME).write_bytes(plan)
    return directory


def test_a_whole_engine_for_this_machine_is_let_through(tmp_path: Path) -> None:
    directory = write_engine(tmp_path / "engine")
    engine = read_engine_manifest(directory)
    assert engine == ENGINE
    require_fit(directory, engine, HERE, BUNDLE)
    assert require_plan(directory, engine).read_bytes() == PLAN


@pytest.mark.parametrize(
    ("here", "said", "command"),
    [
        ({"compute_capability": "sm110"}, r"another kind of GPU \(sm87; here it is sm110\)", "--engine tensorrt`"),
        ({"version": "10.16.2.10"}, r"another version of tensorrt \(10\.3\.0\.30; here it is 10\.16\.2\.10\)", ""),
        ({"version": "10.3.0.31"}, r"10\.3\.0\.30; here it is 10\.3\.0\.31", ""),
        ({"platform": "linux-x86_64"}, r"another kind of machine \(linux-aarch64; here it is linux-x86_64\)", ""),
        (
            {"library": "tensorrt_rtx", "compute_capability": "sm89"},
            r"another kind of library \(tensorrt; here it is tensorrt_rtx\)",
            "--engine tensorrt-rtx --compute-capability sm89`",
        ),
    ],
)
def test_another_machine_is_named_with_the_command_that_builds_for_it(
    tmp_path: Path, here: dict[str, str], said: str, command: str
) -> None:
    with pytest.raises(EngineError, match=said) as caught:
        require_fit(tmp_path, ENGINE, replace(HERE, **here), BUNDLE)
    assert f"build it again with `starsd-edge export small {command}" in str(caught.value)


def test_an_engine_of_another_graph_is_refused(tmp_path: Path) -> None:
    for file in ("model.onnx", "model.onnx.data"):
        other = small_manifest({**BUNDLE.files, file: "ff"})
        with pytest.raises(EngineError, match="was built from another graph: build it again with"):
            require_fit(tmp_path, ENGINE, HERE, other)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (PLAN[:-1], "has 4095 bytes and not the 4096 that were built"),
        (PLAN[:-1] + b"\0", r"is not the file that was built \(its sha256 differs\)"),
    ],
)
def test_a_plan_that_is_cut_short_or_altered_is_never_opened(tmp_path: Path, plan: bytes, said: str) -> None:
    directory = write_engine(tmp_path / "engine", plan=plan)
    with pytest.raises(EngineError, match=said) as caught:
        require_plan(directory, read_engine_manifest(directory))
    assert "starsd-edge export small --engine tensorrt" in str(caught.value)


def test_a_missing_plan_or_manifest_is_said(tmp_path: Path) -> None:
    directory = write_engine(tmp_path / "engine")
    (directory / PLAN_NAME).unlink()
    with pytest.raises(EngineError, match=r"incomplete \(engine\.plan is missing\)"):
        require_plan(directory, ENGINE)
    (directory / ENGINE_NAME).unlink()
    with pytest.raises(EngineError, match="there is no engine at"):
        read_engine_manifest(directory)


@pytest.mark.parametrize("content", [b"{}", b"[", b'{"schema_version": 2}', b" " * (1 << 20) + b"{}"])
def test_a_damaged_manifest_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ENGINE_NAME).write_bytes(content)
    with pytest.raises(EngineError, match="build the engine again"):
        read_engine_manifest(tmp_path)
