"""The engine that the decode loops are tested with: pure in the prefix, and strict."""

from __future__ import annotations

import numpy as np
import pytest

from starsd_edge.errors import EngineError
from starsd_edge.runtime.engine import Step, causal_mask
from starsd_edge.speculation.tree import DraftTree
from tests.support.prefix_engine import PrefixEngine, PrefixSequence
from tests.support.trees import paths_of, tree_of


@pytest.fixture
def model() -> PrefixEngine:
    return PrefixEngine(1, vocab_size=20, max_context=32, max_tree=6, max_chunk=10, feature_width=3)


def run(model: PrefixEngine, seq: PrefixSequence, tree: DraftTree, root: int = 1) -> Step:
    return model.forward(seq, tree.verify_tokens(root), tree.verify_positions(seq.length), tree.verify_mask())


def prefill(model: PrefixEngine, seq: PrefixSequence, tokens: list[int]) -> Step:
    return model.forward(seq, np.array(tokens), np.arange(len(tokens)) + seq.length, causal_mask(len(tokens)))


def test_a_row_of_a_tree_is_a_function_of_its_path(model: PrefixEngine) -> None:
    seq = model.open(32)
    prefill(model, seq, [4, 5, 6])
    model.commit(seq, [0, 1, 2])
    tree = tree_of([[2, 3], [7, 8, 9]])
    step = run(model, seq, tree)
    for row, path in enumerate([(), *paths_of(tree)]):
        assert np.array_equal(step.logits[row], model.prefix_logits([4, 5, 6, 1, *path]))
        assert np.array_equal(step.features[row], model.prefix_features([4, 5, 6, 1, *path]))
    model.commit(seq, [0, 3, 4])
    assert seq.tokens == [4, 5, 6, 1, 7, 8]
    model.truncate(seq, 4)
    assert seq.tokens == [4, 5, 6, 1]


def test_only_the_rows_asked_for_have_logits(model: PrefixEngine) -> None:
    seq = model.open(32)
    tokens = np.array([4, 5, 6])
    step = model.forward(seq, tokens, np.arange(3), causal_mask(3), [2])
    assert step.logits.shape == (1, 20)
    assert np.array_equal(step.logits[0], model.prefix_logits([4, 5, 6]))
    assert step.features.shape == (3, 3)


def test_calls_that_break_the_contract_are_refused(model: PrefixEngine) -> None:
    seq = model.open(4)
    chain = DraftTree.chain([2, 3])
    with pytest.raises(EngineError, match="nothing to commit"):
        model.commit(seq, [0])
    run(model, seq, chain)
    with pytest.raises(EngineError, match="does not hang"):
        model.commit(seq, [0, 2])
    with pytest.raises(EngineError, match="does not hang"):
        model.commit(seq, [1])
    model.commit(seq, [0, 1, 2])
    with pytest.raises(EngineError, match="nothing to commit"):
        model.commit(seq, [0])
    run(model, seq, chain)
    with pytest.raises(EngineError, match="full"):
        model.commit(seq, [0, 1])
    with pytest.raises(EngineError, match="6"):
        run(model, seq, tree_of([[1], [2], [3], [4], [5], [6]]))
    with pytest.raises(EngineError, match="10"):
        prefill(model, seq, list(range(11)))
    with pytest.raises(EngineError, match="vocabulary"):
        run(model, seq, DraftTree.chain([20]))
    with pytest.raises(EngineError, match="do not fit the mask"):
        model.forward(seq, np.array([1]), np.array([2]), causal_mask(1))
    with pytest.raises(EngineError, match="itself"):
        model.forward(seq, np.array([1, 2]), np.array([3, 3]), np.ones((2, 2), dtype=bool))
    mask = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1]], dtype=bool)
    with pytest.raises(EngineError, match="ancestors"):
        model.forward(seq, np.array([1, 2, 3]), np.array([3, 4, 4]), mask)
    with pytest.raises(EngineError, match="dtypes"):
        model.forward(seq, np.array([1], dtype=np.int32), np.array([3]), causal_mask(1))  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="context"):
        model.open(33)


def test_positions_beyond_the_context_are_refused(model: PrefixEngine) -> None:
    seq = model.open(32)
    for start in range(0, 30, 10):
        prefill(model, seq, [start % 20] * 10)
        model.commit(seq, range(10))
    run(model, seq, DraftTree.chain([2]))
    with pytest.raises(EngineError, match="beyond the context"):
        run(model, seq, DraftTree.chain([2, 3]))
