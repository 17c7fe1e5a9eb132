"""A target's features for EAGLE-3: the states that transformers itself shows, fused by the head's own first layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import PreTrainedModel

import starsd_export.pipeline as pipeline
from starsd_edge.bundles.bundle import load_bundle
from starsd_edge.errors import UsageError
from starsd_edge.runtime.engine import Engine, EngineSpec, causal_mask
from starsd_edge.runtime.loading import open_engine
from starsd_edge.runtime.torch_features import FusedStates, Fusion
from starsd_edge.runtime.torch_model import TargetGraph
from starsd_edge.speculation.tree import ROOT, DraftTree
from starsd_export.draft_heads.fitting import features_for, last_hidden
from starsd_export.parity import ParityError
from starsd_export.pipeline import ExportOptions, export_bundle
from starsd_export.reference import FEATURES, activation_ranges, range_notes
from tests.support import reference_heads
from tests.support.public_heads import write_head
from tests.support.tiny_eagle3 import (
    EPS,
    LAYERS,
    TAPS,
    WIDTH,
    TinyEagle3,
    config,
    random_tensors,
    states_of,
    target_model,
)
from tests.support.tiny_families import tiny_family
from tests.support.tiny_llama import tiny_config
from tests.support.torch_engine import TorchEngine

IDS = [5, 9, 17, 3, 11, 20, 7, 2, 13]
TREE = DraftTree(np.array([4, 8, 12, 10]), np.array([ROOT, 0, ROOT, 2]))
PATHS = ([], [4], [4, 8], [12], [12, 10])
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "smollm3": {"model_type": "smollm3", "no_rope_layer_interval": 2},
}
DEEP = 4
SOURCE_FP = "5" * 64


def states(model: PreTrainedModel, ids: list[int], taps: tuple[int, ...]) -> torch.Tensor:
    """[n, taps * Ht] as transformers shows them."""
    model.set_attn_implementation("sdpa")
    model.config.tie_last_hidden_states = False
    with torch.inference_mode():
        shown = model.base_model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return torch.cat([shown[tap][0] for tap in taps], dim=-1)


def fusion(*, bias: bool = False, norm: bool = False, width: int = 48, gain: float = 1.0) -> Fusion:
    draw = torch.Generator().manual_seed(3)
    weight = torch.randn(width, 3 * 64, generator=draw) * gain / 8
    return Fusion(
        weight,
        torch.randn(width, generator=draw) if bias else None,
        1 + torch.randn(3 * 64, generator=draw) / 4 if norm else None,
        EPS,
    )


def by_hand(shown: torch.Tensor, fused_by: Fusion) -> np.ndarray:
    if fused_by.norm is not None:
        shown = reference_heads.norm(shown, fused_by.norm, fused_by.eps)
    return functional.linear(shown, fused_by.weight, fused_by.bias).numpy()


def torch_engine(model: PreTrainedModel, fused: FusedStates) -> TorchEngine:
    spec = EngineSpec(model.config.vocab_size, "fused_states", fused.width, 64, 64, 64, "float32", True, "0" * 64)
    return TorchEngine(TargetGraph(model, fused), spec)


def features(engine: Engine, ids: list[int], committed: int) -> np.ndarray:
    """Of a text whose first rows are committed, the rest in one pass."""
    seq = engine.open(64)
    found = []
    for part in (ids[:committed], ids[committed:]):
        step = engine.forward(seq, np.array(part), seq.length + np.arange(len(part)), causal_mask(len(part)))
        engine.commit(seq, range(len(part)))
        found.append(step.features)
    together: np.ndarray = np.concatenate(found)
    return together


def near(found: np.ndarray, expected: np.ndarray, bound: float) -> None:
    """Within a share of the largest feature."""
    assert found.dtype == np.float16
    assert np.abs(found.astype(np.float32) - expected).max() <= bound * np.abs(expected).max()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("taps", "variant"),
    [
        ((0, 2, 4), {}),
        ((1, 2, 3), {"bias": True}),
        ((0, 1, 3), {"norm": True, "width": 80}),
        ((1, 3, 4), {"bias": True, "norm": True, "width": 64}),
    ],
)
def test_torch_gives_the_fused_states_of_every_family(
    family: str, taps: tuple[int, ...], variant: dict[str, Any]
) -> None:
    changes = FAMILIES[family] | {"num_hidden_layers": DEEP}
    fused_by = fusion(**variant)
    engine = torch_engine(tiny_family(**changes), FusedStates(taps, fused_by))
    expected = by_hand(states(tiny_family(**changes), IDS, taps), fused_by)
    near(features(engine, IDS, 4), expected, 1e-3)


@pytest.mark.parametrize(("bundle", "bound"), [("target", 5e-3), ("target_int8", 0.2)])
def test_an_exported_graph_gives_them_for_prompts_and_trees(bundle: str, bound: float, tiny_eagle3: TinyEagle3) -> None:
    exported = getattr(tiny_eagle3, bundle)
    graph = exported.manifest.graph
    assert (graph.feature_kind, graph.feature_width, graph.tap_layers) == ("fused_states", WIDTH, list(TAPS))
    assert graph.features_for == tiny_eagle3.head.name
    engine = open_engine(exported, threads=1)
    model, weight = target_model(), load_file(tiny_eagle3.head / "model.safetensors")["fc.weight"]
    near(features(engine, IDS, 4), (states_of(model, IDS) @ weight.T).numpy(), bound)
    seq = engine.open(64)
    engine.forward(seq, np.array(IDS[:-1]), np.arange(len(IDS) - 1), causal_mask(len(IDS) - 1))
    engine.commit(seq, range(len(IDS) - 1))
    tree = engine.forward(seq, TREE.verify_tokens(IDS[-1]), TREE.verify_positions(seq.length), TREE.verify_mask())
    expected = torch.stack([states_of(model, [*IDS, *path])[-1] for path in PATHS]) @ weight.T
    near(tree.features, expected.numpy(), bound)


def test_the_graph_multiplies_the_fusion_in_int8_too(tiny_eagle3: TinyEagle3) -> None:
    graph = onnx_ir.load(tiny_eagle3.target_int8.path / "model.onnx").graph
    shapes = {
        (node.attributes["K"].as_int(), node.attributes["N"].as_int()) for node in graph if "NBits" in node.op_type
    }
    assert (3 * WIDTH, WIDTH) in shapes


def test_what_float16_cannot_hold_is_its_largest_number_and_is_said() -> None:
    model = tiny_family(model_type="llama", num_hidden_layers=DEEP)
    fused = FusedStates((0, 2, 4), fusion(gain=1e6))
    found = features(torch_engine(model, fused), IDS, 4)
    assert np.isfinite(found).all()
    assert found.max() == 65504
    assert found.min() == -65504
    ranges = activation_ranges(model, [IDS], fused)
    assert ranges[FEATURES] is not None
    assert ranges[FEATURES] > 1e6
    (note,) = range_notes(ranges)
    assert note.startswith("fused features reach ")
    assert range_notes(activation_ranges(model, [IDS], FusedStates((0, 2, 4), fusion()))) == []


def test_a_fusion_that_is_not_the_heads_is_not_let_out(
    tiny_eagle3: TinyEagle3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph's states in another order, as from a head that counts its layers otherwise."""

    def swapped(model: PreTrainedModel, kv_dtype: str, fused: FusedStates) -> onnx_ir.Model:
        low, middle, high = fused.weight.chunk(3, dim=1)
        other = Fusion(torch.cat((middle, low, high), dim=1), None, None, EPS)
        return faithful(model, kv_dtype, FusedStates(fused.taps, other))

    faithful = pipeline.trace
    monkeypatch.setattr(pipeline, "trace", swapped)
    with pytest.raises(ParityError, match="differs from transformers in features of prefill"):
        export_bundle(tiny_eagle3.checkpoint, tmp_path / "bundle", ExportOptions(features_for=tiny_eagle3.head))
    assert not list(tmp_path.iterdir())


def published(root: Path, tensors: dict[str, torch.Tensor] | None = None, **changes: Any) -> Path:
    given = {"d2t": torch.zeros(200, dtype=torch.int64), **random_tensors(), **(tensors or {})}
    return write_head(root, config(**changes), given)


def fingerprint(head: Path) -> str:
    return features_for(head, tiny_config(num_hidden_layers=LAYERS)).fingerprint(SOURCE_FP)


def test_the_fingerprint_is_that_of_what_the_features_are(tmp_path: Path) -> None:
    plain = fingerprint(published(tmp_path / "plain"))
    assert fingerprint(published(tmp_path / "other-name", {"lm_head.weight": torch.zeros(200, WIDTH)})) == plain
    half = {name: tensor.to(torch.bfloat16) for name, tensor in random_tensors().items()}
    wide = {name: tensor.float() for name, tensor in half.items()}
    rounded = [fingerprint(published(tmp_path / name, given)) for name, given in (("half", half), ("wide", wide))]
    others = {
        "weights": fingerprint(published(tmp_path / "weights", {"fc.weight": torch.ones(WIDTH, 3 * WIDTH)})),
        "layers": fingerprint(published(tmp_path / "layers", eagle_aux_hidden_state_layer_ids=[0, 1, 2])),
        "bias": fingerprint(published(tmp_path / "bias", {"fc.bias": torch.zeros(WIDTH)})),
        "plain": plain,
        "rounded": rounded[0],
        "of the final norm": last_hidden(tiny_config()).fingerprint(SOURCE_FP),
    }
    assert rounded[0] == rounded[1]
    assert len(set(others.values())) == len(others)


def test_every_export_of_one_checkpoint_and_head_has_their_fingerprint(tiny_eagle3: TinyEagle3) -> None:
    found = {load_bundle(bundle.path).manifest.fingerprints for bundle in (tiny_eagle3.target, tiny_eagle3.target_int8)}
    assert len(found) == 1
    assert tiny_eagle3.drafts.manifest.accepts == [found.pop().feature_fp]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ({"hidden_size": 96}, r"for a model of width 64 with \d+ tokens, and this one has 96"),
        ({"vocab_size": 500}, r"with \d+ tokens, and this one has 64 and 500"),
        ({"num_hidden_layers": 2}, "the inputs of layers 1, 2, 3 .* has 2 layers: it fits another target"),
    ],
)
def test_a_head_for_another_target_is_refused(target: dict[str, int], says: str, tmp_path: Path) -> None:
    head = published(tmp_path / "head")
    with pytest.raises(UsageError, match=says):
        features_for(head, tiny_config(**{"num_hidden_layers": LAYERS, **target}))


def test_a_head_that_reads_no_such_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no head at"):
        features_for(tmp_path / "missing", tiny_config())
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "head.json").write_text("{}")
    with pytest.raises(UsageError, match="whose features every bundle gives: leave --features-for out"):
        features_for(tmp_path / "trained", tiny_config())
