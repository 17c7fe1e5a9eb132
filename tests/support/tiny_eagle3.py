"""A tiny target and an EAGLE-3 head that was quickly trained for it, in the layout in which heads are published.

What the head reads comes from transformers' own hidden states and what it is trained by from the formulas of its
paper, so that nothing here is the code under test.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch.nn import functional
from transformers import PreTrainedModel

from starsd_edge.bundles.bundle import Bundle, load_bundle
from starsd_edge.bundles.cache import CACHE_VARIABLE
from starsd_edge.cli.main import run
from starsd_edge.errors import BundleError
from starsd_edge.heads.draft_bundle import DraftBundle, load_draft_bundle
from tests.support import reference_heads
from tests.support.bundle_store import tiny_copy
from tests.support.public_heads import write_head
from tests.support.small_tokenizers import byte_level
from tests.support.tiny_llama import tiny_model, write_safetensors

Made = TypeVar("Made")
LAYERS, TAPS = 3, (1, 2, 3)
"""The last tap is what goes into the final norm."""
WIDTH, INNER, HEADS, KV_HEADS, EPS = 64, 96, 4, 2, 1e-5
GUESSES = 200
PROMPTS = ("The hub drafts what the target checks", "one two three four, one two three", "x = [1, 2,")
_LENGTH = 48
_STEPS, _DEPTH = 70, 4
_LAYER = "midlayer."


def target_model() -> PreTrainedModel:
    """transformers' stock class."""
    return tiny_model(num_hidden_layers=LAYERS)


def config(**changes: Any) -> dict[str, Any]:
    """config.json of a head for that target."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": 1,
        "vocab_size": byte_level().get_vocab_size(),
        "draft_vocab_size": GUESSES,
        "rms_norm_eps": EPS,
        "eagle_aux_hidden_state_layer_ids": list(TAPS),
    } | changes


def random_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    """float32, by the names of EAGLE's own files."""
    keys = KV_HEADS * WIDTH // HEADS
    shapes = {
        "fc.weight": (WIDTH, 3 * WIDTH),
        "norm.weight": (WIDTH,),
        "lm_head.weight": (GUESSES, WIDTH),
        f"{_LAYER}hidden_norm.weight": (WIDTH,),
        f"{_LAYER}input_layernorm.weight": (WIDTH,),
        f"{_LAYER}post_attention_layernorm.weight": (WIDTH,),
        f"{_LAYER}self_attn.q_proj.weight": (WIDTH, 2 * WIDTH),
        f"{_LAYER}self_attn.k_proj.weight": (keys, 2 * WIDTH),
        f"{_LAYER}self_attn.v_proj.weight": (keys, 2 * WIDTH),
        f"{_LAYER}self_attn.o_proj.weight": (WIDTH, WIDTH),
        f"{_LAYER}mlp.gate_proj.weight": (INNER, WIDTH),
        f"{_LAYER}mlp.up_proj.weight": (INNER, WIDTH),
        f"{_LAYER}mlp.down_proj.weight": (WIDTH, INNER),
    }
    draw = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape) if name.endswith("norm.weight") else _noise(shape, draw)
        for name, shape in shapes.items()
    }


def states_of(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """float32 [n, 3 * Ht]: what a head reads of a text, from what transformers itself shows of its layers."""
    model.set_attn_implementation("sdpa")
    model.config.tie_last_hidden_states = False  # or the last of them is normed
    with torch.inference_mode():
        states = model.base_model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return torch.cat([states[tap][0] for tap in TAPS], dim=-1)


def trained_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """A head that knows what the model says after `PROMPTS`, a few guesses deep."""
    texts = [_greedy(model, byte_level().encode(prompt).ids) for prompt in PROMPTS]
    embedding = model.get_input_embeddings().weight.detach()
    guesses = _draft_ids([token for text in texts for token in text])
    place = {int(token): index for index, token in enumerate(guesses)}
    tensors = random_tensors()
    fixed = ("fc.weight",)
    learned = {name: tensor.requires_grad_() for name, tensor in tensors.items() if name not in fixed}
    optimiser = torch.optim.Adam(learned.values(), lr=1e-2)
    lessons = []
    for text in texts:
        features = states_of(model, text).clone() @ tensors["fc.weight"].T
        lessons.append((features, embedding[text], torch.tensor([place[token] for token in text])))
    for _ in range(_STEPS):
        optimiser.zero_grad()
        sum(_loss(tensors, *lesson) for lesson in lessons).backward()
        optimiser.step()
    trained = {name: tensor.detach() for name, tensor in tensors.items()}
    return {**trained, "d2t": guesses - torch.arange(GUESSES)}


def _loss(
    tensors: dict[str, torch.Tensor], features: torch.Tensor, embedded: torch.Tensor, guesses: torch.Tensor
) -> torch.Tensor:
    """Row i knows feature i and token i + 1 and guesses token i + 2; then, from its own features, the next."""
    layer = {name.removeprefix(_LAYER): tensor for name, tensor in tensors.items()}
    total = torch.zeros(())
    rows = features[:-2]
    for ahead in range(2, 2 + _DEPTH):
        tokens = embedded[ahead - 1 : -1]
        rows, normed = reference_heads.eagle3(tokens, rows, layer, HEADS, EPS, 10000.0, norm_before_residual=False)
        total = total + functional.cross_entropy(normed @ tensors["lm_head.weight"].T, guesses[ahead:])
        rows = rows[:-1]
    return total


def _greedy(model: PreTrainedModel, ids: list[int]) -> list[int]:
    text = list(ids)
    with torch.inference_mode():
        for _ in range(_LENGTH):
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    return text


def _draft_ids(said: list[int]) -> torch.Tensor:
    """What is said, and the first other ids."""
    known = set(said)
    others = [token for token in range(byte_level().get_vocab_size()) if token not in known]
    return torch.tensor(sorted([*known, *others[: GUESSES - len(known)]]))


def _noise(shape: tuple[int, ...], draw: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=draw) * (0.7 / shape[-1]) ** 0.5


@dataclass(frozen=True)
class TinyEagle3:
    """Everything below one directory, made when it is first asked for, for all workers once; bundles by the command
    that users run.
    """

    place: Path

    @cached_property
    def checkpoint(self) -> Path:
        """Of the target."""
        return write_safetensors(self.place / "tiny", num_hidden_layers=LAYERS)

    @cached_property
    def head(self) -> Path:
        """As published."""
        return tiny_copy(
            self.place / "tiny-eagle3",
            "tiny-eagle3-head",
            _written_head,
            lambda made: write_head(made, config(), trained_tensors(target_model())),
        )

    @cached_property
    def target(self) -> Bundle:
        """fp32, float16 KV, with the head's features."""
        return self._export("tiny-fp32-eagle3", load_bundle, "--features-for")

    @cached_property
    def target_int8(self) -> Bundle:
        """The same with int8 weights."""
        return self._export("tiny-int8-eagle3", load_bundle, "--weights", "int8", "--features-for")

    @cached_property
    def drafts(self) -> DraftBundle:
        """fp32, of the head."""
        return self._export("tiny-eagle3-fp32", load_draft_bundle, "--weights", "fp32", "--draft-head")

    def _export(self, name: str, load: Callable[[Path], Made], *options: str) -> Made:
        """What `export` puts there by itself."""

        def make(kept: Path) -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(CACHE_VARIABLE, str(self.place / "exporting"))
                assert run(["export", str(self.checkpoint), *options, str(self.head)]) == 0
            shutil.move(self.place / "exporting" / "bundles" / name, kept)

        return tiny_copy(self.place / "bundles" / name, name, load, make)


def _written_head(place: Path) -> Path:
    if not (place / "model.safetensors").is_file():  # what `write_head` writes last
        raise BundleError("none")
    return place
