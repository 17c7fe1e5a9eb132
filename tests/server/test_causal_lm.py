"""The causal-lm drafter on an engine whose logits are a pure function of the prefix."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import ROOT, DraftShape, DraftTree
from starsd_server.drafters.causal_lm import MAX_BRANCHING, CausalLmDrafter
from starsd_server.drafters.contract import SessionRefusedError, draft_one, extend_one
from starsd_server.drafters.dynamic_tree import top_candidates
from tests.support.hub_client import hello
from tests.support.prefix_engine import PrefixEngine

FP = "f" * 64
PROMPT = [3, 1, 4, 1, 5]


def drafter_on(engine: PrefixEngine, max_sessions: int = 8) -> CausalLmDrafter:
    return CausalLmDrafter(engine, FP, engine.tokenizer_size, max_sessions)


def begin(drafter: CausalLmDrafter, session: int, tokens: Sequence[int]) -> None:
    drafter.open(session, 0, tokens[0])
    extend_one(drafter, NewRows(session, 0, list(tokens[1:])))


def draft(drafter: CausalLmDrafter, session: int, shape: DraftShape) -> DraftTree:
    return draft_one(drafter, session, shape)


def from_scratch(engine: PrefixEngine, tokens: Sequence[int], shape: DraftShape) -> DraftTree:
    fresh = drafter_on(engine)
    begin(fresh, 1, tokens)
    return draft(fresh, 1, shape)


def log_probs(engine: PrefixEngine, prefix: Sequence[int]) -> npt.NDArray[np.float64]:
    logits = engine.prefix_logits(list(prefix))[: engine.tokenizer_size].astype(np.float64)
    log_total = logits.max() + np.log(np.exp(logits - logits.max()).sum())
    shifted: npt.NDArray[np.float64] = logits - log_total
    return shifted


def greedy(engine: PrefixEngine, prefix: Sequence[int], count: int) -> list[int]:
    text = list(prefix)
    for _ in range(count):
        text.append(int(log_probs(engine, text).argmax()))
    return text[len(prefix) :]


@pytest.mark.parametrize("padding", [0, 4])
def test_a_model_drafting_for_itself_guesses_all_of_its_own_greedy_text(padding: int) -> None:
    engine = PrefixEngine(seed=5, padding=padding)
    truth = greedy(engine, PROMPT, 60)
    drafter = drafter_on(engine)
    begin(drafter, 1, PROMPT)
    said = 0
    while said + 6 <= len(truth):
        tree = draft(drafter, 1, DraftShape(5, 5))
        assert tree == DraftTree.chain(truth[said : said + 5])
        # all accepted, and the bonus token
        extend_one(drafter, NewRows(1, len(PROMPT) - 1 + said, truth[said : said + 6]))
        said += 6


def test_a_round_that_accepts_everything_costs_one_pass_per_level() -> None:
    engine = PrefixEngine(seed=5)
    truth = greedy(engine, PROMPT, 30)
    drafter = drafter_on(engine)
    begin(drafter, 1, PROMPT)
    draft(drafter, 1, DraftShape(5, 5))
    for said in (0, 6, 12):
        del engine.forward_sizes[:]
        extend_one(drafter, NewRows(1, len(PROMPT) - 1 + said, truth[said : said + 6]))
        draft(drafter, 1, DraftShape(5, 5))
        assert engine.forward_sizes == [2, 1, 1, 1, 1]  # the last guess and the bonus token, then level by level


def test_the_same_request_again_computes_nothing() -> None:
    engine = PrefixEngine(seed=6)
    drafter = drafter_on(engine)
    begin(drafter, 1, PROMPT)
    first = draft(drafter, 1, DraftShape(6, 4, 2))
    passes = len(engine.forward_sizes)
    assert draft(drafter, 1, DraftShape(6, 4, 2)) == first
    assert len(engine.forward_sizes) == passes


ROUNDS = st.lists(
    st.tuples(
        st.integers(0, 6),  # guesses of the greedy path that prove right
        st.lists(st.integers(0, 19), max_size=3),  # then true tokens that may or may not have been guessed
        st.integers(0, 8),  # nodes, levels and children of the next draft
        st.integers(0, 6),
        st.integers(0, 4),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 3), st.lists(st.integers(0, 19), min_size=1, max_size=40), ROUNDS)
def test_after_any_rounds_a_draft_is_the_one_from_scratch(
    seed: int, prompt: list[int], rounds: list[tuple[int, list[int], int, int, int]]
) -> None:
    engine = PrefixEngine(seed=seed, padding=4, max_chunk=7)
    drafter = drafter_on(engine)
    begin(drafter, 1, prompt)
    text = list(prompt)
    for right, others, nodes, depth, branching in rounds:
        new = greedy(engine, text, right) + others
        extend_one(drafter, NewRows(1, len(text) - 1, new))
        text += new
        shape = DraftShape(nodes, depth, branching)
        assert draft(drafter, 1, shape) == from_scratch(engine, text, shape)


def best_spine_nodes(engine: PrefixEngine, text: list[int], shape: DraftShape) -> set[tuple[int, ...]]:
    """By exhaustion: the likeliest paths among the greedy path and its siblings."""
    scores: dict[tuple[int, ...], float] = {}
    path: list[int] = []
    total = 0.0
    for _ in range(shape.max_depth):
        logs = log_probs(engine, text + path)
        for token in np.argsort(-logs)[: shape.branching].tolist():
            node = (*path, token)
            scores[node] = total + float(logs[token])
        best = int(logs.argmax())
        total += float(logs[best])
        path.append(best)
    ranked = sorted(scores, key=lambda node: -scores[node])
    return set(ranked[: shape.max_nodes])


@pytest.mark.parametrize(
    "shape", [DraftShape(6, 4, 3), DraftShape(10, 3, 4), DraftShape(3, 8, 2), DraftShape(30, 5, 3)]
)
@pytest.mark.parametrize("seed", range(6))
def test_the_tree_is_the_likeliest_part_of_the_spine_and_its_siblings(seed: int, shape: DraftShape) -> None:
    engine = PrefixEngine(seed=seed, order_weight=1.5)
    tree = from_scratch(engine, PROMPT, shape)
    paths = {tuple(path_of(tree, node)) for node in range(len(tree))}
    assert paths == best_spine_nodes(engine, PROMPT, shape)


@pytest.mark.parametrize("seed", range(4))
def test_children_stand_by_falling_likelihood_and_the_likeliest_path_is_a_prefix(seed: int) -> None:
    engine = PrefixEngine(seed=seed, order_weight=1.5)
    tree = from_scratch(engine, PROMPT, DraftShape(12, 4, 3))
    for parent, children in tree.children.items():
        prefix = [] if parent == ROOT else path_of(tree, parent)
        logs = log_probs(engine, PROMPT + prefix)
        scores = [float(logs[token]) for token in children]
        assert scores == sorted(scores, reverse=True)
    depth = tree.depth
    assert tree.tokens[:depth].tolist() == greedy(engine, PROMPT, depth)
    assert tree.parents[:depth].tolist() == list(range(-1, depth - 1))


def path_of(tree: DraftTree, node: int) -> list[int]:
    path: list[int] = []
    while node != ROOT:
        path.insert(0, int(tree.tokens[node]))
        node = int(tree.parents[node])
    return path


def test_a_chain_cut_by_its_nodes_computes_no_more_than_them() -> None:
    engine = PrefixEngine(seed=2)
    drafter = drafter_on(engine)
    begin(drafter, 1, PROMPT)
    assert len(draft(drafter, 1, DraftShape(3, 8))) == 3
    assert engine.forward_sizes == [5, 1, 1]


def test_no_level_is_computed_that_cannot_be_in_the_tree() -> None:
    engine = PrefixEngine(seed=2, order_weight=0.1, prefix_weight=0.1)  # nearly flat: siblings beat deeper levels
    drafter = drafter_on(engine)
    begin(drafter, 1, PROMPT)
    tree = draft(drafter, 1, DraftShape(4, 8, 4))
    assert tree.depth == 1
    assert len(engine.forward_sizes) < 4


def test_padding_is_never_guessed() -> None:
    engine = PrefixEngine(seed=1, padding=5)  # whose logits are the highest of all
    tree = from_scratch(engine, PROMPT, DraftShape(30, 6, MAX_BRANCHING))
    assert len(tree) == 30
    assert tree.tokens.max() < engine.tokenizer_size


def test_a_session_that_outgrows_the_context_drafts_nothing_and_the_others_go_on() -> None:
    engine = PrefixEngine(seed=3, max_context=24)
    drafter = drafter_on(engine)
    begin(drafter, 1, [1] * 22)
    begin(drafter, 2, PROMPT)
    assert draft(drafter, 1, DraftShape(8, 8)).depth == 3  # places 22 and 23 are computed, the last level is a guess
    extend_one(drafter, NewRows(1, 21, [2, 2]))
    assert draft(drafter, 1, DraftShape(8, 8)).depth == 1
    extend_one(drafter, NewRows(1, 23, [2]))
    extend_one(drafter, NewRows(1, 24, [2, 2, 2]))
    assert draft(drafter, 1, DraftShape(8, 8)) == DraftTree.empty()
    assert draft(drafter, 2, DraftShape(4, 4)) == DraftTree.chain(greedy(engine, PROMPT, 4))
    assert drafter.close(1) == 0  # its KV went when it outgrew


def test_closing_frees_the_kv() -> None:
    engine = PrefixEngine(seed=3)
    sequences: list[weakref.ref[object]] = []
    opening = engine.open

    def open_and_watch(capacity: int) -> object:
        seq = opening(capacity)
        sequences.append(weakref.ref(seq))
        return seq

    engine.open = open_and_watch  # type: ignore[method-assign, assignment]
    drafter = drafter_on(engine)
    for session in range(5):
        begin(drafter, session, PROMPT)
        draft(drafter, session, DraftShape(3, 3))
        assert drafter.close(session) == len(PROMPT) + 2  # the true tokens, and all guesses but the last
    gc.collect()
    assert [ref() for ref in sequences] == [None] * 5
    assert drafter.close(0) == 0


def test_a_second_shorter_prompt_starts_clean() -> None:
    engine = PrefixEngine(seed=4)
    drafter = drafter_on(engine)
    begin(drafter, 1, list(range(20)))
    draft(drafter, 1, DraftShape(5, 5))
    drafter.close(1)
    begin(drafter, 2, [7, 8])
    assert draft(drafter, 2, DraftShape(5, 5)) == DraftTree.chain(greedy(engine, [7, 8], 5))


def test_sessions_do_not_see_each_other() -> None:
    engine = PrefixEngine(seed=4)
    drafter = drafter_on(engine)
    texts = {1: [1, 2, 3], 2: [3, 2, 1], 3: [5] * 9}
    for session, text in texts.items():
        begin(drafter, session, text[:1])
    drafter.extend([NewRows(session, 0, text[1:]) for session, text in texts.items()])
    trees = drafter.draft(list(texts), [DraftShape(4, 4)] * 3)
    assert trees == [DraftTree.chain(greedy(engine, text, 4)) for text in texts.values()]


def test_beyond_its_room_a_session_is_refused_with_what_to_do() -> None:
    drafter = drafter_on(PrefixEngine(), max_sessions=1)
    begin(drafter, 1, PROMPT)
    with pytest.raises(SessionRefusedError, match="--max-sessions"):
        drafter.open(2, 0, 1)
    drafter.close(1)
    drafter.open(2, 0, 1)


@pytest.mark.parametrize("token", [24, 2**31 - 1, -1])
def test_ids_outside_the_vocabulary_never_reach_the_model(token: int) -> None:
    engine = PrefixEngine(vocab_size=24)
    drafter = drafter_on(engine)
    with pytest.raises(SessionRefusedError, match="vocabulary"):
        drafter.open(1, 0, token)
    begin(drafter, 1, PROMPT)
    with pytest.raises(SessionRefusedError, match="vocabulary"):
        extend_one(drafter, NewRows(1, 4, [1, token]))
    assert engine.forward_sizes == []


def test_only_the_tokenizer_has_to_fit() -> None:
    drafter = drafter_on(PrefixEngine())
    assert drafter.refuses(hello(tokenizer_fp=FP, feature_fp="any")) is None
    reason = drafter.refuses(hello(tokenizer_fp="0" * 64))
    assert reason is not None
    assert FP in reason
    assert "0" * 64 in reason


def test_candidates_are_sorted_lowest_id_first_among_equals() -> None:
    candidates = top_candidates(np.array([1, 5, 0, 5, 2, 5], dtype=np.float32), 4)
    assert candidates.tokens.tolist() == [1, 3, 5, 4]
    whole = top_candidates(np.array([0, 0], dtype=np.float32), 8)
    assert np.allclose(np.exp(whole.scores), [0.5, 0.5])
