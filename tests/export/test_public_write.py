"""Our heads in the public layout: what is written is what is read, and it is what other programs look for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from starsd_edge.errors import UsageError
from starsd_edge.heads.engine import HeadSpec
from starsd_export.draft_heads.public import read_public_head
from starsd_export.draft_heads.public_tensors import write_public_head

SPEC = HeadSpec(
    kind="eagle",
    hidden_size=16,
    intermediate_size=24,
    n_heads=4,
    n_kv_heads=2,
    head_dim=4,
    vocab_size=40,
    draft_vocab_size=40,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    max_positions=2048,
)


def tensors_of(spec: HeadSpec, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=draw).to(dtype) for name, shape in spec.tensor_shapes().items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "changes",
    [{}, {"fc_bias": True}, {"qkv_bias": True}, {"rope_factor": 4.0}, {"head_dim": 8, "n_kv_heads": 4}],
)
def test_what_is_written_is_what_is_read(changes: dict[str, Any], dtype: torch.dtype, tmp_path: Path) -> None:
    spec = msgspec.structs.replace(SPEC, **changes)
    tensors = tensors_of(spec, dtype)
    write_public_head(tmp_path / "head", spec, tensors, {"eos_token_id": 2})
    read = read_public_head(tmp_path / "head")
    assert read.spec == spec
    assert read.tensors.keys() == tensors.keys() - {"lm_head.weight"}
    assert all(torch.equal(tensor, tensors[name]) and tensor.dtype == dtype for name, tensor in read.tensors.items())
    assert read.notes == ()


def test_the_file_has_the_names_that_other_programs_look_for(tmp_path: Path) -> None:
    spec = msgspec.structs.replace(SPEC, fc_bias=True)
    write_public_head(tmp_path / "head", spec, tensors_of(spec), {"eos_token_id": 2, "vocab_size": 3})
    assert {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / "head/model.safetensors").items()} == {
        "embed_tokens.weight": (40, 16),
        "fc.weight": (16, 32),
        "fc.bias": (16,),
        "layers.0.self_attn.q_proj.weight": (16, 16),
        "layers.0.self_attn.k_proj.weight": (8, 16),
        "layers.0.self_attn.v_proj.weight": (8, 16),
        "layers.0.self_attn.o_proj.weight": (16, 16),
        "layers.0.mlp.gate_proj.weight": (24, 16),
        "layers.0.mlp.up_proj.weight": (24, 16),
        "layers.0.mlp.down_proj.weight": (16, 24),
        "layers.0.post_attention_layernorm.weight": (16,),
    }
    config = json.loads((tmp_path / "head/config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["vocab_size"], config["eos_token_id"], config["bias"]) == (40, 2, True)
    assert config["rope_scaling"] is None
    assert config["torch_dtype"] == "float32"


def test_a_head_of_fewer_guesses_is_written_for_all_of_them(tmp_path: Path) -> None:
    spec = msgspec.structs.replace(SPEC, draft_vocab_size=10)
    write_public_head(tmp_path / "head", spec, tensors_of(spec), {})
    assert read_public_head(tmp_path / "head").spec == SPEC


def test_matrices_that_share_memory_are_written(tmp_path: Path) -> None:
    tensors = tensors_of(SPEC)
    both = torch.randn(48, 16)
    tensors |= {"gate.weight": both[:24], "up.weight": both[24:]}
    write_public_head(tmp_path / "head", SPEC, tensors, {})
    assert torch.equal(read_public_head(tmp_path / "head").tensors["up.weight"], both[24:])


def test_a_head_that_is_not_whole_is_not_written(tmp_path: Path) -> None:
    tensors = tensors_of(SPEC)
    del tensors["embed.weight"]
    with pytest.raises(UsageError, match=r"it lacks embed\.weight"):
        write_public_head(tmp_path / "head", SPEC, tensors, {})
    tensors = tensors_of(msgspec.structs.replace(SPEC, vocab_size=39, draft_vocab_size=39))
    with pytest.raises(UsageError, match=r"embed\.weight \[39, 16\] instead of \[40, 16\]"):
        write_public_head(tmp_path / "head", SPEC, tensors, {})
    assert not (tmp_path / "head").exists()


def test_another_kind_and_a_full_directory_are_refused(tmp_path: Path) -> None:
    spec = msgspec.structs.replace(SPEC, kind="eagle3")
    with pytest.raises(UsageError, match="only EAGLE-1 heads"):
        write_public_head(tmp_path / "head", spec, tensors_of(spec), {})
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds files"):
        write_public_head(tmp_path, SPEC, tensors_of(SPEC), {})
    assert (tmp_path / "notes.txt").read_text() == "mine"
