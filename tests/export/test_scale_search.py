"""The search for scales of int4: what it finds on planted outliers, and what it leaves as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from starsd_export.quantising.search import PARTS, input_groups, quantise_with_feedback, search_scales
from starsd_export.quantising.stored import quantise
from starsd_export.quantising.storing import Blocks, quantise_model
from tests.support.tiny_families import VARIANTS, tiny_family

SIZE, WIDTH, LOUD = 32, 96, 5
IDS = torch.tensor([[5, 9, 17, 3, 11, 20, 7, 2]])


def inputs(seed: int = 0, rows: int = 400) -> torch.Tensor:
    """Inputs [rows, WIDTH] that go together, one of them thirty times as loud as the others."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(rows, WIDTH, generator=generator) @ torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5
    mixed[:, LOUD] *= 30
    return mixed


def weights(rows: int = 48) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(7))


def moments(rows: torch.Tensor) -> torch.Tensor:
    return rows.T @ rows / len(rows)


def missed(found: torch.Tensor, weight: torch.Tensor, rows: torch.Tensor) -> float:
    """Relative squared error of the products."""
    return float(((rows @ (found - weight).T) ** 2).mean() / ((rows @ weight.T) ** 2).mean())


def plain(weight: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(quantise(weight.numpy(), 4, SIZE).weight()).float()


def logits(model: PreTrainedModel) -> np.ndarray:
    with torch.inference_mode():
        return model(IDS).logits[0].numpy()


def own_like_texts(model: PreTrainedModel) -> list[list[int]]:
    return np.random.default_rng(3).integers(0, model.config.vocab_size, (16, 32)).tolist()


def test_scales_make_a_loud_inputs_weights_finer() -> None:
    weight, seen, unseen = weights(), inputs(), inputs(seed=1)
    scales = search_scales([weight], moments(seen), SIZE)
    found = plain(weight * scales) / scales
    assert scales[LOUD] == scales.max()
    assert missed(found, weight, unseen) < 0.5 * missed(plain(weight), weight, unseen)


def test_scales_are_all_one_where_inputs_are_alike() -> None:
    assert torch.equal(search_scales([weights()], torch.eye(WIDTH), SIZE), torch.ones(WIDTH))


def test_error_feedback_lowers_the_error_on_inputs_that_were_not_seen() -> None:
    weight, seen, unseen = weights(), inputs(rows=4000), inputs(seed=1)
    unseen = unseen[:, torch.arange(WIDTH)]
    matrix = quantise_with_feedback(weight, moments(seen), 4, SIZE)
    assert matrix.steps.min() >= -8
    assert matrix.steps.max() <= 7
    found = torch.from_numpy(matrix.weight()).float()
    assert missed(found, weight, seen) < 0.3 * missed(plain(weight), weight, seen)
    assert missed(found, weight, unseen) < 0.5 * missed(plain(weight), weight, unseen)


def test_inputs_that_never_come_are_stored_all_the_same() -> None:
    weight = weights()
    found = quantise_with_feedback(weight, torch.zeros(WIDTH, WIDTH), 4, SIZE).weight()
    assert np.abs(found - weight.numpy()).max() < 0.5


@pytest.mark.parametrize("variant", ["llama-biases", "qwen2", "qwen3-biases", "smollm3", "mistral"])
def test_folded_scales_leave_every_family_what_it_says(variant: str) -> None:
    model = tiny_family(**VARIANTS[variant])
    before = logits(model)
    for layer in model.base_model.layers:
        for group in input_groups(layer):
            if group.source is not None:
                group.fold(torch.linspace(0.25, 4, group.reader.in_features))
    assert np.abs(logits(model) - before).max() < 1e-3


def test_the_search_keeps_a_model_with_a_loud_channel_nearer_to_itself() -> None:
    def loud() -> PreTrainedModel:
        model = tiny_family(model_type="llama", tie_word_embeddings=False)
        with torch.no_grad():
            for layer in model.base_model.layers:
                layer.input_layernorm.weight[LOUD] *= 30
                layer.post_attention_layernorm.weight[LOUD] *= 30
        return model

    exact, blocks = loud(), Blocks(4, SIZE)
    gaps = []
    for texts in ((), own_like_texts(exact)):
        model = loud()
        quantise_model(model, blocks, texts)
        gaps.append(float(np.square(logits(model) - logits(exact)).mean()))
    assert gaps[1] < 0.5 * gaps[0]


@pytest.mark.parametrize("searched", [False, True])
def test_each_part_has_the_bits_it_was_given(searched: bool) -> None:
    model = tiny_family(model_type="llama", num_hidden_layers=1)
    layers = []
    texts = own_like_texts(model) if searched else ()
    blocks = Blocks(4, SIZE, 8, 8, frozenset({"v", "down"}))
    stored = quantise_model(model, blocks, texts, lambda done, of: layers.append((done, of)))
    assert layers == ([(1, 1)] if searched else [])
    groups = input_groups(model.base_model.layers[0])
    found = {
        part: stored.find(linear.weight.half().numpy()) for group in groups for part, linear in group.linears.items()
    }
    assert {part: matrix.bits for part, matrix in found.items() if matrix} == {
        part: 8 if part in ("v", "down") else 4 for part in PARTS
    }
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    assert head.weight is embedding.weight
    ends = stored.find(head.weight.detach().half().numpy())
    assert ends is not None
    assert ends.bits == 8
