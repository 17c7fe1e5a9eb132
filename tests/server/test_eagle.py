"""The eagle drafter on tiny random heads: its trees, and that its sessions remember what they should and no more."""

from __future__ import annotations

import gc

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch")

from starsd_edge.heads.engine import HeadEngine  # noqa: E402
from starsd_edge.heads.torch_engine import TorchHeadEngine  # noqa: E402
from starsd_edge.protocol.rows import NewRows  # noqa: E402
from starsd_edge.speculation.tree import ROOT, DraftShape, DraftTree  # noqa: E402
from starsd_server.drafters.contract import SessionRefusedError, extend_one  # noqa: E402
from starsd_server.drafters.eagle_draft import MAX_DRAFT_ROWS  # noqa: E402
from tests.support.hub_client import hello  # noqa: E402
from tests.support.random_heads import (  # noqa: E402
    FEATURE_FP,
    VOCAB,
    WIDTH,
    CountedEngine,
    WatchedEngine,
    draft_ids,
    drafter_on,
    feed,
    fresh_tree,
    line_of,
    log_probabilities,
    random_engine,
    random_head,
    rows_of_text,
    tree_of,
)
from tests.support.trees import is_chain  # noqa: E402

KINDS = ("eagle", "eagle3")
KS = (1, 2, 4, 8)
DEPTHS = range(1, 7)
SHAPE = DraftShape(15, 4, 3)
ROWS = 9


def scores_after(
    engine: HeadEngine, ids: list[int], features: npt.NDArray[np.float16], path: list[int]
) -> npt.NDArray[np.float64]:
    """Log-probability of each guess after true rows and a path, row by row without sessions or trees."""
    spec = engine.spec
    keys = values = engine.zeros(1, spec.n_kv_heads, 0, spec.head_dim)
    predicted = np.zeros((1, spec.hidden_size), dtype=np.float32)
    scores = np.zeros((1, spec.draft_vocab_size))
    for row, token in enumerate([*ids, *path]):
        feature = features[row : row + 1].astype(np.float32) if row < len(ids) else predicted
        step = engine.forward(line_of(engine, [token], feature, row, (keys, values)))
        keys, values = torch.cat((keys, step.keys), dim=2), torch.cat((values, step.values), dim=2)
        predicted, scores = step.predicted, log_probabilities(step, spec.draft_vocab_size)
    return scores[0]


def most_nodes(k: int, depth: int, width: int) -> int:
    """Nodes that so many levels offer, `width` of each expanded."""
    levels = [k]
    for _ in range(depth - 1):
        levels.append(min(levels[-1], width) * k)
    return sum(levels)


@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_is_the_greedy_path_of_one_row_passes(kind: str) -> None:
    engine = random_engine(kind)
    ids, features = rows_of_text(ROWS)
    path: list[int] = []
    for _ in range(6):
        path.append(int(draft_ids(engine)[scores_after(engine, ids, features, path).argmax()]))
    for depth in DEPTHS:
        assert fresh_tree(engine, ids, features, DraftShape(59, depth, 1)) == DraftTree.chain(path[:depth])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", KS)
def test_every_node_of_a_tree_scores_what_a_pass_over_its_path_gives(kind: str, k: int) -> None:
    """Position, mask and parent's feature of every row of a tree, for every depth: children come by these scores."""
    engine = random_engine(kind)
    ids, features = rows_of_text(ROWS)
    place = {token: index for index, token in enumerate(draft_ids(engine).tolist())}
    known: dict[tuple[int, ...], npt.NDArray[np.float64]] = {}
    for depth in DEPTHS:
        tree = fresh_tree(engine, ids, features, DraftShape(24, depth, k))
        assert len(tree) == min(24, most_nodes(k, depth, 1 if k == 1 else 7))
        assert tree.depth <= depth
        paths: dict[int, tuple[int, ...]] = {ROOT: ()}
        for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
            paths[node] = (*paths[parent], token)
        for parent, children in tree.children.items():
            path = paths[parent]
            if path not in known:
                known[path] = scores_after(engine, ids, features, list(path))
            scores = known[path][[place[token] for token in children]]
            best = np.sort(known[path])[::-1][: len(children)]
            np.testing.assert_allclose(scores, best, atol=1e-4)


def test_a_tree_wider_than_the_heads_vocabulary_offers_all_of_it() -> None:
    engine = random_engine(draft_vocab_size=3)
    tree = fresh_tree(engine, *rows_of_text(ROWS), DraftShape(3 + 9 + 27, 3, 8))
    assert len(tree) == 3 + 9 + 27


def test_a_head_that_is_sure_of_nothing_guesses_by_id() -> None:
    """All logits are equal: score ties on every level, between siblings and between levels."""
    engine = random_engine()
    engine._head.lm_head_weight.zero_()
    first, second, third = draft_ids(engine)[:3].tolist()
    tree = fresh_tree(engine, *rows_of_text(ROWS), DraftShape(5, 4, 3))
    assert tree == DraftTree(np.array([first, first, first, second, third]), np.array([-1, 0, 1, -1, -1])) or (
        tree == DraftTree(np.array([first, first, second, second, third]), np.array([-1, 0, 0, -1, -1]))
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ragged", [(1,) * 40, (7, 1, 5, 2, 3, 1, 4, 6, 11), (3, 300, 1, 1, 2, 259)])
def test_drafts_and_ragged_extends_leave_the_trees_of_a_fresh_prefill(kind: str, ragged: tuple[int, ...]) -> None:
    engine = random_engine(kind, max_positions=2048)
    ids, features = rows_of_text(sum(ragged))
    drafter = drafter_on(engine)
    drafter.open(1, 0, 0)
    end = 0
    for number, rows in enumerate(ragged):
        start, end = end, end + rows
        feed(drafter, 1, start, ids[start:end], features[start:end])
        for _ in range(number % 3):
            assert len(tree_of(drafter, 1, DraftShape(40, 6, 8))) == 40
        assert tree_of(drafter, 1, SHAPE) == fresh_tree(engine, ids[:end], features[:end], SHAPE)


def test_sessions_do_not_know_of_each_other() -> None:
    engine = random_engine()
    texts = [rows_of_text(3 + session, seed=session) for session in range(5)]
    drafter = drafter_on(engine)
    for session in range(5):
        drafter.open(session, 0, 0)
    for start in range(0, 8, 2):
        drafter.extend(
            [
                NewRows(session, start, ids[start : start + 2], features[start : start + 2])
                for session, (ids, features) in enumerate(texts)
            ]
        )
        drafter.draft(range(5), [DraftShape(40, 6, 8)] * 5)
    trees = drafter.draft(range(5), [SHAPE] * 5)
    assert trees == [fresh_tree(engine, ids, features, SHAPE) for ids, features in texts]
    assert len({tuple(tree.tokens.tolist()) for tree in trees}) == 5


class Alone:
    """A session with a drafter of its own."""

    def __init__(self, engine: HeadEngine) -> None:
        self._drafter = drafter_on(engine)
        self._drafter.open(1, 0, 0)

    @property
    def rows(self) -> int:
        return self._drafter._sessions[1].store.rows

    def add(self, text: tuple[list[int], npt.NDArray[np.float16]], rows: slice) -> None:
        ids, features = text
        feed(self._drafter, 1, rows.start, ids[rows], features[rows])

    def draft(self, shape: DraftShape) -> DraftTree:
        return tree_of(self._drafter, 1, shape)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [1, 2, 7, 40])
def test_past_its_positions_a_session_is_one_that_began_with_the_newest_rows(kind: str, limit: int) -> None:
    engine = WatchedEngine(random_engine(kind, max_positions=limit))
    text = rows_of_text(3 * limit + 3)
    session = Alone(engine)
    kept: list[int] = []
    for start in range(3 * limit + 3):
        session.add(text, slice(start, start + 1))
        kept.append(session.rows)
        tree = session.draft(DraftShape(8, 3, 2))
        scores = engine.passes[-1].scores
        fresh = Alone(engine)
        fresh.add(text, slice(start + 1 - session.rows, start + 1))
        assert fresh.rows == session.rows
        assert fresh.draft(DraftShape(8, 3, 2)) == tree
        np.testing.assert_allclose(engine.passes[-1].scores, scores, rtol=1e-4, atol=1e-4)
    assert kept[:limit] == list(range(1, limit + 1))
    assert max(kept) == limit
    assert min(kept[limit:]) == limit // 2 + 1


@pytest.mark.parametrize("rows", [63, 64, 65, 200, 1000])
def test_a_prefill_longer_than_its_positions_keeps_the_end_of_it(rows: int) -> None:
    engine = WatchedEngine(random_engine(max_positions=64))
    text = rows_of_text(rows)
    session, fresh = Alone(engine), Alone(engine)
    session.add(text, slice(0, rows))
    assert 32 <= session.rows <= 64
    fresh.add(text, slice(rows - session.rows, rows))
    assert session.draft(SHAPE) == fresh.draft(SHAPE)


def test_far_positions_cost_only_the_rounding_of_their_angles() -> None:
    """After 131,072 rows, more than a hub takes: scores are a fresh session's within 0.2 % of the largest."""
    engine = WatchedEngine(random_engine(max_positions=1024))
    text = rows_of_text(1 << 17)
    session, fresh = Alone(engine), Alone(engine)
    session.add(text, slice(0, 1 << 17))
    fresh.add(text, slice((1 << 17) - session.rows, 1 << 17))
    session.draft(DraftShape(3, 3))
    far = engine.passes[-1]
    fresh.draft(DraftShape(3, 3))
    near = engine.passes[-1]
    assert (far.ids, far.positions, near.positions) == (near.ids, [(1 << 17) + 1], [session.rows + 1])
    np.testing.assert_allclose(far.scores, near.scores, rtol=0, atol=2e-3 * np.abs(near.scores).max())


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("bfloat16", 2)])
def test_memory_is_that_of_the_rows_and_comes_back(dtype: str, width: int) -> None:
    """K and V of a row: 2 x heads x width x bytes; counted where the engine gives memory for them out."""
    head = random_head(n_kv_heads=4, head_dim=64, n_heads=4, max_positions=1024, dtype=getattr(torch, dtype))
    engine = CountedEngine(TorchHeadEngine(head))
    drafter = drafter_on(engine)
    ids, features = rows_of_text(700)
    drafter.warm_up()
    gc.collect()
    assert (engine.bytes_held, drafter.rows_in_use) == (0, 0)
    for session in range(10):
        drafter.open(session, 0, 0)
        feed(drafter, session, 0, ids[: 70 * session + 20], features[: 70 * session + 20])
    drafter.draft(range(10), [SHAPE] * 10)
    gc.collect()
    assert drafter.bytes_per_row == 2 * 4 * 64 * width
    assert engine.bytes_held == pytest.approx(drafter.bytes_per_row * drafter.rows_in_use, rel=0.1)
    assert [drafter.close(session) for session in range(10)] == [70 * session + 20 for session in range(10)]
    gc.collect()
    assert (engine.bytes_held, drafter.rows_in_use) == (0, 0)


def test_memory_is_bounded_by_sessions_times_the_heads_limit() -> None:
    engine = random_engine(max_positions=300)
    drafter = drafter_on(engine, max_sessions=3)
    ids, features = rows_of_text(1000)
    for session in range(3):
        drafter.open(session, 0, 0)
    for start in range(0, 1000, 100):
        rows = slice(start, start + 100)
        assert drafter.extend([NewRows(session, start, ids[rows], features[rows]) for session in range(3)]) == {}
        drafter.draft(range(3), [DraftShape(59, 40, 8)] * 3)
        # what the sessions hold, and once more what was brought together for the pass
        assert drafter.rows_in_use <= 2 * 3 * 300
    assert drafter.close(1) <= 300


def test_fifty_sessions_opened_and_closed_leave_nothing_and_a_shorter_text_works() -> None:
    engine = random_engine()
    drafter = drafter_on(engine, max_sessions=50)
    for session in range(50):
        drafter.open(session, 0, 0)
        ids, features = rows_of_text(50 - session, seed=session)
        feed(drafter, session, 0, ids, features)
    with pytest.raises(SessionRefusedError, match="holds 50 sessions, its limit"):
        drafter.open(50, 0, 0)
    assert [drafter.close(session) for session in range(50)] == list(range(50, 0, -1))
    assert drafter.rows_in_use == 0
    assert drafter.close(7) == 0
    drafter.open(51, 0, 0)
    ids, features = rows_of_text(4, seed=9)
    feed(drafter, 51, 0, ids, features)
    assert tree_of(drafter, 51, SHAPE) == fresh_tree(engine, ids, features, SHAPE)


def test_before_there_is_a_row_nothing_is_guessed() -> None:
    drafter = drafter_on(random_engine())
    drafter.open(1, 0, 0)
    drafter.extend([NewRows(1, 0, [])])
    assert len(tree_of(drafter, 1, SHAPE)) == 0
    assert drafter.close(1) == 0


def test_a_chain_is_as_deep_as_there_is_room_for_guesses() -> None:
    tree = fresh_tree(random_engine("eagle3"), *rows_of_text(ROWS), DraftShape(1000, 1000))
    assert is_chain(tree)
    assert len(tree) == MAX_DRAFT_ROWS


def test_a_head_that_runs_away_from_its_own_predictions_stops_there_and_the_session_goes_on() -> None:
    engine = TorchHeadEngine(random_head(dtype=torch.float16))
    with torch.no_grad():
        engine._head.fc_weight.mul_(20)
    drafter = drafter_on(engine)
    drafter.open(1, 0, 0)
    feed(drafter, 1, 0, *rows_of_text(ROWS))
    tree = tree_of(drafter, 1, DraftShape(200, 200))
    assert 0 < len(tree) < 100
    feed(drafter, 1, ROWS, *rows_of_text(3, seed=1))
    assert len(tree_of(drafter, 1, SHAPE)) > 0


@pytest.mark.parametrize(
    ("ids", "features"),
    [
        ([VOCAB], np.zeros((1, WIDTH), np.float16)),
        ([-1], np.zeros((1, WIDTH), np.float16)),
        ([1], None),
        ([1], np.zeros((2, WIDTH), np.float16)),
        ([1], np.zeros((1, WIDTH - 1), np.float16)),
    ],
)
def test_rows_that_the_head_cannot_take_are_refused_in_one_line(
    ids: list[int], features: npt.NDArray[np.float16] | None
) -> None:
    engine = random_engine()
    drafter = drafter_on(engine)
    drafter.open(1, 0, 0)
    good = rows_of_text(ROWS)
    feed(drafter, 1, 0, *good)
    with pytest.raises(SessionRefusedError) as refused:
        extend_one(drafter, NewRows(1, ROWS, ids, features))
    assert "\n" not in str(refused.value)
    assert tree_of(drafter, 1, SHAPE) == fresh_tree(engine, *good, SHAPE)


def test_features_beyond_what_the_head_can_count_cost_their_session_only() -> None:
    """A head of float16 overflows where the features are still finite."""
    engine = TorchHeadEngine(random_head(dtype=torch.float16))
    with torch.no_grad():
        engine._head.fc_weight.mul_(4)
    drafter = drafter_on(engine)
    huge = np.full((1, WIDTH), 65504, dtype=np.float16)
    drafter.open(1, 0, 0)
    drafter.open(2, 0, 0)
    good = rows_of_text(ROWS)
    feed(drafter, 2, 0, *good)
    with pytest.raises(SessionRefusedError, match="overflows on the target's features"):
        feed(drafter, 1, 0, [1], huge)
    assert tree_of(drafter, 2, SHAPE) == fresh_tree(engine, *good, SHAPE)


def test_a_head_fits_the_features_it_was_trained_on() -> None:
    drafter = drafter_on(random_engine())
    fits = hello(feature_fp=FEATURE_FP, feature_kind="last_hidden", feature_width=WIDTH, tokenizer_fp="any")
    assert drafter.refuses(fits) is None
    reason = drafter.refuses(msgspec.structs.replace(fits, feature_fp="e" * 64))
    assert reason is not None
    assert "e" * 64 in reason
    assert "f" * 64 in reason
