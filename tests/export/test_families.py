"""Every family: what the exported graph computes is what transformers' stock class computes, within 1e-4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.runtime.engine import Engine, causal_mask
from starsd_edge.runtime.loading import open_engine
from starsd_edge.speculation.sampling import Sampler, SamplingParams
from starsd_edge.speculation.tree import ROOT, DraftTree
from starsd_export.pipeline import ExportOptions
from tests.support.small_tokenizers import byte_level
from tests.support.tiny_families import FAR, VARIANTS, exported_family, tiny_family

FLOAT32 = ExportOptions(kv_dtype="float32")
BOUND = 1e-4
PROMPT = [5, 9, 17, 3, 11, 20, 7, 2]
TREE = DraftTree(np.array([4, 8, 12, 10]), np.array([ROOT, 0, ROOT, 2]))
PATHS = ([], [4], [4, 8], [12], [12, 10])


class Exported:
    """A bundle beside a stock model of its own, which the exporter never touched."""

    def __init__(self, name: str, root: Path) -> None:
        changes = VARIANTS[name]
        self.bundle: Bundle = exported_family(root, name, FLOAT32)
        self.engine: Engine = open_engine(self.bundle, threads=1)
        self.stock: PreTrainedModel = tiny_family(**changes)

    def expected(self, ids: list[int]) -> np.ndarray:
        """The stock model's logits over a whole prefix."""
        with torch.inference_mode():
            logits: np.ndarray = self.stock(torch.tensor([ids])).logits[0].numpy()
        return logits


@pytest.fixture(scope="module", params=VARIANTS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(request.param, tmp_path_factory.mktemp("family"))


def forward(engine: Engine, seq: Any, ids: list[int]) -> np.ndarray:
    tokens = np.asarray(ids, np.int64)
    return engine.forward(seq, tokens, seq.length + np.arange(len(ids)), causal_mask(len(ids))).logits


def far_prompt() -> list[int]:
    return np.random.default_rng(7).integers(0, 300, FAR).tolist()


def test_prefill_one_token_and_tree_are_those_of_transformers(exported: Exported) -> None:
    engine = exported.engine
    seq = engine.open(64)
    assert np.abs(forward(engine, seq, PROMPT) - exported.expected(PROMPT)).max() < BOUND
    engine.commit(seq, range(len(PROMPT)))
    assert np.abs(forward(engine, seq, [13]) - exported.expected([*PROMPT, 13])[-1]).max() < BOUND
    step = engine.forward(seq, TREE.verify_tokens(13), TREE.verify_positions(len(PROMPT)), TREE.verify_mask())
    for row, path in enumerate(PATHS):
        expected = exported.expected([*PROMPT, 13, *path])[-1]
        assert np.abs(step.logits[row] - expected).max() < BOUND, f"row {row}"


def test_far_positions_are_those_of_transformers(exported: Exported) -> None:
    engine, ids = exported.engine, far_prompt()
    seq = engine.open(FAR + len(PROMPT))
    for start in range(0, FAR, 150):
        forward(engine, seq, ids[start : start + 150])
        engine.commit(seq, range(150))
    assert np.abs(forward(engine, seq, PROMPT) - exported.expected([*ids, *PROMPT])[FAR:]).max() < BOUND


def test_rows_that_pad_the_head_are_never_chosen(exported: Exported) -> None:
    shape = exported.bundle.manifest.model
    assert shape.tokenizer_size == byte_level().get_vocab_size()
    assert shape.vocab_size == exported.stock.config.vocab_size
    logits = np.zeros(shape.vocab_size, np.float32)
    logits[shape.tokenizer_size :] = 100.0
    logits[3] = 1.0
    assert Sampler(SamplingParams(temperature=0.0), shape.tokenizer_size).choose(logits, 5).token == 3
