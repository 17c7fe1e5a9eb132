"""Published heads are read whole or refused in one line that names what is in the way."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from starsd_edge.errors import UsageError
from starsd_export.draft_heads.public import PublicHead, read_public_head
from tests.support.public_heads import (
    GUESSES,
    HIDDEN,
    KEPT,
    NUMBERS,
    SPECULATORS,
    VARIANTS,
    VOCAB,
    Variant,
    random_tensors,
    write_head,
)

LAYERS = 28
WEIGHTS = "model.safetensors"


def everything(variant: Variant) -> dict[str, torch.Tensor]:
    return random_tensors({**variant.shapes, **variant.optional})


def written(root: Path, name: str, **changes: Any) -> Path:
    variant = VARIANTS[name]
    return write_head(root / name, variant.config | changes, everything(variant))


def altered(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    tensors = {name: tensor.clone() for name, tensor in load_file(directory / WEIGHTS).items()}
    change(tensors)
    save_file(tensors, directory / WEIGHTS)
    return directory


def refusal(directory: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read_public_head(directory)
    assert "\n" not in str(caught.value)
    assert str(directory) in str(caught.value)
    return str(caught.value)


def lacking(message: str) -> list[str]:
    """The spellings of the one tensor that a message says is not there."""
    return message.partition("it lacks ")[2].partition(";")[0].split(" or ")


def equal(head: PublicHead, other: PublicHead) -> bool:
    return head.tensors.keys() == other.tensors.keys() and all(
        torch.equal(tensor, other.tensors[name]) for name, tensor in head.tensors.items()
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_every_tensor_of_every_layout_finds_its_place(name: str, tmp_path: Path) -> None:
    head = read_public_head(written(tmp_path, name))
    shapes = head.spec.tensor_shapes()
    assert shapes.keys() - head.tensors.keys() <= {"embed.weight", "lm_head.weight"}
    assert all(tuple(tensor.shape) == shapes[key] for key, tensor in head.tensors.items())
    assert head.draft_ids.dtype == np.int64
    assert head.draft_ids.tolist() == (KEPT if head.spec.draft_vocab_size == GUESSES else list(range(VOCAB)))
    assert head.spec.max_positions == 2048
    assert (head.fusion is not None) == (head.taps is not None) == (head.spec.kind == "eagle3")
    assert head.notes == ()


@pytest.mark.parametrize("name", VARIANTS)
def test_what_may_be_left_out_is_the_targets(name: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    head = read_public_head(write_head(tmp_path / name, variant.config, random_tensors(variant.shapes)))
    assert ("embed.weight" in head.tensors) == ("embed_tokens.weight" in variant.shapes)
    assert ("lm_head.weight" in head.tensors) == ("lm_head.weight" in variant.shapes)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    for lost in variant.shapes:
        tensors = everything(variant)
        del tensors[lost]
        assert lost in lacking(refusal(write_head(tmp_path / "head", variant.config, tensors)))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("renaming", ["{}_", "extra.{}", "model.{}"])
def test_a_renamed_tensor_is_named(name: str, renaming: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    for old in {**variant.shapes, **variant.optional}:
        tensors = everything(variant)
        new = renaming.format(old)
        tensors[new] = tensors.pop(old)
        message = refusal(write_head(tmp_path / "head", variant.config, tensors))
        assert f"without a place in an EAGLE-{'3' if 'eagle3' in name else '1 or EAGLE-2'} head, {new}" in message
        assert old in variant.optional or old in lacking(message)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_tensor_of_another_shape_is_named_with_both(name: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    for misshaped, shape in {**variant.shapes, **variant.optional}.items():
        for axis in range(len(shape)):
            tensors = everything(variant)
            tensors[misshaped] = torch.cat((tensors[misshaped], tensors[misshaped].narrow(axis, 0, 1)), dim=axis)
            wrong = list(tensors[misshaped].shape)
            message = refusal(write_head(tmp_path / "head", variant.config, tensors))
            assert f"{misshaped} {wrong} instead of {list(shape)}" in message


def test_a_file_with_nothing_of_a_head_is_no_head(tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", NUMBERS, {"medusa_head.0.weight": torch.zeros(2, 2)})
    assert "holds no head of EAGLE-1, EAGLE-2 or EAGLE-3" in refusal(head)


def test_speculators_of_other_kinds_are_no_heads(tmp_path: Path) -> None:
    assert "no head of EAGLE-1" in refusal(written(tmp_path, "eagle-speculators", speculators_model_type="dflash"))


def test_two_tensors_for_one_place_are_named(tmp_path: Path) -> None:
    head = altered(
        written(tmp_path, "eagle3"), lambda tensors: tensors.update({"layers.0.hidden_norm.weight": torch.ones(HIDDEN)})
    )
    assert "midlayer.hidden_norm.weight and layers.0.hidden_norm.weight, which have one place" in refusal(head)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("eagle3", {"num_hidden_layers": 2}, "num_hidden_layers = 2, which this version does not run (supported: one"),
        ("eagle", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ("eagle", {"add_para_norm": True}, "add_para_norm = True"),
        ("eagle-speculators", {"layernorms": True}, "layernorms = True"),
        ("eagle3", {"fc_norm": True}, "fc_norm = True"),
        ("eagle3", {"use_aux_norm": True}, "use_aux_norm = True"),
        ("eagle3", {"num_aux_hidden_states": 5}, "num_aux_hidden_states = 5"),
        ("eagle3", {"eagle_config": {"use_aux_hidden_state": False}}, "reads one layer of the target"),
        ("eagle3", {"eagle_config": {"use_mtp_layernorm": True}}, "use_mtp_layernorm = True"),
        ("eagle3", {"eagle_config": {"parallel_draft_step": 4}}, "parallel_draft_step = 4"),
        ("eagle3", {"parallel_drafting": True}, "parallel_drafting = True"),
        ("eagle3", {"mlp_bias": True}, "mlp_bias = True"),
        ("eagle3", {"is_causal": False}, "is_causal = False"),
        ("eagle3", {"logit_scale": 0.5}, "logit_scale = 0.5"),
        ("eagle3", {"sliding_window": 4096}, "sliding window"),
        ("eagle3", {"layer_types": ["sliding_attention"]}, "sliding window"),
        ("eagle3", {"quantization_config": {"quant_method": "gptq"}}, "quantised weights"),
        ("eagle3", {"eagle_aux_hidden_state_layer_ids": [1, 2]}, "eagle_aux_hidden_state_layer_ids = [1, 2]"),
        ("eagle3", {"eagle_aux_hidden_state_layer_ids": "all"}, "eagle_aux_hidden_state_layer_ids = all"),
        ("eagle", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "RoPE scaling 'dynamic'"),
        ("eagle3", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "RoPE scaling 'llama3'"),
        ("eagle3", {"rope_parameters": {"rope_type": "yarn", "factor": 8.0}}, "RoPE scaling 'yarn'"),
        ("eagle3", {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "different for each kind of layer"),
        ("eagle3", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rotates 0.5 of each head"),
        ("eagle3", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ("eagle3", {"rope_scaling": {"type": "linear"}}, "linear RoPE scaling without a factor"),
        ("eagle3", {"rope_scaling": {"type": "linear", "factor": -1}}, "RoPE settings that cannot be read"),
        ("eagle3", {"rope_theta": "big"}, "RoPE settings that cannot be read"),
        ("eagle", {"rope_theta": 500000.0}, "rotary_emb.inv_freq, which is not what its rope_theta of 500000.0 gives"),
        ("eagle3", {"hidden_size": None}, "missing required field `hidden_size`"),
        ("eagle3", {"hidden_size": "wide"}, "config.json that is no head's"),
        ("eagle3", {"rms_norm_eps": 0}, "config.json that is no head's"),
        ("eagle3", {"num_key_value_heads": 3}, "4 heads of Q and 3 of K"),
        ("eagle3", {"num_attention_heads": 6}, "which 6 heads do not divide"),
        ("eagle3", {"head_dim": 5}, "heads of an odd width"),
        ("eagle3", {"draft_vocab_size": VOCAB + 1}, "draft_vocab_size larger than its vocab_size"),
        ("eagle3-speculators", {"norm_before_residual": None}, "does not set norm_before_residual"),
        ("eagle3-speculators", {"norm_before_fc": False}, "without a place in an EAGLE-3 head, input_norm.weight"),
        ("eagle3-speculators", {"fc_norm": True}, "fc_norm = True"),
        ("eagle-llama3", {"bias": True}, "it lacks fc.bias"),
        ("eagle-llama3", {"bias": None}, "it lacks fc.bias"),
        ("eagle", {"bias": False}, "without a place in an EAGLE-1 or EAGLE-2 head, fc.bias"),
        ("eagle-qwen2", {"qkv_bias": False}, "layers.0.self_attn.q_proj.bias"),
        ("eagle3-sglang", {"bias": False}, "without a place in an EAGLE-3 head, fc.bias"),
        ("eagle3-narrow", {"target_hidden_size": None}, "fc.weight [16, 60] instead of [16, 48]"),
    ],
)  # fmt: skip
def test_a_setting_that_is_not_run_is_refused_by_name(
    name: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    assert said in refusal(written(tmp_path, "eagle-vicuna" if name == "eagle" else name, **changes))


@pytest.mark.parametrize(
    "key",
    [
        "midlayer.self_attn.q_norm.weight",
        "midlayer.self_attn.o_proj.bias",
        "midlayer.mlp.up_proj.bias",
        "layers.1.mlp.up_proj.weight",
        "fc_norm.0.weight",
        "mask_hidden",
        "verifier_lm_head.weight",
    ],
)
def test_a_tensor_of_a_variant_that_is_not_run_is_named(key: str, tmp_path: Path) -> None:
    head = altered(written(tmp_path, "eagle3"), lambda tensors: tensors.update({key: torch.zeros(4)}))
    assert f"has, without a place in an EAGLE-3 head, {key}" in refusal(head)


def test_an_eagle_1_head_with_a_norm_before_attention_is_refused(tmp_path: Path) -> None:
    key = "layers.0.input_layernorm.weight"
    head = altered(written(tmp_path, "eagle-llama3"), lambda tensors: tensors.update({key: torch.ones(HIDDEN)}))
    assert f"EAGLE-1 or EAGLE-2 head, {key}" in refusal(head)


@pytest.mark.parametrize(
    ("key", "values", "said"),
    [
        ("d2t", torch.tensor([*KEPT[:-1], VOCAB]) - torch.arange(GUESSES), "maps draft ids to no ids"),
        ("d2t", torch.tensor([*KEPT[:-1], -1]) - torch.arange(GUESSES), "maps draft ids to no ids"),
        ("d2t", torch.tensor([*KEPT[:-1], 2]) - torch.arange(GUESSES), "or several to one"),
        ("d2t", torch.tensor(KEPT[::-1]), "maps draft ids to no ids"),
        ("d2t", torch.zeros(GUESSES), "d2t as torch.float32 and not as whole numbers"),
        ("d2t", torch.zeros(GUESSES, dtype=torch.int64), "d2t and a t2d that keep different ids"),
        ("t2d", torch.ones(VOCAB, dtype=torch.bool), "d2t and a t2d that keep different ids"),
        ("fc.weight", torch.zeros((HIDDEN, 3 * HIDDEN), dtype=torch.int8), "fc.weight as torch.int8"),
        ("fc.weight", torch.zeros((HIDDEN, 3 * HIDDEN), dtype=torch.float8_e4m3fn), "fc.weight as torch.float8"),
    ],
)
def test_tables_that_contradict_themselves_are_refused(
    key: str, values: torch.Tensor, said: str, tmp_path: Path
) -> None:
    assert said in refusal(altered(written(tmp_path, "eagle3"), lambda tensors: tensors.update({key: values})))


def test_a_head_of_all_ids_may_say_so_with_offsets_of_zero(tmp_path: Path) -> None:
    head = written(tmp_path, "eagle3-all-ids")
    altered(head, lambda tensors: tensors.update(d2t=torch.zeros(VOCAB, dtype=torch.int64)))
    assert read_public_head(head).draft_ids.tolist() == list(range(VOCAB))
    altered(head, lambda tensors: tensors.update(d2t=torch.arange(VOCAB - 1, -VOCAB, -2)))
    assert "moves ids although the head drafts all of them" in refusal(head)


def test_both_spellings_of_the_layer_give_one_head(tmp_path: Path) -> None:
    variant = VARIANTS["eagle3"]
    tensors = everything(variant)
    other = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    other["draft_id_to_target_id"] = other.pop("d2t")
    first = read_public_head(write_head(tmp_path / "midlayer", variant.config, tensors))
    assert equal(first, read_public_head(write_head(tmp_path / "layers", variant.config, other)))


def test_types_stay_as_stored(tmp_path: Path) -> None:
    head = altered(
        written(tmp_path, "eagle3"), lambda tensors: tensors.update({"fc.weight": tensors["fc.weight"].bfloat16()})
    )
    read = read_public_head(head)
    assert read.fusion is not None
    assert read.fusion.weight.dtype == torch.bfloat16
    assert read.tensors["o.weight"].dtype == torch.float32


def test_the_settings_of_a_layout_reach_the_spec(tmp_path: Path) -> None:
    speculators = read_public_head(written(tmp_path, "eagle3-speculators"))
    assert (speculators.spec.norm_before_residual, speculators.spec.norm_output) == (True, True)
    assert speculators.fusion is not None
    assert speculators.fusion.norm is not None
    narrow = read_public_head(written(tmp_path, "eagle3-narrow"))
    assert narrow.fusion is not None
    assert narrow.fusion.target_hidden_size == 20
    sglang = read_public_head(written(tmp_path, "eagle3-sglang")).spec
    assert (sglang.head_dim, sglang.rope_theta, sglang.fc_bias) == (8, 1e6, False)
    qwen = read_public_head(written(tmp_path, "eagle-qwen2")).spec
    assert (qwen.fc_bias, qwen.qkv_bias, qwen.rope_factor) == (True, True, 2.0)
    vicuna = read_public_head(written(tmp_path, "eagle-vicuna")).spec
    assert (vicuna.fc_bias, vicuna.n_kv_heads, vicuna.rope_theta) == (True, vicuna.n_heads, 10000.0)


def test_speculators_leave_out_what_is_a_llamas_default(tmp_path: Path) -> None:
    layer = {name: value for name, value in NUMBERS.items() if name != "vocab_size"}
    config = SPECULATORS | {"transformer_layer_config": layer, "fusion_bias": True}
    shapes = VARIANTS["eagle-speculators"].shapes
    assert read_public_head(write_head(tmp_path / "head", config, random_tensors(shapes))).spec.vocab_size == 32000


@pytest.mark.parametrize(
    ("changes", "ids", "said"),
    [
        ({}, (2, 14, 25), "EAGLE's default"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}}, (2, 14, 25), "EAGLE's default"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 14, 25]}}, (3, 15, 26), "outputs of 2, 14, 25"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 13, 24]}}, (2, 14, 25), "outputs of 1, 13, 24"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 13, 24]}, (2, 14, 25), "outputs of 1, 13, 24"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 14, 25]}, (2, 14, 25), "as stated"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 9, 28]}, (0, 9, 28), "as stated"),
    ],
)
def test_layers_are_given_in_eagles_numbering(
    changes: dict[str, Any], ids: tuple[int, ...], said: str, tmp_path: Path
) -> None:
    stated = read_public_head(written(tmp_path, "eagle3", **changes)).taps
    assert stated is not None
    taps = stated.resolve(LAYERS)
    assert taps.ids == ids
    assert said in taps.origin


@pytest.mark.parametrize("ids", [[2, 2, 25], [25, 14, 2], [2, 14, 29], [-1, 14, 25]])
def test_layers_that_the_target_does_not_have_are_refused(ids: list[int], tmp_path: Path) -> None:
    stated = read_public_head(written(tmp_path, "eagle3", eagle_aux_hidden_state_layer_ids=ids)).taps
    assert stated is not None
    with pytest.raises(UsageError, match="the target has 28 layers"):
        stated.resolve(LAYERS)


def test_a_matrix_that_the_configuration_does_not_speak_of_is_noted(tmp_path: Path) -> None:
    first = written(tmp_path, "eagle-llama3")
    altered(first, lambda tensors: tensors.update({"lm_head.weight": torch.ones(VOCAB, HIDDEN)}))
    assert "other programs do not read" in read_public_head(first).notes[0]
    assert "which is used" in read_public_head(written(tmp_path, "eagle3", tie_word_embeddings=True)).notes[0]


def test_tied_matrices_are_one(tmp_path: Path) -> None:
    head = read_public_head(written(tmp_path, "eagle3-tied"))
    assert torch.equal(head.tensors["lm_head.weight"], head.tensors["embed.weight"])
    variant = VARIANTS["eagle3-tied"]
    bare = read_public_head(write_head(tmp_path / "bare", variant.config, random_tensors(variant.shapes)))
    assert "the target's embedding" in bare.notes[0]


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    whole = read_public_head(written(tmp_path, "eagle3"))
    directory = written(tmp_path / "sharded", "eagle3")
    tensors = load_file(directory / WEIGHTS)
    (directory / WEIGHTS).unlink()
    places = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in tensors if places[name] == file}, directory / file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert equal(read_public_head(directory), whole)


def test_a_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    directory = written(tmp_path, "eagle3")
    (directory / WEIGHTS).rename(directory / "a.safetensors")
    save_file({"norm.weight": torch.ones(HIDDEN)}, directory / "b.safetensors")
    assert "b.safetensors holds norm.weight, which another file" in refusal(directory)


def pickled(directory: Path, contents: Any) -> Path:
    (directory / WEIGHTS).unlink()
    torch.save(contents, directory / "pytorch_model.bin")
    return directory


def test_a_pickle_of_tensors_alone_is_read(tmp_path: Path) -> None:
    whole = read_public_head(written(tmp_path, "eagle-vicuna"))
    directory = written(tmp_path / "pickle", "eagle-vicuna")
    assert equal(read_public_head(pickled(directory, load_file(directory / WEIGHTS))), whole)


class Hostile:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run_it(tmp_path: Path) -> None:
    directory = pickled(written(tmp_path, "eagle-vicuna"), {"fc.weight": Hostile(tmp_path / "ran")})
    message = refusal(directory)
    assert "pytorch_model.bin holds more than weights or is damaged" in message
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("contents", [[torch.zeros(2)], {"fc.weight": 3}, {3: torch.zeros(2)}])
def test_a_pickle_of_something_else_is_refused(contents: Any, tmp_path: Path) -> None:
    assert "is no table of tensors" in refusal(pickled(written(tmp_path, "eagle-vicuna"), contents))


def test_a_damaged_pickle_is_refused(tmp_path: Path) -> None:
    directory = written(tmp_path, "eagle-vicuna")
    (directory / WEIGHTS).unlink()
    (directory / "pytorch_model.bin").write_bytes(b"\x80\x04not a pickle")
    assert "is damaged" in refusal(directory)


def test_safetensors_go_before_a_pickle(tmp_path: Path) -> None:
    directory = written(tmp_path, "eagle-vicuna")
    (directory / "pytorch_model.bin").write_bytes(b"never opened")
    assert read_public_head(directory).spec.kind == "eagle"


def test_a_directory_without_weights_or_configuration_is_refused(tmp_path: Path) -> None:
    directory = written(tmp_path, "eagle-vicuna")
    (directory / WEIGHTS).rename(directory / "weights.pt")
    assert "holds no safetensors file" in refusal(directory)
    (directory / "config.json").unlink()
    assert "has no config.json" in refusal(directory)
