"""Several sessions in one pass of an EAGLE head: each gets what it would get alone, and what ails one ails no other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch")

from starsd_edge.heads.engine import HeadEngine  # noqa: E402
from starsd_edge.heads.torch_engine import TorchHeadEngine  # noqa: E402
from starsd_edge.protocol.rows import NewRows  # noqa: E402
from starsd_edge.speculation.tree import DraftShape, DraftTree  # noqa: E402
from starsd_server.drafters import eagle_lines  # noqa: E402
from starsd_server.drafters.contract import SessionRefusedError  # noqa: E402
from starsd_server.drafters.eagle import EagleDrafter  # noqa: E402
from tests.support.random_heads import (  # noqa: E402
    VOCAB,
    WIDTH,
    WatchedEngine,
    drafter_on,
    fresh_tree,
    random_engine,
    random_head,
    rows_of_text,
)

LENGTHS = (40, 1, 700, 9, 3, 0, 130, 12)
SHAPES = (
    DraftShape(24, 6, 8),
    DraftShape(4, 4, 1),
    DraftShape(8, 5, 3),
    DraftShape(59, 3, 4),
    DraftShape(1, 1, 1),
    DraftShape(8, 4, 2),
    DraftShape(0, 0, 1),
    DraftShape(12, 12, 1),
)
SHAPE = DraftShape(15, 4, 3)

Text = tuple[list[int], npt.NDArray[np.float16]]


def texts() -> list[Text]:
    return [rows_of_text(length, seed=session) for session, length in enumerate(LENGTHS)]


def opened(engine: HeadEngine, sessions: int) -> EagleDrafter:
    drafter = drafter_on(engine)
    for session in range(sessions):
        drafter.open(session, 0, 0)
    return drafter


def all_rows(batch: list[Text]) -> list[NewRows]:
    return [NewRows(session, 0, ids, features) for session, (ids, features) in enumerate(batch)]


def alone(engine: HeadEngine, text: Text, shape: DraftShape) -> DraftTree:
    return fresh_tree(engine, *text, shape) if text[0] else DraftTree.empty()


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_sessions_of_all_lengths_and_shapes_get_the_trees_they_would_get_alone(kind: str) -> None:
    engine = WatchedEngine(random_engine(kind, max_positions=2048))
    drafter = opened(engine, len(LENGTHS))
    assert drafter.extend(all_rows(texts())) == {}
    before = len(engine.passes)
    trees = drafter.draft(range(len(LENGTHS)), SHAPES)
    passes = engine.passes[before:]
    assert trees == [alone(engine, text, shape) for text, shape in zip(texts(), SHAPES, strict=True)]
    assert [len(tree) for tree in trees] == [24, 4, 8, 59, 1, 0, 0, 12]
    # The long session goes by itself, in at most 4 passes; the others need as many as the deepest chain of them. The
    # sessions whose tree is their first candidates, or none, take part in none.
    assert len(passes) <= 11 + 4
    assert max(each.lines for each in passes) == 4
    assert passes[-1].lines == 1  # those that have grown are left out


def test_true_rows_of_several_sessions_go_in_together_and_a_long_prefill_beside_them() -> None:
    engine = WatchedEngine(random_engine(max_positions=2048))
    drafter = opened(engine, 5)
    prefill = rows_of_text(600, seed=9)
    short = [rows_of_text(session + 1, seed=session) for session in range(4)]
    assert drafter.extend(all_rows([*short, prefill])) == {}
    assert [each.lines for each in engine.passes] == [4, 1, 1, 1]
    assert len(engine.passes[0].ids) == 1 + 2 + 3 + 4
    trees = drafter.draft(range(5), [SHAPE] * 5)
    assert trees == [fresh_tree(engine, *text, SHAPE) for text in (*short, prefill)]


def test_many_prefills_at_once_are_several_passes() -> None:
    """Attention's scores take memory for each row of a pass, times the rows before it."""
    engine = WatchedEngine(random_engine(max_positions=2048))
    drafter = opened(engine, 7)
    batch = [rows_of_text(200, seed=session) for session in range(7)]
    assert drafter.extend(all_rows(batch)) == {}
    assert [each.lines for each in engine.passes] == [2, 2, 2, 1]
    assert drafter.draft([6], [SHAPE]) == [fresh_tree(engine, *batch[6], SHAPE)]


def test_rounds_in_changing_company_leave_the_trees_of_a_fresh_prefill() -> None:
    """Sessions come, rest, close in the middle and come again; each text stands in `held` as far as it was sent."""
    engine = random_engine(max_positions=2048)
    drafter = opened(engine, 6)
    draw = np.random.default_rng(4)
    written = {session: rows_of_text(400, seed=session) for session in range(6)}
    held = dict.fromkeys(range(6), 0)
    for round_number in range(12):
        present = [session for session in range(6) if draw.random() < 0.7] or [0]
        batch = []
        for session in present:
            count = int(draw.choice([0, 1, 2, 5, 60]))
            ids, features = written[session]
            rows = slice(held[session], held[session] + count)
            batch.append(NewRows(session, held[session], ids[rows], features[rows]))
            held[session] += count
        assert drafter.extend(batch) == {}
        asked = [session for session in present if draw.random() < 0.8]
        shapes = [SHAPES[int(draw.integers(len(SHAPES)))] for _ in asked]
        given = drafter.draft(asked, shapes)
        for session, shape, tree in zip(asked, shapes, given, strict=True):
            ids, features = written[session]
            assert tree == alone(engine, (ids[: held[session]], features[: held[session]]), shape)
        if round_number % 4 == 3:
            left = present[0]
            assert drafter.close(left) == held[left]
            drafter.open(left, 0, 0)
            written[left], held[left] = rows_of_text(400, seed=100 + round_number), 0
    assert sum(held.values()) > 100


def test_closing_one_session_leaves_the_others_as_they_were() -> None:
    engine = random_engine()
    batch = [rows_of_text(5 + session, seed=session) for session in range(4)]
    drafter = opened(engine, 4)
    drafter.extend(all_rows(batch))
    assert drafter.close(1) == 6
    assert drafter.draft([3, 0, 2], [SHAPE] * 3) == [fresh_tree(engine, *batch[each], SHAPE) for each in (3, 0, 2)]


@pytest.mark.parametrize(
    ("ids", "features"),
    [
        ([VOCAB], np.zeros((1, WIDTH), np.float16)),
        ([-1], np.zeros((1, WIDTH), np.float16)),
        ([1], None),
        ([1, 2], np.zeros((1, WIDTH), np.float16)),
        ([1], np.zeros((1, WIDTH + 1), np.float16)),
        ([1], np.full((1, WIDTH), np.nan, np.float16)),
        ([1], np.full((1, WIDTH), np.inf, np.float16)),
        ([1] * 300, np.full((300, WIDTH), np.nan, np.float16)),
    ],
    ids=["foreign id", "negative id", "no features", "few features", "wrong width", "nan", "infinity", "long nan"],
)
def test_rows_that_cost_one_session_cost_no_other(ids: list[int], features: npt.NDArray[np.float16] | None) -> None:
    engine = random_engine()
    good = [rows_of_text(5 + session, seed=session) for session in range(3)]
    drafter = opened(engine, 4)
    lost = drafter.extend([*all_rows(good)[:1], NewRows(3, 0, ids, features), *all_rows(good)[1:]])
    assert list(lost) == [3]
    assert isinstance(lost[3], SessionRefusedError)
    assert "\n" not in str(lost[3])
    drafter.close(3)
    assert drafter.draft(range(3), [SHAPE] * 3) == [fresh_tree(engine, *text, SHAPE) for text in good]


def test_a_head_that_overflows_for_one_session_of_a_pass_does_so_for_it_alone() -> None:
    """On the way in (features too large for float16), and on the way down from a session's own predictions."""
    engine = TorchHeadEngine(random_head(dtype=torch.float16))
    with torch.no_grad():
        engine._head.fc_weight.mul_(4)
    calm, huge = rows_of_text(9), ([1], np.full((1, WIDTH), 65504, dtype=np.float16))
    drafter = opened(engine, 3)
    lost = drafter.extend(all_rows([calm, huge, calm]))
    assert list(lost) == [1]
    assert "overflows on the target's features" in str(lost[1])
    deep = DraftShape(200, 200)
    trees = drafter.draft([0, 2], [deep, SHAPE])
    assert trees == [fresh_tree(engine, *calm, deep), fresh_tree(engine, *calm, SHAPE)]
    assert 0 < len(trees[0]) < 200


def test_what_is_gathered_for_a_pass_is_bounded_and_no_tree_depends_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = WatchedEngine(random_engine())
    batch = [rows_of_text(20, seed=session) for session in range(7)]
    drafter = opened(engine, 7)
    drafter.extend(all_rows(batch))
    whole = drafter.draft(range(7), [SHAPE] * 7)
    drafter = opened(engine, 7)
    monkeypatch.setattr(eagle_lines, "MOST_GATHERED", 60)
    drafter.extend(all_rows(batch))
    engine.passes.clear()
    assert drafter.draft(range(7), [SHAPE] * 7) == whole
    assert {each.lines for each in engine.passes} == {3, 1}
    assert drafter.rows_in_use <= 7 * 128 + 60


def test_memory_is_not_taken_anew_for_each_row_that_comes() -> None:
    ids, features = rows_of_text(120)
    drafter = opened(random_engine(), 2)
    drafter.extend(all_rows([(ids[:20], features[:20])] * 2))
    held = []
    for row in range(20, 120):
        new = slice(row, row + 1)
        drafter.extend([NewRows(session, row, ids[new], features[new]) for session in range(2)])
        drafter.draft(range(2), [SHAPE] * 2)
        held.append(drafter.rows_in_use)
    assert len(set(held)) <= 10
    assert held[-1] <= 2 * 128 + 2 * 120 * 5 / 4


def test_a_batch_without_a_session_is_no_pass() -> None:
    engine = WatchedEngine(random_engine())
    drafter = opened(engine, 1)
    assert drafter.extend([]) == {}
    assert drafter.draft([], []) == []
    assert drafter.draft([0], [SHAPE]) == [DraftTree.empty()]
    assert engine.passes == []
