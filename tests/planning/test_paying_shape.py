"""How large a draft pays where only the time of verify passes is known."""

from __future__ import annotations

import itertools

import pytest

from starsd_edge.planning.acceptance import LevelAcceptance
from starsd_edge.planning.draft_shape import paying_shape
from starsd_edge.speculation.tree import DraftShape

LIMIT = DraftShape(8, 4, 4)


def line(share: float, rows: int = 9) -> list[float]:
    """Every row costs this share of the first."""
    return [0.02 * (1 + share * row) for row in range(rows)]


def test_free_rows_are_all_asked_for() -> None:
    assert paying_shape(line(0.0), LevelAcceptance.expected(0.7), LIMIT) == LIMIT


def test_the_dearer_a_row_the_smaller_the_draft() -> None:
    shapes = [
        paying_shape(line(share), LevelAcceptance.expected(0.7), LIMIT) for share in (0.0, 0.1, 0.2, 0.3, 0.45, 0.6)
    ]
    assert all(one.max_nodes >= other.max_nodes for one, other in itertools.pairwise(shapes))
    assert shapes[0].max_nodes > shapes[2].max_nodes > shapes[-1].max_nodes == 1
    assert [shape.max_depth for shape in shapes[2:]] == [4, 3, 2, 1], "0.7 to the fourth is 0.24"


def test_one_guess_is_asked_for_even_where_none_pays() -> None:
    assert paying_shape(line(5.0), LevelAcceptance.expected(0.7), LIMIT) == DraftShape(1, 1)


def test_a_step_in_the_curve_ends_the_draft_before_it() -> None:
    seconds = [0.02, 0.02, 0.02, 0.02, 0.06, 0.06, 0.06, 0.06, 0.06]
    assert paying_shape(seconds, LevelAcceptance.expected(0.7), LIMIT).max_nodes == 3


@pytest.mark.parametrize("limit", [DraftShape(3, 8), DraftShape(8, 2, 2), DraftShape(1, 1)])
def test_limits_hold(limit: DraftShape) -> None:
    shape = paying_shape(line(0.0), LevelAcceptance.expected(0.9), limit)
    assert shape == shape.within(limit)
    assert shape.max_depth == min(limit.max_depth, limit.max_nodes), "free rows take all that there is"
