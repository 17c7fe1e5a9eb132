"""What every engine promises, asked of each of them."""

from __future__ import annotations

import numpy as np
import pytest

from starsd_edge.errors import EngineError
from starsd_edge.runtime.engine import Engine, Sequence, Step, causal_mask
from starsd_edge.speculation.tree import ROOT, DraftTree

IDS = [5, 9, 17, 3, 11, 20, 7, 2, 13, 19, 6, 15]
TREE = DraftTree(np.array([4, 8, 12, 10]), np.array([ROOT, 0, ROOT, 2]))
HOLED = DraftTree(np.array([4, 8, 12, 10, 16, 9, 5]), np.array([ROOT, 0, ROOT, 2, 2, 4, 5]))
"""Rows whose ancestors stand apart, at every level."""


def forward(engine: Engine, seq: Sequence, ids: list[int], rows: list[int] | None = None) -> Step:
    tokens = np.asarray(ids, np.int64)
    return engine.forward(seq, tokens, seq.length + np.arange(len(ids)), causal_mask(len(ids)), rows)


def prefilled(engine: Engine, ids: list[int]) -> Sequence:
    seq = engine.open(64)
    forward(engine, seq, ids)
    engine.commit(seq, range(len(ids)))
    return seq


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    scale = np.abs(expected.astype(np.float64)).max()
    return bool(np.abs(found.astype(np.float64) - expected).max() <= 0.02 * scale)


def test_the_shapes_are_those_of_the_spec(engine: Engine) -> None:
    step = forward(engine, engine.open(64), IDS)
    assert (step.logits.shape, step.logits.dtype) == ((len(IDS), engine.spec.vocab_size), np.float32)
    assert (step.features.shape, step.features.dtype) == ((len(IDS), engine.spec.feature_width), np.float16)


def test_logits_come_for_the_rows_asked_for_in_that_order(engine: Engine) -> None:
    seq = engine.open(64)
    every = forward(engine, seq, IDS)
    some = forward(engine, seq, IDS, [7, 2])
    assert close(some.logits, every.logits[[7, 2]])
    assert some.features.shape == every.features.shape


def test_a_chain_equals_one_token_steps_bit_for_bit(engine: Engine, is_exact: bool) -> None:
    same = np.array_equal if is_exact else close
    together = forward(engine, prefilled(engine, IDS[:4]), IDS[4:])
    seq = prefilled(engine, IDS[:4])
    for row, token in enumerate(IDS[4:]):
        alone = forward(engine, seq, [token])
        assert same(alone.logits[0], together.logits[row])
        assert same(alone.features[0], together.features[row])
        engine.commit(seq, [0])


def test_chunks_of_a_prompt_give_what_the_whole_gives(engine: Engine) -> None:
    whole = forward(engine, engine.open(64), IDS)
    seq = prefilled(engine, IDS[:5])
    assert close(forward(engine, seq, IDS[5:]).logits, whole.logits[5:])


@pytest.mark.parametrize("committed", [0, 6])
def test_each_node_of_a_tree_sees_its_own_path_alone(engine: Engine, committed: int) -> None:
    prompt = IDS[:committed]
    seq = prefilled(engine, prompt) if prompt else engine.open(64)
    step = engine.forward(seq, TREE.verify_tokens(1), TREE.verify_positions(committed), TREE.verify_mask())
    for row, path in enumerate(([], [4], [4, 8], [12], [12, 10])):
        expected = forward(engine, engine.open(64), [*prompt, 1, *path]).logits[-1]
        assert close(step.logits[row], expected), f"row {row}"


@pytest.mark.parametrize("committed", [1, 9, 30])
def test_a_tree_equals_one_token_steps_bit_for_bit(engine: Engine, is_exact: bool, committed: int) -> None:
    same = np.array_equal if is_exact else close
    prompt = (IDS * 4)[:committed]
    step = engine.forward(
        prefilled(engine, prompt), HOLED.verify_tokens(1), HOLED.verify_positions(committed), HOLED.verify_mask()
    )
    for row, path in enumerate(([], [4], [4, 8], [12], [12, 10], [12, 16], [12, 16, 9], [12, 16, 9, 5])):
        seq = prefilled(engine, prompt)
        for token in [1, *path]:
            alone = forward(engine, seq, [token])
            engine.commit(seq, [0])
        assert same(alone.logits[0], step.logits[row]), f"row {row}"
        assert same(alone.features[0], step.features[row]), f"row {row}"


def test_only_committed_rows_are_remembered_in_their_order(engine: Engine) -> None:
    seq = prefilled(engine, IDS[:6])
    engine.forward(seq, TREE.verify_tokens(1), TREE.verify_positions(6), TREE.verify_mask())
    engine.commit(seq, [0, 3, 4])
    assert seq.length == 9
    fresh = prefilled(engine, [*IDS[:6], 1, 12, 10])
    assert close(forward(engine, seq, [3]).logits, forward(engine, fresh, [3]).logits)


def test_what_is_not_committed_leaves_no_trace(engine: Engine) -> None:
    seq = prefilled(engine, IDS[:6])
    before = forward(engine, seq, [3]).logits
    forward(engine, seq, [8, 8, 8])
    assert seq.length == 6
    assert np.array_equal(forward(engine, seq, [3]).logits, before)


def test_a_truncated_sequence_goes_on_as_if_it_had_never_been_longer(engine: Engine) -> None:
    seq = prefilled(engine, IDS)
    engine.truncate(seq, 6)
    assert seq.length == 6
    fresh = prefilled(engine, IDS[:6])
    assert close(forward(engine, seq, [3]).logits, forward(engine, fresh, [3]).logits)


@pytest.mark.parametrize("length", [0, 6, 12])
def test_a_copy_goes_on_as_the_text_that_it_was_copied_from(engine: Engine, length: int) -> None:
    source = prefilled(engine, IDS)
    engine.truncate(source, length)
    expected = forward(engine, source, [3, 8])
    expected.fetch()
    engine.commit(source, [0, 1])
    copied = engine.open(40)
    engine.copy(source, length, copied)
    assert copied.length == length
    step = forward(engine, copied, [3, 8])
    assert np.array_equal(step.logits, expected.logits)
    assert np.array_equal(step.features, expected.features)
    engine.commit(copied, [0, 1])
    after = forward(engine, copied, [5]).logits
    assert np.array_equal(forward(engine, source, [5]).logits, after), "and neither knows of the other"


@pytest.mark.parametrize(("length", "capacity"), [(13, 64), (-1, 64), (12, 11)])
def test_copying_what_is_not_there_or_does_not_fit_is_refused(engine: Engine, length: int, capacity: int) -> None:
    source = prefilled(engine, IDS)
    with pytest.raises(EngineError):
        engine.copy(source, length, engine.open(capacity))
    with pytest.raises(EngineError):
        engine.copy(source, 2, prefilled(engine, IDS[:2]))


def test_sequences_do_not_know_of_each_other(engine: Engine) -> None:
    alone = forward(engine, prefilled(engine, IDS[:6]), [3]).logits
    first, second = prefilled(engine, IDS[:6]), prefilled(engine, IDS[6:])
    forward(engine, second, [4])
    engine.commit(second, [0])
    assert np.array_equal(forward(engine, first, [3]).logits, alone)


def test_a_full_sequence_refuses_more(engine: Engine) -> None:
    seq = engine.open(len(IDS))
    forward(engine, seq, IDS)
    engine.commit(seq, range(len(IDS)))
    forward(engine, seq, [1])
    with pytest.raises(EngineError):
        engine.commit(seq, [0])


def test_a_pass_is_committed_once(engine: Engine) -> None:
    seq = prefilled(engine, IDS)
    with pytest.raises(EngineError):
        engine.commit(seq, [0])


@pytest.mark.parametrize("rows", [[-1], [0, 3], [4]])
def test_rows_that_the_pass_did_not_have_are_refused_and_nothing_is_kept_of_them(
    engine: Engine, rows: list[int]
) -> None:
    seq, fresh = prefilled(engine, IDS[:6]), prefilled(engine, IDS[:8])
    forward(engine, seq, IDS[6:9])
    with pytest.raises(EngineError, match=r"the last pass had 3 rows: \[.*\] cannot be committed"):
        engine.commit(seq, rows)
    assert seq.length == 6
    engine.commit(seq, [0, 1])
    assert close(forward(engine, seq, [3]).logits, forward(engine, fresh, [3]).logits)


def test_a_capacity_beyond_the_context_is_refused(engine: Engine) -> None:
    with pytest.raises(EngineError):
        engine.open(engine.spec.max_context + 1)


@pytest.mark.parametrize("length", [-1, 13])
def test_truncating_to_what_is_not_there_is_refused(engine: Engine, length: int) -> None:
    seq = prefilled(engine, IDS)
    with pytest.raises(EngineError):
        engine.truncate(seq, length)
