"""Graphs for TensorRT of a tiny model: what is in float16, what is in blocks, and what they compute."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.engine_manifest import (
    EngineHost,
    EngineLimits,
    platform_name,
    require_fit,
    require_plan,
)
from starsd_edge.errors import UsageError
from starsd_edge.runtime.engine import causal_mask
from starsd_edge.runtime.loading import open_engine
from starsd_edge.runtime.onnx_engine import TOP_OUTPUTS, graph_inputs, graph_outputs
from starsd_edge.runtime.tensorrt.plan import require_agreement
from starsd_export.engines.engine_export import EngineOptions, export_engine
from starsd_export.parity import ParityError
from starsd_export.pipeline import ExportOptions, export_bundle
from starsd_export.quantising.stored import StoredMatrices, StoredMatrix
from starsd_export.quantising.storing import WritingRules
from starsd_export.tensorrt_graph import PARITY_BOUND, TensorrtOptions
from tests.support.public_heads import write_head
from tests.support.tiny_eagle3 import GUESSES, LAYERS, WIDTH, config, random_tensors
from tests.support.tiny_families import VARIANTS, exported_family, write_family
from tests.support.tiny_llama import write_safetensors

HALF, SINGLE = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
STORED = {"int8": onnx.TensorProto.INT8, "int4": onnx.TensorProto.INT4}
ONE_LAYER = {"num_hidden_layers": 1}
KINDS = {
    "fp16": ("llama", {}, ExportOptions("fp16", tensorrt=TensorrtOptions())),
    "int8": ("llama", ONE_LAYER, ExportOptions("int8", tensorrt=TensorrtOptions(block=32, head="int4"))),
    "int4": ("qwen3-biases", ONE_LAYER, ExportOptions("int4", tensorrt=TensorrtOptions())),
    "searched": (
        "llama",
        ONE_LAYER,
        ExportOptions("int4", tensorrt=replace(TensorrtOptions.usual("int4"), writing=WritingRules(6, 2, 24))),
    ),
}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Bundle]]:
    place = tmp_path_factory.mktemp("tensorrt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STARSD_CACHE", str(place / "cache"))  # where the text of the searched one is kept
        yield made_bundles(place)


def made_bundles(place: Path) -> dict[str, Bundle]:
    return {
        name: exported_family(place / name, family, options, **changes)
        for name, (family, changes, options) in KINDS.items()
    }


def typed_graph(bundle: Bundle) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(onnx.load(bundle.path / "model.onnx"))


def types_of(model: onnx.ModelProto) -> dict[str, int]:
    graph = model.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    return {v.name: v.type.tensor_type.elem_type for v in values} | {t.name: t.data_type for t in graph.initializer}


def rotated(model: onnx.ModelProto) -> set[str]:
    """The products with RoPE's cosines and sines."""
    found = {output for node in model.graph.node if node.op_type in ("Cos", "Sin") for output in node.output}
    for node in model.graph.node:  # in the order of computation
        if node.op_type in ("Mul", "Unsqueeze") and found & set(node.input):
            found.update(node.output)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_bundle_says_how_its_weights_are_stored_and_passed_its_parity_gate(
    bundles: dict[str, Bundle], kind: str
) -> None:
    manifest = bundles[kind].manifest
    assert manifest.graph.weights == ("int4" if kind == "searched" else kind)
    assert manifest.graph.kv_dtype == "float16"
    assert manifest.graph.tensorrt is not None
    heads = {"fp16": "fp16", "int8": "int4", "int4": "fp16", "searched": "int8"}
    assert manifest.graph.tensorrt.head == heads[kind]
    assert manifest.graph.tensorrt.embedding == ("int8" if kind == "searched" else "fp16")
    assert manifest.graph.tensorrt.wide == (["v", "o", "down"] if kind == "searched" else [])
    assert manifest.graph.tensorrt.calibration == ("own-text" if kind == "searched" else "none")
    assert manifest.graph.tensorrt.block == (0 if kind == "fp16" else 32)
    assert set(manifest.parity) >= {"prefill", "chunked prefill", "one token", "one token on nothing", "tree"}
    assert 0 < max(manifest.parity.values()) < PARITY_BOUND
    assert set(manifest.fp16_range) >= {"embed_tokens", "layers.0", "norm", "lm_head"}
    assert set(manifest.files) == {"model.onnx", "model.onnx.data", "tokenizer.json", "golden.npz"}


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_are_float16_and_what_needs_it_is_float32(bundles: dict[str, Bundle], kind: str) -> None:
    model = typed_graph(bundles[kind])
    types = types_of(model)
    by_operator: dict[str, set[int]] = {}
    for node in model.graph.node:
        by_operator.setdefault(node.op_type, set()).update(types[name] for name in node.input[:1])
    for operator in {"MatMul", "Gemm"} & set(by_operator):
        assert by_operator[operator] == {HALF}
    for operator in ("Softmax", "ReduceMean", "Sqrt", "Cos", "Sin"):  # the softmax's, RMSNorm's, RoPE's
        assert by_operator[operator] == {SINGLE}, operator
    rotations = rotated(model)
    assert len(rotations) > 4
    assert {types[name] for name in rotations} == {SINGLE}
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == (18 if kind == "fp16" else 21)
    matrices = [tensor for tensor in model.graph.initializer if not tensor.name.endswith("_scales")]
    large = {tensor.data_type for tensor in matrices if np.prod(tensor.dims) > 512}
    expected = {
        "fp16": {HALF},
        "int8": {HALF, STORED["int8"], STORED["int4"]},
        "int4": {HALF, STORED["int4"]},
        "searched": {STORED["int8"], STORED["int4"]},  # no large matrix is left in float16
    }
    assert large == expected[kind]


def test_blocks_stand_along_the_inputs_with_a_scale_each(bundles: dict[str, Bundle]) -> None:
    model = onnx.load(bundles["int4"].path / "model.onnx")
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type == "DequantizeLinear"]
    assert len(nodes) == 7  # of one layer; the head keeps float16
    for node in nodes:
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        assert attributes == {"axis": 0, "block_size": 32}
        (inputs, outputs), scales = (shapes[name] for name in node.input)
        assert scales == (inputs // 32, outputs)
        assert len(node.input) == 2  # no zero point: symmetric


def test_a_tied_head_in_blocks_leaves_the_embedding_its_rows(bundles: dict[str, Bundle]) -> None:
    model = onnx.load(bundles["int8"].path / "model.onnx")
    vocab = bundles["int8"].manifest.model.vocab_size
    kinds = {tuple(t.dims): t.data_type for t in model.graph.initializer if vocab in t.dims and 64 in t.dims}
    assert kinds == {(vocab, 64): HALF, (64, vocab): STORED["int4"]}


def test_a_tied_head_and_embedding_in_int8_are_one_matrix(bundles: dict[str, Bundle]) -> None:
    model = onnx.load(bundles["searched"].path / "model.onnx")
    vocab = bundles["searched"].manifest.model.vocab_size
    shapes = [(tuple(t.dims), t.data_type) for t in model.graph.initializer if vocab in t.dims]
    assert sorted(shapes) == [((2, vocab), HALF), ((64, vocab), STORED["int8"])]  # scales, and integers


def test_an_untied_embedding_in_int8_is_a_matrix_of_its_own(tmp_path: Path) -> None:
    checkpoint = write_family(tmp_path / "tiny", **VARIANTS["llama"], **ONE_LAYER | {"tie_word_embeddings": False})
    options = TensorrtOptions(embedding="int8", kv_strategy="inplace", context=160)
    bundle = export_bundle(checkpoint, tmp_path / "bundle", ExportOptions("fp16", tensorrt=options))
    model = onnx.load(bundle.path / "model.onnx")
    vocab = bundle.manifest.model.vocab_size
    large = sorted((tuple(t.dims), t.data_type) for t in model.graph.initializer if {vocab, 64} == set(t.dims))
    assert large in (
        [((64, vocab), STORED["int8"]), ((vocab, 64), HALF)],
        [((64, vocab), STORED["int8"]), ((64, vocab), HALF)],
    )


def test_the_change_of_perplexity_is_kept_by_kind_of_text(bundles: dict[str, Bundle]) -> None:
    kinds = {name: set(bundle.manifest.perplexity) for name, bundle in bundles.items()}
    held_out = {"held-out text"}
    assert kinds == {"fp16": set(), "int8": held_out, "int4": held_out, "searched": {"held-out text", "its own text"}}
    change = bundles["searched"].manifest.perplexity["its own text"]
    assert change.tokens == 2 * 23  # those that the search did not see
    assert 1 < change.before < change.after  # a model that drew its own text is surest of it
    assert re.fullmatch(r"\d+\.\d\d -> \d+\.\d\d \(\+\d+\.\d%\)", str(change))


def test_the_features_of_an_eagle_3_head_are_given_and_what_fuses_them_stays_float32(tmp_path: Path) -> None:
    target = write_safetensors(tmp_path / "target", num_hidden_layers=LAYERS)
    tensors = {"d2t": torch.zeros(GUESSES, dtype=torch.int64), **random_tensors()}
    head = write_head(tmp_path / "head", config(), tensors)
    options = ExportOptions("int8", features_for=head, tensorrt=TensorrtOptions(block=32))
    bundle = export_bundle(target, tmp_path / "bundle", options)  # its parity gate compares the features
    assert bundle.manifest.graph.feature_kind == "fused_states"
    model = onnx.load(bundle.path / "model.onnx")
    assert {t.data_type for t in model.graph.initializer if tuple(t.dims) == (3 * WIDTH, WIDTH)} == {SINGLE}


def test_the_parity_gate_holds_a_quantised_graph_to_its_own_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faithful = StoredMatrices.find

    def shifted(stored: StoredMatrices, weight: np.ndarray) -> StoredMatrix | None:  # what the graph is made of
        matrix = faithful(stored, weight)
        return None if matrix is None else replace(matrix, scales=np.roll(matrix.scales, 1, axis=0))

    monkeypatch.setattr(StoredMatrices, "find", shifted)
    checkpoint = write_family(tmp_path / "tiny", **VARIANTS["llama"], **ONE_LAYER)
    with pytest.raises(ParityError, match="differs from transformers"):
        export_bundle(checkpoint, tmp_path / "bundle", KINDS["int8"][2])


def test_a_chain_and_one_token_steps_choose_the_same_tokens(bundles: dict[str, Bundle]) -> None:
    engine = open_engine(bundles["fp16"], threads=1)
    ids = np.random.default_rng(1).integers(0, 300, 40)
    chain, steps = engine.open(64), engine.open(64)
    together = engine.forward(chain, ids, np.arange(40), causal_mask(40)).logits.argmax(axis=1)
    alone = []
    for position, token in enumerate(ids):
        step = engine.forward(steps, np.array([token]), np.array([position]), causal_mask(1))
        engine.commit(steps, [0])
        alone.append(int(step.logits[0].argmax()))
    assert alone == together.tolist()


@pytest.mark.parametrize(("kind", "sm"), [("fp16", "sm86"), ("int8", "sm89"), ("searched", "sm120")])
def test_an_engine_is_built_without_a_gpu_and_fits_its_bundle(
    bundles: dict[str, Bundle], tmp_path: Path, kind: str, sm: str
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="not run: no tensorrt_rtx (pip install '.[tensorrt-rtx]')")
    bundle, phases = bundles[kind], []
    options = EngineOptions("tensorrt-rtx", (sm,), context=128)
    built = export_engine(bundle, options, tmp_path / "engine", lambda report: phases.append(report.phase))
    engine = built.manifest
    assert not built.was_there
    assert phases
    here = EngineHost("tensorrt_rtx", engine.version, sm, platform_name())
    require_fit(built.path, engine, here, bundle.manifest)
    require_agreement(built.path, engine, bundle.manifest)
    assert require_plan(built.path, engine).stat().st_size > 100_000
    assert engine.limits == EngineLimits(max_context=128, max_tree=64, max_chunk=256)
    layers = bundle.manifest.model.n_layers
    names = {mode: [t.name for t in engine.tensors if t.mode == mode] for mode in ("input", "output")}
    assert names == {"input": graph_inputs(layers), "output": [*graph_outputs(layers), *TOP_OUTPUTS]}
    again = export_engine(bundle, options, tmp_path / "engine", lambda report: pytest.fail("built again"))
    assert again.was_there
    assert again.manifest == engine


def test_kinds_that_there_are_not_are_refused() -> None:
    with pytest.raises(UsageError, match="--weights is fp16 or int8 or int4, not 'fp32'"):
        ExportOptions("fp32", tensorrt=TensorrtOptions())
    with pytest.raises(UsageError, match="--kv is float16, not 'float32'"):
        ExportOptions("fp16", "float32", tensorrt=TensorrtOptions())
    with pytest.raises(UsageError, match="--block is 32 or 64 or 128, not 48"):
        TensorrtOptions(block=48)
    with pytest.raises(UsageError, match="--head-weights is fp16 or int8 or int4, not 'fp8'"):
        TensorrtOptions(head="fp8")
    with pytest.raises(UsageError, match="--embedding-weights is fp16 or int8, not 'int4'"):
        TensorrtOptions(embedding="int4")
    with pytest.raises(UsageError, match="--keep-int8 is none, or some of q,k,v,o,gate,up,down, not 'lm_head'"):
        TensorrtOptions(wide=("v", "lm_head"))
    with pytest.raises(UsageError, match="--calibration is none or own-text, not 'pile'"):
        TensorrtOptions(calibration="pile")
    with pytest.raises(UsageError, match="--calibration own-text is for --weights int4: leave it away"):
        ExportOptions("int8", tensorrt=TensorrtOptions(calibration="own-text"))
    with pytest.raises(UsageError, match="--keep-int8 is for --weights int4: leave it away"):
        ExportOptions("fp16", tensorrt=TensorrtOptions(wide=("v",)))
