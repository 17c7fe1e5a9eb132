"""A published head that was read computes what the papers say, fused features and fed-back guesses included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from starsd_edge.heads.engine import HeadStep
from starsd_edge.heads.torch_engine import TorchHeadEngine
from starsd_edge.heads.torch_head import TorchHead
from starsd_export.draft_heads.public import PublicHead, read_public_head
from tests.support import reference_heads
from tests.support.public_heads import HEADS, HIDDEN, VARIANTS, VOCAB, random_tensors, write_head
from tests.support.random_heads import line_of, log_probabilities

ROWS = 9
EPS = 1e-5
THETAS = {"eagle-llama3": 500000.0, "eagle3-sglang": 1e6}


def read(name: str, root: Path) -> tuple[PublicHead, dict[str, torch.Tensor]]:
    """The head, and its tensors without prefixes."""
    variant = VARIANTS[name]
    tensors = random_tensors({**variant.shapes, **variant.optional}, seed=5)
    bare = {
        key.replace("midlayer.", "")
        .replace("layers.0.", "")
        .replace("transformer.", "")
        .replace("fusion_fc", "fc"): value
        for key, value in tensors.items()
    }
    return read_public_head(write_head(root / name, variant.config, tensors)), bare


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def engine_of(head: PublicHead, embedding: torch.Tensor, output: torch.Tensor) -> TorchHeadEngine:
    """With the target's matrices where the head has none."""
    whole = TorchHead(head.spec, {"embed.weight": embedding, "lm_head.weight": output, **head.tensors})
    return TorchHeadEngine(whole, candidates=head.spec.draft_vocab_size)


def run(engine: TorchHeadEngine, ids: list[int], features: torch.Tensor) -> HeadStep:
    return engine.forward(line_of(engine, ids, features.numpy()))


def assert_gives(step: HeadStep, predicted: torch.Tensor, logits: torch.Tensor) -> None:
    """The features and, but for what softmax takes away, the logits of every row."""
    torch.testing.assert_close(torch.from_numpy(step.predicted), predicted, rtol=1e-4, atol=1e-4)
    scores = torch.from_numpy(log_probabilities(step, logits.shape[1])).float()
    torch.testing.assert_close(scores, logits.log_softmax(-1), rtol=1e-4, atol=1e-4)


def ids() -> list[int]:
    return np.random.default_rng(3).integers(0, VOCAB, ROWS).tolist()


@pytest.mark.parametrize("name", [name for name in VARIANTS if not name.startswith("eagle3")])
def test_eagle_1_gives_the_logits_of_its_paper(name: str, tmp_path: Path) -> None:
    head, tensors = read(name, tmp_path)
    embedding = head.tensors.get("embed.weight", random(VOCAB, HIDDEN, seed=1))
    output, features = random(VOCAB, HIDDEN, seed=2), random(ROWS, HIDDEN, seed=3)
    step = run(engine_of(head, embedding, output), ids(), features)
    factor = 2.0 if name == "eagle-qwen2" else 1.0
    expected = reference_heads.eagle1(
        embedding[ids()], features, tensors, HEADS, EPS, THETAS.get(name, 10000.0), factor
    )
    assert_gives(step, expected, expected @ output.T)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("eagle3")])
def test_eagle_3_gives_the_logits_of_its_paper_also_from_its_own_features(name: str, tmp_path: Path) -> None:
    head, tensors = read(name, tmp_path)
    assert head.fusion is not None
    speculators = name == "eagle3-speculators"
    states = random(ROWS, 3 * head.fusion.target_hidden_size, seed=3)
    raw = reference_heads.norm(states, tensors["input_norm.weight"], EPS) if speculators else states
    features = raw @ tensors["fc.weight"].T + tensors.get("fc.bias", torch.zeros(HIDDEN))
    torch.testing.assert_close(head.fusion.fuse(states), features, rtol=1e-4, atol=1e-4)

    embedding = head.tensors.get("embed.weight", random(VOCAB, HIDDEN, seed=1))
    output = head.tensors.get("lm_head.weight", random(VOCAB, HIDDEN, seed=2))
    engine, tokens = engine_of(head, embedding, output), ids()
    for _ in range(2):
        step = run(engine, tokens, features)
        hidden, normed = reference_heads.eagle3(
            embedding[tokens],
            features,
            tensors,
            HEADS,
            EPS,
            THETAS.get(name, 10000.0),
            norm_before_residual=speculators,
        )
        fed_back = normed if speculators else hidden
        assert_gives(step, fed_back, normed @ output.T)
        tokens, features = [*tokens, 7], torch.cat((features, fed_back[-1:]))
