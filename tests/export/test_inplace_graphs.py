"""Graphs with caches of a fixed size: what they are, what a pass leaves alone, and engines built from them. What the
engine that runs them promises is asked in tests/runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.errors import EngineError, UsageError
from starsd_edge.runtime.engine import causal_mask
from starsd_edge.runtime.loading import open_engine
from starsd_edge.runtime.onnx_engine import InplaceSequence, OnnxInplaceEngine
from starsd_edge.runtime.tensorrt.plan import require_agreement
from starsd_export.engines.engine_export import EngineOptions, export_engine
from starsd_export.pipeline import ExportOptions
from starsd_export.tensorrt_graph import PARITY_BOUND, TensorrtOptions
from tests.support.tiny_families import exported_family

CONTEXT = 192
CAPACITY = CONTEXT + 64
IDS = [5, 9, 17, 3, 11, 20, 7, 2]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    place = tmp_path_factory.mktemp("inplace")
    options = ExportOptions("fp16", tensorrt=TensorrtOptions(kv_strategy="inplace", context=CONTEXT))
    return exported_family(place, "llama", options, num_hidden_layers=1)


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> OnnxInplaceEngine:
    opened = open_engine(bundle, threads=1)
    assert isinstance(opened, OnnxInplaceEngine)
    return opened


def prefilled(engine: OnnxInplaceEngine, ids: list[int]) -> InplaceSequence:
    seq = engine.open(64)
    logits(engine, seq, ids)
    engine.commit(seq, range(len(ids)))
    return seq


def logits(engine: OnnxInplaceEngine, seq: InplaceSequence, ids: list[int]) -> np.ndarray:
    positions = seq.length + np.arange(len(ids))
    return engine.forward(seq, np.array(ids), positions, causal_mask(len(ids))).logits


def test_a_bundle_says_how_large_its_caches_are_and_passed_its_parity_gate(bundle: Bundle) -> None:
    manifest = bundle.manifest
    assert (manifest.graph.kv_strategy, manifest.graph.opset) == ("inplace", 24)
    assert manifest.graph.tensorrt is not None
    assert manifest.graph.tensorrt.capacity == CAPACITY
    assert manifest.model.max_context == CONTEXT
    assert set(manifest.parity) >= {"prefill", "chunked prefill", "one token", "one token on nothing", "tree"}
    assert 0 < max(manifest.parity.values()) < PARITY_BOUND
    assert set(manifest.fp16_range) >= {"embed_tokens", "layers.0", "norm", "lm_head"}


def test_the_graph_keeps_its_contract(bundle: Bundle) -> None:
    model = onnx.load(bundle.path / "model.onnx", load_external_data=False)
    shapes = {
        value.name: [part.dim_param or part.dim_value for part in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    cache = [1, 2, CAPACITY, 16]
    vocab = bundle.manifest.model.vocab_size
    assert shapes == {
        "input_ids": ["tokens"],
        "position_ids": ["tokens"],
        "tree_mask": ["tokens", "tokens"],
        "past_len": [1],
        "logits_idx": ["rows"],
        "past_k_0": cache,
        "past_v_0": cache,
        "logits": ["rows", vocab],
        "features": ["tokens", 64],
        "present_k_0": cache,
        "present_v_0": cache,
        "top_ids": ["rows", 2],
        "top_logits": ["rows", 2],
    }
    kinds = [node.op_type for node in model.graph.node]
    assert (kinds.count("TensorScatter"), kinds.count("Attention")) == (2, 1)
    assert [len(node.output) for node in model.graph.node if node.op_type == "Attention"] == [1]


def test_a_pass_writes_its_own_rows_and_no_others(engine: OnnxInplaceEngine) -> None:
    seq = prefilled(engine, IDS[:3])
    before = [cache.copy() for cache in (*seq.keys, *seq.values)]
    logits(engine, seq, IDS[3:5])
    for old, new in zip(before, (*seq.keys, *seq.values), strict=True):
        changed = np.flatnonzero((old != new).any(axis=(0, 1, 3)))
        assert changed.tolist() == [3, 4]


def test_what_lies_behind_the_committed_rows_counts_nothing(engine: OnnxInplaceEngine) -> None:
    clean, dirty = prefilled(engine, IDS[:3]), prefilled(engine, IDS[:3])
    for cache in (*dirty.keys, *dirty.values):
        cache[:, :, 3:] = 7.0
    assert np.array_equal(logits(engine, clean, IDS[3:]), logits(engine, dirty, IDS[3:]))


def test_limits_are_kept_by_the_engine_because_no_runtime_does(engine: OnnxInplaceEngine) -> None:
    assert engine.spec.max_context == CONTEXT
    seq = engine.open(CONTEXT)
    seq.length = CONTEXT
    with pytest.raises(EngineError, match=rf"a pass of 65 tokens on {CONTEXT} committed ones does not fit {CAPACITY}"):
        logits(engine, seq, [1] * 65)


def test_an_engine_is_built_whose_caches_are_aliased(bundle: Bundle, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="not run: no tensorrt_rtx (pip install '.[tensorrt-rtx]')")
    built = export_engine(bundle, EngineOptions("tensorrt-rtx", ("sm89",)), tmp_path / "engine").manifest
    assert built.aliases == {"present_k_0": "past_k_0", "present_v_0": "past_v_0"}
    assert built.kv_strategy == "inplace"
    require_agreement(tmp_path / "engine", built, bundle.manifest)
    assert built.limits.max_context == CONTEXT
    with pytest.raises(UsageError, match=f"has caches for {CONTEXT} tokens: another --context needs another bundle"):
        export_engine(bundle, EngineOptions("tensorrt-rtx", ("sm89",), context=100), tmp_path / "other")


def test_a_context_that_the_model_does_not_have_is_refused() -> None:
    options = TensorrtOptions(kv_strategy="inplace", context=2000)
    with pytest.raises(UsageError, match=r"--context 2000 is not within 160 and 1024"):
        options.max_context(1024)
    with pytest.raises(UsageError, match="--kv-strategy is append or inplace, not 'paged'"):
        TensorrtOptions(kv_strategy="paged")
