"""Directories that do not say clearly what model they hold are refused in one line that names what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from starsd_edge.errors import UsageError
from starsd_export.checkpoint import checkpoint_tokenizer, open_checkpoint
from tests.support.small_tokenizers import byte_level
from tests.support.tiny_families import CONTEXT, DYNAMIC, LONGROPE, VARIANTS, YARN, write_family

INDEX = "model.safetensors.index.json"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_family(tmp_path / "tiny", model_type="llama", tie_word_embeddings=False)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_family(tmp_path / "sharded", model_type="llama", shard_size="100KB")


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        open_checkpoint(path).load()
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def configure(path: Path, **changes: Any) -> Path:
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return path


def alter(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    tensors = load_file(path / "model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(tensors)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "model.norm.weight", "model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"]
)
def test_a_missing_tensor_is_named_and_never_made_up(llama: Path, name: str) -> None:
    assert f"it lacks {name}" in refusal(alter(llama, lambda tensors: tensors.pop(name)))


def test_many_missing_tensors_are_counted(llama: Path) -> None:
    configure(llama, num_hidden_layers=3)
    assert "model.layers.2.input_layernorm.weight" in (message := refusal(llama))
    assert "and 6 more" in message


def test_a_tensor_without_a_place_is_named(llama: Path) -> None:
    alter(llama, lambda tensors: tensors.update({"model.layers.0.self_attn.sinks": torch.zeros(4)}))
    assert "has, without a place in LlamaForCausalLM, model.layers.0.self_attn.sinks" in refusal(llama)


def test_a_wrong_shape_is_named_with_both(llama: Path) -> None:
    assert "model.layers.0.mlp.up_proj.weight [96, 64] instead of [80, 64]" in refusal(
        configure(llama, intermediate_size=80)
    )


def test_rotation_tables_of_old_checkpoints_do_no_harm(llama: Path) -> None:
    alter(llama, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}))
    assert open_checkpoint(llama).load() is not None


def test_shards_are_read_as_one(sharded: Path, tmp_path: Path) -> None:
    assert len(list(sharded.glob("model-*.safetensors"))) > 2
    whole = write_family(tmp_path / "whole", model_type="llama")
    ours, expected = open_checkpoint(sharded), open_checkpoint(whole)
    assert ours.source_fp == expected.source_fp
    assert ours.weight_bytes == expected.weight_bytes
    weights = expected.load().state_dict()
    assert all(torch.equal(values, weights[name]) for name, values in ours.load().state_dict().items())


def test_another_form_of_the_weights_beside_the_shards_is_left_alone(sharded: Path) -> None:
    save_file({"layers.0.attention.wq.weight": torch.zeros(2, 2)}, sharded / "consolidated.safetensors")
    assert open_checkpoint(sharded).load() is not None


def test_a_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    assert f"lacks {shard.name}" in refusal(sharded)


def test_a_tensor_that_the_index_promises_in_vain_is_named(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"]["model.extra.weight"] = next(iter(index["weight_map"].values()))
    (sharded / INDEX).write_text(json.dumps(index))
    assert "names model.extra.weight, which no file holds" in refusal(sharded)


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "a/b.safetensors"])
def test_an_index_cannot_lead_out_of_the_directory(sharded: Path, name: str) -> None:
    (sharded / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    assert "names files outside the checkpoint" in refusal(sharded)


@pytest.mark.parametrize("contents", [{}, {"weight_map": []}, {"weight_map": {"a": 3}}])
def test_an_index_of_another_form_is_refused(sharded: Path, contents: Any) -> None:
    (sharded / INDEX).write_text(json.dumps(contents))
    assert "does not say which file holds which tensor" in refusal(sharded)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "mixtral"}, "'mixtral', which this version does not export"),
        ({"model_type": "gemma3_text"}, "(supported: llama, mistral, qwen2, qwen3, smollm3)"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "holds a LlamaForSequenceClassification"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised weights (kind 'gptq')"),
        ({"rope_parameters": {"rope_type": "mrope", "rope_theta": 1e4}}, "RoPE scaling 'mrope'"),
        ({"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}}, "RoPE scaling 'proportional'"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "rotates 0.5 of each head"),
        ({"head_dim": 15}, "configuration that transformers refuses"),
        ({"hidden_size": "wide"}, "config.json has a wrong hidden_size (Expected `int`, got `str`)"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "4"}}, "wrong rope_parameters.factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": None}}, "linear RoPE scaling without its factor"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "wrong rope_parameters.rope_theta"),
        ({"rope_parameters": {**LONGROPE, "short_factor": [1.0, 2.0]}}, "short_factor of 2 numbers for heads of 16"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "RoPE scaling 'by kind of layer'"),
        ({"hidden_act": "foo"}, "the hidden_act 'foo', which transformers lacks"),
        ({"num_hidden_layers": 10**9}, "wrong num_hidden_layers (Expected `int` <= 4096)"),
        ({"max_position_embeddings": 10**30}, "wrong max_position_embeddings"),
        ({"eos_token_id": "</s>"}, "wrong eos_token_id (Expected `int | array | null`, got `str`)"),
        ({"bos_token_id": [0]}, "wrong bos_token_id"),
        ({"per_layer_config": {"0": {"hidden_size": 3}}}, "layers of different shapes"),
        ({"max_position_embeddings": 100}, "a context of 100 tokens; at least 160 are needed"),
    ],
)
def test_a_configuration_that_cannot_be_followed_is_refused_by_name(
    llama: Path, changes: dict[str, Any], said: str
) -> None:
    assert said in refusal(configure(llama, **changes))


def write(path: Path, name: str, contents: Any) -> Path:
    (path / name).write_text(json.dumps(contents))
    return path


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (
            {"eos_token_id": -1},
            "generation_config.json has -1 as eos_token_id, which is no id of its vocabulary of 391",
        ),
        ({"eos_token_id": [1, 9999]}, "has 9999 as eos_token_id"),
        ({"eos_token_id": [1, "</s>"]}, "wrong eos_token_id[1] (Expected `int`, got `str`)"),
        ({"eos_token_id": 10**400}, "wrong eos_token_id"),
        ({"bos_token_id": 391}, "has 391 as bos_token_id"),
        ({"bos_token_id": True}, "wrong bos_token_id (Expected `int | null`, got `bool`)"),
    ],
)
def test_ids_that_are_none_are_refused_with_file_and_key(llama: Path, contents: Any, said: str) -> None:
    message = refusal(write(llama, "generation_config.json", contents))
    assert said in message
    assert len(message) < 400


def test_keys_that_decide_no_text_change_nothing(llama: Path) -> None:
    """They would change how transformers runs the model here, or keep it from being made."""
    loose = {
        "pad_token_id": 99999,
        "_attn_implementation": "flash_attention_2",
        "return_dict": False,
        "id2label": {"a": 1},
    }
    expected = open_checkpoint(llama).load().state_dict()
    found = open_checkpoint(configure(llama, **loose)).load()
    assert found.config.return_dict
    assert all(torch.equal(values, expected[name]) for name, values in found.state_dict().items())


def test_what_the_configuration_leaves_to_transformers_is_said(llama: Path) -> None:
    config = json.loads((llama / "config.json").read_text())
    for name in ("rms_norm_eps", "rope_parameters"):
        del config[name]
    (note,) = open_checkpoint(write(llama, "config.json", config)).limits.notes
    assert "taken from transformers' defaults: rms_norm_eps 1e-06, rope_theta 10000.0" in note


def tokenizer_with(llama: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    contents = json.loads((llama / "tokenizer.json").read_text())
    change(contents)
    return write(llama, "tokenizer.json", contents)


def test_an_added_token_without_a_row_is_left_out_and_said(llama: Path) -> None:
    size = byte_level().get_vocab_size()
    tokenizer_with(
        llama, lambda all_: all_["added_tokens"].append({**all_["added_tokens"][0], "id": size, "content": "[P]"})
    )
    checkpoint = open_checkpoint(llama)
    assert "'[P]' is left out" in checkpoint.limits.notes[0]
    assert max(checkpoint_tokenizer(checkpoint).encode("a[P]b")) < size


def writes_beyond(contents: dict[str, Any]) -> None:
    first = {"SpecialToken": {"id": "<q>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    contents["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<q>": {"id": "<q>", "ids": [99999], "tokens": ["<q>"]}},
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda contents: contents["model"]["vocab"].update(zzz=391), "ids reach 391 and a model with 391 rows"),
        (writes_beyond, "ids reach 99999 and a model with 391 rows"),
        (
            lambda contents: contents.update(model={"type": "BPE", "vocab": {}, "merges": []}, added_tokens=[]),
            "a tokenizer without any token",
        ),
    ],
)
def test_a_tokenizer_of_another_model_is_refused(
    llama: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    assert said in refusal(tokenizer_with(llama, change))


def test_added_tokens_of_another_form_are_refused_by_key(llama: Path) -> None:
    write(llama, "tokenizer_config.json", {"added_tokens_decoder": {"0": {"content": 3}}})
    assert "tokenizer_config.json has a wrong added_tokens_decoder[...].content" in refusal(llama)


def test_an_adapter_is_no_model(llama: Path) -> None:
    (llama / "adapter_config.json").write_text("{}")
    assert "merge it into its model first" in refusal(llama)


@pytest.mark.parametrize(
    ("changes", "length", "said"),
    [
        ({"model_type": "mistral", "sliding_window": 512}, 512, "sliding window"),
        ({"model_type": "mistral", "sliding_window": 4096}, CONTEXT, None),
        ({"model_type": "mistral", "sliding_window": None}, CONTEXT, None),
        ({"model_type": "qwen2", "sliding_window": 512}, CONTEXT, None),  # off unless use_sliding_window
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 512, "max_window_layers": 1},
            512,
            "sliding window",
        ),
        (
            {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 512, "max_window_layers": 2},
            CONTEXT,
            None,
        ),
        ({"model_type": "llama", "rope_parameters": YARN}, CONTEXT, None),
        ({"model_type": "llama", "rope_parameters": DYNAMIC}, CONTEXT, None),
        ({"model_type": "llama", "rope_parameters": LONGROPE}, 512, "longrope RoPE scaling"),
        (VARIANTS["llama-longrope-phi-style"], 512, "longrope RoPE scaling"),
    ],
)
def test_the_context_ends_where_the_static_graph_would_differ(
    tmp_path: Path, changes: dict[str, Any], length: int, said: str | None
) -> None:
    limits = open_checkpoint(write_family(tmp_path / "tiny", **changes)).limits
    assert limits.max_context == length
    assert len(limits.notes) == (said is not None)
    assert said is None or said in limits.notes[0]


def test_every_variant_of_the_families_is_listed() -> None:
    assert {changes["model_type"] for changes in VARIANTS.values()} == {
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "smollm3",
    }
