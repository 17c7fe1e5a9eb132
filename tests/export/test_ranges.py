"""How large activations become is measured, recorded, and said where float16 may not hold it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from transformers import PreTrainedModel

from starsd_edge.bundles.bundle import load_bundle
from starsd_edge.bundles.manifest import Manifest
from starsd_export.pipeline import ExportOptions, export_bundle
from starsd_export.reference import activation_ranges, range_notes, sample_prompts
from tests.support.small_tokenizers import byte_level
from tests.support.tiny_families import tiny_family

PROMPTS = [[0, 5, 9, 17], [0, 3]]
PLACES = ["embed_tokens", "layers.0", "layers.1", "norm", "lm_head"]


def scaled(weight: str, factor: float, **changes: object) -> PreTrainedModel:
    model = tiny_family(model_type="llama", **changes)
    with torch.no_grad():
        model.get_parameter(weight).mul_(factor)
    return model


def test_every_layer_has_its_largest_magnitude() -> None:
    model = tiny_family(model_type="qwen3", head_dim=16)
    ranges = activation_ranges(model, PROMPTS)
    assert sorted(ranges) == sorted(PLACES)
    rows = torch.tensor([token for prompt in PROMPTS for token in prompt])
    with torch.inference_mode():
        embedded = float(model.get_input_embeddings()(rows).abs().max())
        logits = max(float(model(torch.tensor([prompt])).logits.abs().max()) for prompt in PROMPTS)
    assert ranges["embed_tokens"] == pytest.approx(embedded, rel=1e-3)
    assert ranges["lm_head"] is not None
    assert ranges["lm_head"] >= logits * 0.999
    assert range_notes(ranges) == []


def test_what_goes_into_a_projection_counts_too() -> None:
    calm = activation_ranges(tiny_family(model_type="llama"), PROMPTS)
    # The product of gate and up is large while each of them, and what comes out below, stays moderate.
    model = scaled("model.layers.1.mlp.gate_proj.weight", 300.0)
    with torch.no_grad():
        model.get_parameter("model.layers.1.mlp.up_proj.weight").mul_(300.0)
        model.get_parameter("model.layers.1.mlp.down_proj.weight").mul_(1e-5)
    ranges = activation_ranges(model, PROMPTS)
    assert ranges["layers.0"] == calm["layers.0"]
    assert ranges["layers.1"] is not None
    assert ranges["layers.1"] > 30_000
    [note] = range_notes(ranges)
    assert note.startswith("layers.1 reaches ")
    assert "float16 ends at 65504" in note


def test_values_that_are_not_finite_are_said_to_be_so() -> None:
    ranges = activation_ranges(scaled("model.layers.0.mlp.up_proj.weight", 1e38), PROMPTS)
    assert ranges["layers.0"] is None
    assert "reaches values that are not finite" in range_notes(ranges)[0]


def test_the_hooks_are_gone_afterwards() -> None:
    model = tiny_family(model_type="llama")
    activation_ranges(model, PROMPTS)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_prompts_begin_as_the_model_expects_and_hold_no_padding_ids() -> None:
    tokenizer = {"model": {"type": "WordLevel", "vocab": {"[U]": 0, "a": 9}, "unk_token": "[U]"}}
    assert all(prompt[0] == 3 for prompt in sample_prompts(tokenizer, 3, 5))
    assert all(token < 5 for prompt in sample_prompts(tokenizer, None, 5) for token in prompt)


def test_a_bundle_records_them_and_notes_what_is_too_large(tmp_path: Path) -> None:
    model = scaled("model.layers.1.mlp.up_proj.weight", 1e4, max_position_embeddings=256)
    model.save_pretrained(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "tokenizer.json").write_text(byte_level().to_str(), encoding="utf-8")
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions(kv_dtype="float32"))
    manifest = load_bundle(tmp_path / "bundle").manifest
    assert sorted(manifest.fp16_range) == sorted(PLACES)
    assert len(manifest.notes) == 1
    assert "layers.1 reaches" in manifest.notes[0]


def test_manifests_from_before_have_none() -> None:
    fields = {field.name: field.required for field in msgspec.structs.fields(Manifest)}
    assert not fields["fp16_range"]
    assert not fields["notes"]
