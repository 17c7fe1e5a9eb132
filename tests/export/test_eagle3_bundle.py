"""Draft bundles of EAGLE-3 heads: what is the head's own, what is the target's, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from starsd_edge.cli.run_draft.setup import open_drafters
from starsd_edge.errors import UsageError
from starsd_edge.heads.draft_bundle import DraftBundle, draft_ids
from starsd_edge.heads.torch_engine import open_torch_head
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_export.checkpoint import open_checkpoint
from starsd_export.draft_heads.bundle import export_draft_bundle
from starsd_export.draft_heads.fitting import find_head, head_kind
from starsd_server.drafters.eagle import EagleDrafter
from tests.support import reference_heads
from tests.support.public_heads import write_head
from tests.support.random_heads import feed, require_all_on_meta, tree_of
from tests.support.tiny_eagle3 import EPS, GUESSES, HEADS, WIDTH, TinyEagle3, config, random_tensors, target_model

VOCABULARY = target_model().config.vocab_size
IDS = [5, 9, 200, 31, 7]
PREFIX = "midlayer."
OFFSETS = {"d2t": torch.full((GUESSES,), 3)}


def greedy_path(
    tensors: dict[str, torch.Tensor], embedding: torch.Tensor, features: np.ndarray, ids: np.ndarray, **variant: bool
) -> list[int]:
    """Four guesses by the formulas of the paper, each from the features that the head itself gave."""
    layer = {name.removeprefix(PREFIX): tensor.float() for name, tensor in tensors.items()}
    rows, tokens, path = torch.from_numpy(features).float(), list(IDS), []
    for _ in range(4):
        hidden, normed = reference_heads.eagle3(
            embedding[tokens].float(),
            rows,
            layer,
            HEADS,
            EPS,
            10000.0,
            norm_before_residual=variant.get("before", False),
        )
        path.append(int(ids[int((normed[-1] @ layer["lm_head.weight"].T).argmax())]))
        tokens.append(path[-1])
        rows = torch.cat((rows, (normed if variant.get("output") else hidden)[-1:]))
    return path


def chains_of(bundle: DraftBundle, features: np.ndarray) -> list[DraftTree]:
    """What ONNX Runtime and torch make of the same bundle."""
    (onnx,) = open_drafters([bundle.path], max_sessions=1, threads=1)
    torch_head = open_torch_head(bundle, "cpu", "float32", threads=1)
    chains = []
    for drafter in (onnx, EagleDrafter(torch_head, draft_ids(bundle), "head", bundle.manifest.accepts, 1)):
        drafter.open(1, 0, 0)
        feed(drafter, 1, 0, IDS, features)
        chains.append(tree_of(drafter, 1, DraftShape(4, 4, 1)))
    return chains


def some_features() -> np.ndarray:
    return np.random.default_rng(4).standard_normal((len(IDS), WIDTH)).astype(np.float16)


def own_embedding() -> torch.Tensor:
    return torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(8))


VARIANTS: dict[str, tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, bool]]] = {
    "plain": ({}, OFFSETS, {}),
    "every variant": (
        {"norm_before_residual": True, "norm_output": True},
        {**OFFSETS, "embed_tokens.weight": own_embedding()},
        {"before": True, "output": True},
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_bundles_chain_is_that_of_the_paper(name: str, tiny_eagle3: TinyEagle3, tmp_path: Path) -> None:
    changes, more, variant = VARIANTS[name]
    tensors = {**random_tensors(seed=2), **more}
    head = write_head(tmp_path / "head", config(**changes), tensors)
    made = export_draft_bundle(tiny_eagle3.checkpoint, str(head), tmp_path / "made", "fp32")
    embedding = tensors.get("embed_tokens.weight", target_model().get_input_embeddings().weight.detach()).half()
    expected = greedy_path(tensors, embedding, some_features(), np.arange(GUESSES) + 3, **variant)
    assert chains_of(made, some_features()) == [DraftTree.chain(expected)] * 2
    assert draft_ids(made).tolist() == list(range(3, GUESSES + 3))
    require_all_on_meta(made)


def test_a_head_of_all_ids_without_an_output_matrix_takes_the_targets(tiny_eagle3: TinyEagle3, tmp_path: Path) -> None:
    tensors = random_tensors(seed=2)
    del tensors["lm_head.weight"]
    head = write_head(tmp_path / "head", config(draft_vocab_size=VOCABULARY), tensors)
    made = export_draft_bundle(tiny_eagle3.checkpoint, str(head), tmp_path / "made", "fp32")
    rows = target_model().get_output_embeddings().weight.detach()
    expected = greedy_path({**tensors, "lm_head.weight": rows}, rows.half(), some_features(), np.arange(VOCABULARY))
    assert chains_of(made, some_features()) == [DraftTree.chain(expected)] * 2


def test_the_manifest_names_head_target_layers_and_the_targets_command(tiny_eagle3: TinyEagle3) -> None:
    manifest = tiny_eagle3.drafts.manifest
    assert (manifest.spec.kind, manifest.head, manifest.target) == ("eagle3", "tiny-eagle3", "tiny")
    assert manifest.notes == ["the head in tiny-eagle3 reads the inputs of layers 1, 2, 3 (as stated)"]
    assert manifest.target_export == "starsd-edge export tiny --features-for tiny-eagle3"


def altered(head: Path, root: Path, **tensors: torch.Tensor | None) -> Path:
    stored = load_file(head / "model.safetensors") | {
        name: value for name, value in tensors.items() if value is not None
    }
    for name, value in tensors.items():
        if value is None:
            del stored[name]
    return write_head(root, config(), stored)


def refusal(head: Path, tiny: TinyEagle3) -> str:
    with pytest.raises(UsageError) as caught:
        find_head(str(head), open_checkpoint(tiny.checkpoint))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_tensor_that_is_missing_renamed_or_misshapen_is_named(tiny_eagle3: TinyEagle3, tmp_path: Path) -> None:
    key = "midlayer.self_attn.k_proj.weight"
    whole = load_file(tiny_eagle3.head / "model.safetensors")[key]
    assert key in refusal(altered(tiny_eagle3.head, tmp_path / "missing", **{key: None}), tiny_eagle3)
    renamed = altered(tiny_eagle3.head, tmp_path / "renamed", **{key: None, f"{key}s": whole})
    assert f"{key}s" in refusal(renamed, tiny_eagle3)
    narrow = altered(tiny_eagle3.head, tmp_path / "narrow", **{key: whole[:, :WIDTH].clone()})
    assert f"{key} [32, 64] instead of [32, 128]" in refusal(narrow, tiny_eagle3)


def test_a_head_for_another_target_is_refused(tiny_eagle3: TinyEagle3, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", config(vocab_size=VOCABULARY + 1), {**random_tensors(), **OFFSETS})
    assert f"with {VOCABULARY + 1} tokens, and this one has" in refusal(head, tiny_eagle3)


def test_the_kind_of_a_head_is_known_before_it_is_read(tiny_eagle3: TinyEagle3, tmp_path: Path) -> None:
    assert head_kind(str(tiny_eagle3.head)) == "eagle3"
    assert head_kind("shipped") == "eagle"
    assert head_kind(str(tmp_path / "missing")) == "eagle"
