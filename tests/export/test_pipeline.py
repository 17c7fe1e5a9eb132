"""Exports of a tiny model: what is in a bundle, and that nothing is left when one fails."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import psutil
import pytest
import torch
from transformers import PreTrainedModel

import starsd_export.checkpoint as checkpoints
import starsd_export.pipeline as pipeline
from starsd_edge.bundles.bundle import Bundle, load_bundle
from starsd_edge.bundles.manifest import GRAPH_REVISION
from starsd_edge.errors import StarsdError, UsageError
from starsd_edge.runtime.engine import causal_mask
from starsd_edge.runtime.loading import open_engine
from starsd_export.checkpoint import open_checkpoint
from starsd_export.families import Limits
from starsd_export.parity import ParityError
from starsd_export.pipeline import STEPS, ExportOptions, export_bundle
from tests.support.tiny_families import VARIANTS, write_family
from tests.support.tiny_llama import tiny_model, write_gguf, write_safetensors

IDS = [5, 9, 17, 3, 11, 20, 7, 2]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_safetensors(tmp_path_factory.mktemp("checkpoint") / "tiny")


class TracedOnce:
    """`pipeline.trace` of the tiny checkpoint alone, which has the same weights wherever it lies."""

    def __init__(self) -> None:
        self._trace = pipeline.trace
        self._traced: dict[str, onnx_ir.Model] = {}

    def __call__(self, model: PreTrainedModel, kv_dtype: str, fused: None) -> onnx_ir.Model:
        if kv_dtype not in self._traced:
            self._traced[kv_dtype] = self._trace(model, kv_dtype, fused)
        return self._traced[kv_dtype].clone()


@pytest.fixture(scope="module")
def trace() -> TracedOnce:
    return TracedOnce()


@pytest.fixture
def traced_once(trace: TracedOnce, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is done with a graph of the tiny checkpoint."""
    monkeypatch.setattr(pipeline, "trace", trace)


@dataclass(frozen=True)
class Exports:
    """The tiny checkpoint's bundles, each kind exported once; tests that read them do not alter them.

    Attributes:
        steps: what each export reported.
    """

    checkpoint: Path
    place: Path
    trace: TracedOnce
    steps: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, weights: str = "fp32", kv_dtype: str = "float16") -> Bundle:
        name = f"tiny-{weights}-{kv_dtype}"
        if name not in self.steps:
            steps: list[str] = []
            options = ExportOptions(weights, kv_dtype, name=name)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(pipeline, "trace", self.trace)
                export_bundle(self.checkpoint, self.place / name, options, steps.append)
            self.steps[name] = steps
        return load_bundle(self.place / name)


@pytest.fixture(scope="module")
def exports(checkpoint: Path, trace: TracedOnce, tmp_path_factory: pytest.TempPathFactory) -> Exports:
    return Exports(checkpoint, tmp_path_factory.mktemp("exports"), trace)


def logits(directory: Path) -> np.ndarray:
    engine = open_engine(load_bundle(directory), threads=1)
    seq = engine.open(16)
    return engine.forward(seq, np.array(IDS), np.arange(len(IDS)), causal_mask(len(IDS))).logits


def nothing_left(directory: Path) -> bool:
    return not list(directory.iterdir())


def test_a_bundle_says_what_it_is_and_vouches_for_every_file(exports: Exports) -> None:
    bundle = exports()
    manifest = bundle.manifest
    assert tuple(exports.steps["tiny-fp32-float16"]) == STEPS
    assert manifest.name == "tiny-fp32-float16"
    assert (manifest.model.n_layers, manifest.model.n_kv_heads, manifest.model.head_dim) == (2, 2, 16)
    assert (manifest.graph.kv_dtype, manifest.graph.weights) == ("float16", "fp32")
    assert manifest.graph.revision == GRAPH_REVISION
    assert manifest.text.eos_ids == [1]
    assert set(manifest.files) == {"model.onnx", "model.onnx.data", "tokenizer.json", "golden.npz"}
    assert set(manifest.parity) == {
        "prefill",
        "chunked prefill",
        "long chunk",
        "far positions",
        "one token on nothing",
        "one token",
        "chain",
        "tree",
        "after a branch",
    }
    assert str(exports.place) not in (bundle.path / "manifest.json").read_text()


@pytest.mark.parametrize("rope", ["llama-longrope-phi-style", "llama-dynamic-rope"])
def test_the_gate_reaches_beyond_the_length_up_to_which_a_rotation_is_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rope: str
) -> None:
    monkeypatch.setattr(checkpoints, "read_limits", lambda config, path: Limits(2 * config.max_position_embeddings))
    source = write_family(tmp_path / "tiny", **VARIANTS[rope])
    with pytest.raises(ParityError, match="of far positions"):
        export_bundle(source, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_bundle_tells_nothing_of_the_machine_that_made_it(exports: Exports) -> None:
    code = Path(pipeline.__file__).parents[2]
    for file in exports().path.iterdir():
        content = file.read_bytes()
        assert str(code).encode() not in content, file.name
        for place in (exports.place, exports.checkpoint):
            assert str(place).encode() not in content, file.name


def test_the_graph_keeps_its_contract(exports: Exports) -> None:
    bundle = exports()
    model = onnx.load(bundle.path / "model.onnx", load_external_data=False)
    half, single, boolean, long = (getattr(onnx.TensorProto, kind) for kind in ("FLOAT16", "FLOAT", "BOOL", "INT64"))
    found = {
        value.name: (
            value.type.tensor_type.elem_type,
            [part.dim_param or part.dim_value for part in value.type.tensor_type.shape.dim],
        )
        for value in (*model.graph.input, *model.graph.output)
    }
    vocab = bundle.manifest.model.vocab_size
    past = {f"past_{kind}_{layer}": (half, ["past", 2, 16]) for kind in "kv" for layer in range(2)}
    new = {f"new_{kind}_{layer}": (half, ["tokens", 2, 16]) for kind in "kv" for layer in range(2)}
    assert found == {
        "input_ids": (long, ["tokens"]),
        "position_ids": (long, ["tokens"]),
        "tree_mask": (boolean, ["tokens", "tokens"]),
        "logits_idx": (long, ["rows"]),
        **past,
        "logits": (single, ["rows", vocab]),
        "features": (half, ["tokens", 64]),
        **new,
    }
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == 18
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}
    # ONNX Runtime 1.23 to 1.29 fold a Transpose that transposes nothing into a wrong matrix product.
    swaps = [list(node.attribute[0].ints) for node in model.graph.node if node.op_type == "Transpose"]
    assert swaps
    assert [axes for axes in swaps if axes == sorted(axes)] == []


def test_logits_are_those_of_transformers(exports: Exports) -> None:
    with torch.inference_mode():
        expected = tiny_model()(torch.tensor([IDS])).logits[0].numpy()
    assert np.abs(logits(exports(kv_dtype="float32").path) - expected).max() < 1e-4


def test_an_untied_head_is_exported_as_such(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "checkpoint", tie_word_embeddings=False)
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions(kv_dtype="float32"))
    with torch.inference_mode():
        expected = tiny_model(tie_word_embeddings=False)(torch.tensor([IDS])).logits[0].numpy()
    assert np.abs(logits(tmp_path / "bundle") - expected).max() < 1e-4


def test_int8_is_near_and_smaller(exports: Exports) -> None:
    whole, bundle = exports(), exports("int8")
    exact, coarse = logits(whole.path), logits(bundle.path)
    assert 0 < np.sqrt(np.mean((coarse - exact) ** 2) / np.mean(exact**2)) < 0.1
    sizes = [(each.path / "model.onnx.data").stat().st_size for each in (whole, bundle)]
    assert sizes[1] < 0.75 * sizes[0]
    assert not bundle.manifest.graph.exact_trees
    assert bundle.manifest.perplexity["held-out text"].tokens > 1000
    assert whole.manifest.perplexity == {}


def test_gguf_and_safetensors_of_one_model_give_the_same_logits_and_tokenizer(exports: Exports, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    one = exports()
    other = export_bundle(tmp_path / "tiny.gguf", tmp_path / "from-gguf")
    assert np.abs(logits(one.path) - logits(other.path)).max() < 1e-4
    prints = [bundle.manifest.fingerprints for bundle in (one, other)]
    assert prints[0].tokenizer_fp == prints[1].tokenizer_fp
    assert prints[0].source_fp != prints[1].source_fp


@pytest.mark.usefixtures("traced_once")
def test_every_export_of_one_checkpoint_has_its_source_fingerprint(exports: Exports, tmp_path: Path) -> None:
    shutil.copytree(exports.checkpoint, tmp_path / "copy")
    copied = export_bundle(tmp_path / "copy", tmp_path / "bundle")
    bundles = [copied, exports(), exports("int8"), exports(kv_dtype="float32")]
    assert {bundle.manifest.fingerprints for bundle in bundles} == {bundles[0].manifest.fingerprints}
    write_safetensors(tmp_path / "other", seed=1)
    assert open_checkpoint(tmp_path / "other").source_fp != bundles[0].manifest.fingerprints.source_fp


@pytest.mark.usefixtures("traced_once")
def test_a_graph_that_computes_something_else_is_not_let_out(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faithful = pipeline.trace

    def perturbed(*arguments: object) -> object:
        graph = faithful(*arguments)  # type: ignore[arg-type]
        value = next(v for v in graph.graph.initializers.values() if v.const_value.numpy().ndim == 2)
        array = value.const_value.numpy().copy()
        array[:, 0] *= 1.5
        value.const_value = pipeline.onnx_ir.tensor(array, name=value.name)
        return graph

    monkeypatch.setattr(pipeline, "trace", perturbed)
    target = tmp_path / "out" / "bundle"
    with pytest.raises(
        ParityError, match=r"differs from transformers in .+ of prefill: .+ allowed; nothing was written"
    ):
        export_bundle(checkpoint, target)
    assert nothing_left(target.parent)


@pytest.mark.usefixtures("traced_once")
def test_an_existing_bundle_outlives_a_failed_export(
    exports: Exports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out" / "bundle"
    shutil.copytree(exports().path, target)
    before = load_bundle(target).manifest

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pipeline.onnx_ir, "save", full)
    with pytest.raises(OSError, match="No space left"):
        export_bundle(exports.checkpoint, target, ExportOptions(weights="int8"))
    assert load_bundle(target).manifest == before
    assert [path.name for path in target.parent.iterdir()] == ["bundle"]


def test_a_directory_that_holds_no_bundle_is_never_replaced(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "own")
    before = sorted(path.name for path in (tmp_path / "own").iterdir())
    (tmp_path / "link").symlink_to(tmp_path / "own")
    for destination in (tmp_path / "own", tmp_path / "link", tmp_path / "own" / "." / ".." / "own"):
        with pytest.raises(UsageError, match="holds files and no bundle: name a new directory"):
            export_bundle(tmp_path / "own", destination)
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == before


@pytest.mark.usefixtures("traced_once")
def test_the_current_directory_can_become_a_bundle(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")
    export_bundle(checkpoint, Path())
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert load_bundle(tmp_path / "new").manifest.name == checkpoint.name


def test_too_little_memory_is_said_before_the_work(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Little:
        available = 1000

    monkeypatch.setattr(psutil, "virtual_memory", Little)
    steps: list[str] = []
    target = tmp_path / "out" / "bundle"
    with pytest.raises(StarsdError, match=r"needs about .+ GB of memory and 0\.0 GB are free"):
        export_bundle(checkpoint, target, progress=steps.append)
    assert steps == [STEPS[0]]
    assert not target.parent.exists()


def test_too_little_disk_is_said_before_the_work(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1000))  # type: ignore[attr-defined]
    with pytest.raises(StarsdError, match="free"):
        export_bundle(checkpoint, tmp_path / "out" / "bundle")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [{"weights": "int3"}, {"kv_dtype": "float8"}])
def test_an_unknown_kind_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="no such kind of bundle"):
        ExportOptions(**options)


def test_an_architecture_that_was_not_compared_is_refused_by_name(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "other")
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    with pytest.raises(UsageError, match="'mamba', which this version does not export"):
        export_bundle(tmp_path / "other", tmp_path / "out")
    assert not (tmp_path / "out").exists()
