"""`starsd-edge export --engine`: what it is told wrongly is one line, and what it makes is printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from starsd_edge.bundles.bundle import write_manifest
from starsd_edge.bundles.integrity import hash_files
from starsd_edge.bundles.manifest import TensorrtGraph
from tests.support.command_line import CommandLine
from tests.support.small_bundle import FILES, small_manifest, write_small_bundle

AHEAD = ("--engine", "tensorrt-rtx", "--compute-capability", "sm89")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle that says it is for TensorRT, with a graph that no parser takes."""
    directory = tmp_path / "bundle"
    directory.mkdir()
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
    manifest = small_manifest(hash_files(directory))
    graph = msgspec.structs.replace(manifest.graph, weights="fp16", tensorrt=TensorrtGraph(head="fp16", block=0))
    write_manifest(directory, msgspec.structs.replace(manifest, graph=graph))
    return directory


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--engine", "openvino"), "--engine is tensorrt or tensorrt-rtx, not 'openvino'"),
        (("--engine", "tensorrt-rtx", "--compute-capability", "sm87"), "is one of sm75, sm80, sm86"),
        ((*AHEAD, "--compute-capability", "sm89"), "names a kind of GPU twice: sm89, sm89"),
        ((*AHEAD, "--compute-capability", "sm87"), "sm120, sm121, not 'sm87'"),
        ((*AHEAD, "--weights", "int4", "--block", "64"), "leave --weights and --block away"),
        ((*AHEAD, "--draft-head", "shipped"), "draft heads run on ONNX Runtime: leave --engine away"),
        (("--compute-capability", "sm89"), "--compute-capability is for --engine"),
        (("--context", "64"), "--context is for --engine and --kv-strategy inplace"),
    ],
)
def test_options_that_do_not_fit_are_one_line(
    cli: CommandLine, cache: Path, bundle: Path, arguments: tuple[str, ...], said: str
) -> None:
    assert said in cli.refused("export", bundle, *arguments)


def test_a_bundle_for_cpus_is_refused_with_the_command_for_one_that_is_not(
    cli: CommandLine, cache: Path, tmp_path: Path
) -> None:
    line = cli.refused("export", write_small_bundle(tmp_path / "cpu"), *AHEAD)
    assert "has a graph for ONNX Runtime" in line
    assert "`starsd-edge export MODEL --runtime tensorrt`" in line


def test_a_damaged_bundle_is_not_built_from(cli: CommandLine, cache: Path, bundle: Path) -> None:
    (bundle / "model.onnx").write_bytes(b"other")
    assert "model.onnx is not the file that was exported" in cli.refused("export", bundle, *AHEAD)


def test_a_context_beyond_the_models_is_refused(cli: CommandLine, cache: Path, bundle: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="not run: no tensorrt_rtx (pip install '.[tensorrt-rtx]')")
    line = cli.refused("export", bundle, *AHEAD, "--context", "64")
    assert "--context 64 is not within 1 and 32, the context of small" in line


def test_a_graph_that_does_not_build_is_one_line_and_leaves_nothing(
    cli: CommandLine, cache: Path, bundle: Path
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="not run: no tensorrt_rtx (pip install '.[tensorrt-rtx]')")
    assert "does not take this graph" in cli.refused("export", bundle, *AHEAD)
    assert list((cache / "engines").iterdir()) == []


def test_where_the_library_is_missing_the_line_says_how_to_get_it(
    cli: CommandLine, cache: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    line = cli.refused("export", bundle, *AHEAD)
    assert "pip install '.[tensorrt-rtx]'" in line


def test_a_device_builds_its_engines_without_the_exporters_libraries() -> None:
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'transformers', 'onnx', 'onnx_ir', 'onnxruntime'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import starsd_edge.cli.export.make, starsd_export.engines.engine_export, starsd_export.engines.worker\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert result.returncode == 0, result.stderr
