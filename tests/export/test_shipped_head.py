"""The head that comes with the program: it fits the default model, is small, and pays."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from starsd_edge.bench.draft_replay import Passage, rounds_from, walk
from starsd_edge.bundles.bundle import Bundle
from starsd_edge.protocol.rows import NewRows
from starsd_edge.runtime.engine import Engine
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.telemetry.rounds import RoundStats
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.decoder import Request, decode
from starsd_jetson.target import Target
from starsd_server.drafters.contract import draft_one, extend_one
from tests.support.bundle_store import shipped_head
from tests.support.drafter_source import DrafterDrafts

MOST_BYTES = 12_000_000
SHIPPED = Path(__file__).parents[2] / "export/starsd_export/draft_heads/shipped"
PROMPTS = (
    "What is the difference between weather and climate?",
    "How do I make a simple tomato sauce for pasta?",
    "Explain photosynthesis to a ten year old.",
    "How does a vaccine protect the body?",
)


def test_it_is_small_enough_to_come_along() -> None:
    for directory in SHIPPED.iterdir():
        assert sum(file.stat().st_size for file in directory.iterdir()) <= MOST_BYTES


@pytest.mark.model
def test_it_fits_the_default_models_features(bundle_fp32: Bundle) -> None:
    said = Target.open(bundle_fp32, "cpu", 1).hello("target", DraftShape(4, 4), 256)
    assert shipped_head().refuses(said) is None
    other = msgspec.structs.replace(said, feature_fp="another")
    assert "not those that the head goes on from" in (shipped_head().refuses(other) or "")


@pytest.mark.model
def test_trees_give_more_than_chains_and_both_more_than_a_token_a_round(
    bundle_fp32: Bundle, engine_fp32: Engine
) -> None:
    tokenizer = Tokenizer.load(bundle_fp32.path, bundle_fp32.manifest.text)
    chains, trees = RoundStats(), RoundStats()
    for prompt in PROMPTS:
        ids = tokenizer.encode_chat([{"role": "user", "content": prompt}])
        for shape, stats in ((DraftShape(4, 4), chains), (DraftShape(8, 4, 4), trees)):
            request = Request(ids, SamplingParams(), max_tokens=64, context=256, shape=shape)
            source = DrafterDrafts(shipped_head())
            decode(engine_fp32, tokenizer, request, source, clock=lambda: 0.0, on_round=stats.add)
    # Far below what `bench drafts` measures, and far above what a head for other features gives.
    assert chains.tokens_per_round > 1.4
    assert trees.tokens_per_round > chains.tokens_per_round


class HeadSession:
    """The shipped head on one text, for `rounds_from`."""

    def __init__(self, first: int) -> None:
        shipped_head().open(77, 0, first)

    def extend(self, first_row: int, ids: list[int], features: np.ndarray | None) -> None:
        extend_one(shipped_head(), NewRows(77, first_row, ids, features))

    def draft(self, shape: DraftShape) -> DraftTree:
        return draft_one(shipped_head(), 77, shape)


@pytest.mark.model
def test_drafting_along_a_known_text_gives_the_rounds_of_decoding(bundle_fp32: Bundle, engine_fp32: Engine) -> None:
    tokenizer = Tokenizer.load(bundle_fp32.path, bundle_fp32.manifest.text)
    ids = tokenizer.encode_chat([{"role": "user", "content": PROMPTS[0]}])
    shape, seen = DraftShape(4, 4), RoundStats()
    kept = Keeping(shipped_head())
    request = Request(ids, SamplingParams(), max_tokens=64, context=256, shape=shape)
    answer = decode(engine_fp32, tokenizer, request, kept, clock=lambda: 0.0, on_round=seen.add)
    passage = Passage([*ids, *answer.token_ids], len(ids), np.concatenate(kept.features))
    session = HeadSession(ids[0])
    try:
        replayed = walk(rounds_from(passage, session, shape))
    finally:
        shipped_head().close(77)
    assert (replayed.rounds, replayed.emitted, replayed.level_hits) == (seen.rounds, seen.emitted, seen.level_hits)


class Keeping(DrafterDrafts):
    """Keeps the features that go by."""

    def __init__(self, drafter) -> None:  # type: ignore[no-untyped-def]
        super().__init__(drafter)
        self.features: list[np.ndarray] = []

    def append(self, ids, features) -> None:  # type: ignore[no-untyped-def]
        assert features is not None
        self.features.append(features.copy())
        super().append(ids, features)
