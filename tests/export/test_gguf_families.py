"""A GGUF file of every family makes the very model that its safetensors directory makes, or is refused by name."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from starsd_edge.errors import UsageError
from starsd_export.checkpoint import open_checkpoint
from tests.support.tiny_families import LINEAR, LLAMA3, SHORT, VARIANTS, YARN, tiny_family
from tests.support.tiny_gguf import Tensors, write_model, write_parts

IDS = np.random.default_rng(3).integers(0, 300, 200).tolist()
PLAIN = [name for name in VARIANTS if "rope" not in name and "yarn" not in name and "mistral" not in name]


def logits(model: PreTrainedModel) -> np.ndarray:
    with torch.inference_mode():
        found: np.ndarray = model(torch.tensor([IDS])).logits[0].numpy()
    return found


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        open_checkpoint(path).load()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", PLAIN)
def test_every_weight_is_where_it_belongs(name: str, tmp_path: Path) -> None:
    stock = tiny_family(**VARIANTS[name] | ({"no_rope_layer_interval": 4} if name == "smollm3" else {}))
    model = open_checkpoint(write_model(tmp_path / "m.gguf", stock)).load()
    assert type(model) is type(stock)
    for (ours, values), (theirs, expected) in zip(model.state_dict().items(), stock.state_dict().items(), strict=True):
        assert ours == theirs
        assert torch.equal(values, expected), ours
    assert np.abs(logits(model) - logits(stock)).max() < 1e-5


@pytest.mark.parametrize(
    ("rope", "fields"),
    [
        (LINEAR, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        (LINEAR, {"rope.scaling.factor": 4.0}),
        (LINEAR, {"rope.scale_linear": 4.0}),
        ({"rope_type": "default", "rope_theta": 10000.0}, {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}),
        (
            YARN,
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": SHORT["original_max_position_embeddings"],
            },
        ),
    ],
)
def test_rope_scalings_are_followed(rope: dict[str, Any], fields: dict[str, Any], tmp_path: Path) -> None:
    stock = tiny_family(model_type="llama", rope_parameters=rope)
    model = open_checkpoint(write_model(tmp_path / "m.gguf", stock, fields=fields)).load()
    assert np.abs(logits(model) - logits(stock)).max() < 1e-4


def test_the_divisors_of_llama_3_1_are_followed(tmp_path: Path) -> None:
    stock = tiny_family(model_type="llama", rope_parameters=LLAMA3)
    plain = tiny_family(model_type="llama").base_model.rotary_emb.inv_freq
    divisors = (plain / stock.base_model.rotary_emb.inv_freq).numpy()

    def add(tensors: Tensors) -> None:
        tensors["rope_freqs.weight"] = divisors

    model = open_checkpoint(write_model(tmp_path / "m.gguf", stock, alter=add)).load()
    assert divisors.max() > 2
    assert np.abs(logits(model) - logits(stock)).max() < 1e-3  # a division more per frequency, at position 200


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 4.0}, "RoPE scaling 'longrope'"),
        ({"rope.scaling.type": "yarn", "rope.scaling.attn_factor": 2.0}, "llama.rope.scaling.attn_factor to 2.0"),
        ({"attention.sliding_window": 128}, "llama.attention.sliding_window to 128"),
        ({"expert_count": 8}, "llama.expert_count to 8"),
        ({"logit_scale": 0.5}, "llama.logit_scale to 0.5"),
    ],
)
def test_a_setting_that_cannot_be_followed_is_refused_by_name(
    fields: dict[str, Any], said: str, tmp_path: Path
) -> None:
    assert said in refusal(write_model(tmp_path / "m.gguf", tiny_family(model_type="llama"), fields=fields))


def drop(name: str) -> Any:
    return lambda tensors: tensors.pop(name)


def widen(name: str) -> Any:
    return lambda tensors: tensors.update({name: np.zeros((3, 64), np.float32)})


@pytest.mark.parametrize(
    ("alter", "said"),
    [
        (drop("blk.1.attn_k.weight"), "lacks model.layers.1.self_attn.k_proj.weight"),
        (drop("token_embd.weight"), "lacks 'token_embd.weight'"),
        (widen("blk.0.ffn_up.weight"), "model.layers.0.mlp.up_proj.weight [3, 64] instead of [96, 64]"),
        (widen("blk.0.attn_q.weight"), "model.layers.0.self_attn.q_proj.weight [3, 64] instead of [64, 64]"),
        (widen("blk.0.ffn_gate_inp.weight"), "without a place in LlamaForCausalLM, blk.0.ffn_gate_inp.weight"),
        (widen("blk.7.attn_q.weight"), "without a place in LlamaForCausalLM, model.layers.7.self_attn.q_proj.weight"),
    ],
)
def test_a_tensor_that_is_missing_or_wrong_or_too_much_is_named(alter: Any, said: str, tmp_path: Path) -> None:
    assert said in refusal(write_model(tmp_path / "m.gguf", tiny_family(model_type="llama"), alter=alter))


def test_divisors_of_another_width_are_refused(tmp_path: Path) -> None:
    def add(tensors: Tensors) -> None:
        tensors["rope_freqs.weight"] = np.ones(3, np.float32)

    path = write_model(tmp_path / "m.gguf", tiny_family(model_type="llama"), alter=add)
    assert "3 RoPE factors" in refusal(path)


def patched(path: Path, key: bytes, offset: int, new: bytes) -> Path:
    """The file with some bytes changed, counted from the end of a field's name."""
    raw = path.read_bytes()
    at = raw.index(key) + len(key) + offset
    path.write_bytes(raw[:at] + new + raw[at + len(new) :])
    return path


@pytest.mark.parametrize(
    ("key", "offset", "new", "said"),
    [
        (b"tokenizer.ggml.tokens", 8, struct.pack("<Q", 1 << 60), "ends before what its header announces"),
        (b"tokenizer.ggml.bos_token_id", 4, struct.pack("<I", 0xFFFFFFFF), "4294967295 as bos_token_id"),
        (b"tokenizer.ggml.bos_token_id", 0, struct.pack("<I", 6), "wrong tokenizer.ggml.bos_token_id"),
        (b"llama.attention.head_count", 0, struct.pack("<I", 6), "wrong llama.attention.head_count"),
        (b"llama.block_count", 4, struct.pack("<I", 0xFFFFFFF0), "wrong llama.block_count (Expected `int` <= 4096)"),
        (b"llama.rope.freq_base", 4, struct.pack("<f", 0), "wrong llama.rope.freq_base"),
        (b"general.architecture", 12, b"\xff\xfe", "no whole GGUF file"),
        (b"general.architecture", 4, struct.pack("<Q", 1 << 62), "ends before what its header announces"),
        (b"GGUF", 4, struct.pack("<QQ", 1 << 62, 1 << 62), "ends before what its header announces"),
    ],
)
def test_a_field_that_cannot_be_is_refused_in_one_line(
    key: bytes, offset: int, new: bytes, said: str, tmp_path: Path
) -> None:
    assert said in refusal(patched(write_model(tmp_path / "m.gguf", tiny_family(model_type="llama")), key, offset, new))


def test_arrays_in_arrays_end_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    head = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<I", 9)
    path.write_bytes(head + struct.pack("<IQ", 9, 1) * 50_000)
    assert "no whole GGUF file" in refusal(path)


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    return write_parts(tmp_path / "m", tiny_family(model_type="llama"), 3)


def test_a_split_model_is_the_whole_one(parts: list[Path], tmp_path: Path) -> None:
    whole = open_checkpoint(write_model(tmp_path / "whole.gguf", tiny_family(model_type="llama")))
    split = open_checkpoint(parts[0])
    assert split.source_fp == whole.source_fp
    expected = whole.load().state_dict()
    assert all(torch.equal(values, expected[name]) for name, values in split.load().state_dict().items())


def test_parts_that_do_not_make_a_model_are_named(parts: list[Path], tmp_path: Path) -> None:
    first, second, third = parts
    assert f"give the first, {first.name}" in refusal(second)
    contents = second.read_bytes()
    second.unlink()
    assert f"{second} is missing, part 2 of 3" in refusal(first)
    shutil.copy(third, second)
    assert "says that it is part 3 of 3 and not 2 of 3" in refusal(first)
    second.write_bytes(contents[: len(contents) // 2])
    assert f"{second} is no whole GGUF file" in refusal(first)
    second.write_bytes(contents)
    renamed = first.rename(tmp_path / "model.gguf")
    assert "one of 3 parts" in (message := refusal(renamed))
    assert "llama-gguf-split --merge" in message
    other = write_parts(tmp_path / "other", tiny_family(model_type="llama", num_hidden_layers=1), 3)
    renamed.rename(first)
    shutil.copy(other[1], second)
    assert "should hold" in refusal(first) or "same name" in refusal(first)
