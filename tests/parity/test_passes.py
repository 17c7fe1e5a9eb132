"""The passes on an engine without a model, whose logits are a function of what each row stands on."""

from __future__ import annotations

import numpy as np
import pytest

from starsd_edge.errors import EngineError
from starsd_edge.parity.compare import describe, differences
from starsd_edge.parity.golden import greedy_text, wrong_tokens
from starsd_edge.parity.passes import (
    IDS,
    LONG,
    NEEDED_CONTEXT,
    first_inexact,
    longest_paths,
    random_ids,
    run_passes,
    why_too_small,
)
from starsd_edge.runtime.engine import Step, TopTwo, causal_mask
from tests.support.prefix_engine import PrefixEngine

VOCAB = 200
CASES = [
    "prefill",
    "chunked prefill",
    "chunked prefill",
    "chunked prefill",
    "long chunk",
    "far positions",
    "one token on nothing",
    "one token",
    "chain",
    "tree",
    "after a branch",
]


def engine(seed: int = 0, **changes: int) -> PrefixEngine:
    limits = {"max_context": 256, "max_tree": 32, "max_chunk": 128} | changes
    return PrefixEngine(seed, vocab_size=VOCAB, gaps=True, **limits)  # type: ignore[arg-type]


def alone(path: tuple[int, ...]) -> np.ndarray:
    """Logits of the last token of a path, read in one pass by an engine of its own."""
    fresh = engine()
    tokens = np.array(path)
    step = fresh.forward(fresh.open(len(path)), tokens, np.arange(len(path)), causal_mask(len(path)))
    return np.asarray(step.logits[-1])


def test_every_row_stands_on_the_path_that_is_said_of_it() -> None:
    ids = random_ids(VOCAB)
    passes = list(run_passes(engine(), ids))
    assert [each.case for each in passes] == CASES
    for each in passes:
        expected = np.stack([alone(each.paths[row]) for row in each.rows])
        assert np.array_equal(each.values.logits, expected), each.case
    branch = passes[-1].paths[0]
    assert len(branch) == 28
    assert branch[:-1] in passes[-2].paths, "what follows a tree stands on one of its paths"


def test_the_long_paths_hold_every_other_as_a_beginning() -> None:
    ids = random_ids(VOCAB)
    long = longest_paths(ids)
    paths = {path for each in run_passes(engine(), ids) for path in each.paths}
    assert all(any(whole[: len(path)] == path for whole in long) for path in paths)


def test_a_short_context_leaves_the_long_chunk_out_and_a_shorter_one_is_refused() -> None:
    ids = random_ids(VOCAB)
    assert [each.case for each in run_passes(engine(max_context=LONG - 1), ids)] == [
        c for c in CASES if c != "long chunk"
    ]
    short = engine(max_context=NEEDED_CONTEXT - 1)
    assert "it takes 32 tokens" in why_too_small(short.spec)
    with pytest.raises(EngineError, match="the comparison needs 33, 24 and 24"):
        list(run_passes(short, ids))


def test_the_two_highest_logits_that_an_engine_names_are_looked_at() -> None:
    class Naming(PrefixEngine):
        """Names them by itself, of the row `wrong` the second one twice."""

        wrong = -1

        def forward(self, seq, tokens, positions, tree_mask, logits_rows=None):  # type: ignore[no-untyped-def]
            step = super().forward(seq, tokens, positions, tree_mask, logits_rows)
            ids = np.argsort(-step.logits, axis=1)[:, :2]
            if len(ids) == 8 and self.wrong >= 0:
                ids[self.wrong, 0] = ids[self.wrong, 1]
            return Step(step.logits, step.features, TopTwo(ids, np.take_along_axis(step.logits, ids, axis=1)))

    ids = random_ids(VOCAB)
    naming = Naming(vocab_size=VOCAB, max_context=256, max_tree=32, max_chunk=128, gaps=True)
    good = list(run_passes(naming, ids))
    assert all(each.values.is_top_right for each in good)
    naming.wrong = 3
    bad = list(run_passes(naming, ids))
    assert [each.case for each in bad if not each.values.is_top_right] == ["chain", "tree"]
    tree = CASES.index("tree")
    said = describe(differences(bad[tree].values, good[tree].values, 0.1), 0.1)
    assert said == "the two highest logits that it names are not those of its logits"


def test_bits_of_chains_and_steps_are_compared() -> None:
    class Inexact(PrefixEngine):
        """Passes of several rows on many committed tokens are a little off in their last row."""

        def forward(self, seq, tokens, positions, tree_mask, logits_rows=None):  # type: ignore[no-untyped-def]
            step = super().forward(seq, tokens, positions, tree_mask, logits_rows)
            if len(tokens) == 8 and seq.length > 100:
                step.logits[-1] += 1e-6
            return step

    ids = random_ids(VOCAB)
    assert len(ids) == IDS
    assert first_inexact(engine(), ids) is None
    assert first_inexact(Inexact(vocab_size=VOCAB, max_context=256), ids) == (150, 7)


def test_text_goes_on_as_asked_and_near_ties_are_told_from_other_tokens() -> None:
    prompt = [5, 9, 17]
    text = greedy_text(engine(), prompt, VOCAB)
    assert len(text.ids) == len(text.gaps) == 16
    assert min(text.gaps) > 0
    other = greedy_text(engine(seed=1), prompt, VOCAB, len(text.ids), text.ids)
    places = [place for place, pair in enumerate(zip(text.ids, other.ids, strict=True)) if pair[0] != pair[1]]
    assert places
    close, wrong = wrong_tokens(other, text, 1e-9)
    assert (close, wrong) == ([], places)
    close, wrong = wrong_tokens(other, text, 1e9)
    assert (close, wrong) == (places, [])


def test_padding_is_never_chosen() -> None:
    padded = PrefixEngine(vocab_size=VOCAB, padding=8, max_context=64)
    assert max(greedy_text(padded, [1, 2], VOCAB - 8).ids) < VOCAB - 8
