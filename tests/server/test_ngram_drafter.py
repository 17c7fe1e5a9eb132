"""The ngram drafter of the hub: the core's index, one per session."""

from __future__ import annotations

import pytest

from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_server.drafters.contract import SessionRefusedError
from starsd_server.drafters.ngram import NgramDrafter


def test_it_continues_a_repetition_of_the_sessions_own_text() -> None:
    drafter = NgramDrafter(4)
    drafter.open(1, 0, 5)
    drafter.extend([NewRows(1, 0, [6, 7, 8, 5, 6])])
    drafter.open(2, 0, 1)
    assert drafter.draft([1, 2], [DraftShape(3, 3)] * 2) == [DraftTree.chain([7, 8, 5]), DraftTree.empty()]


def test_rows_in_pieces_are_the_same_text() -> None:
    drafter = NgramDrafter(4)
    drafter.open(1, 0, 5)
    for row, token in enumerate([6, 7, 8, 5, 6]):
        drafter.extend([NewRows(1, row, [token])])
    assert drafter.draft([1], [DraftShape(2, 2)]) == [DraftTree.chain([7, 8])]


def test_closing_frees_the_rows_and_makes_room() -> None:
    drafter = NgramDrafter(1)
    drafter.open(1, 0, 5)
    drafter.extend([NewRows(1, 0, [6, 7])])
    with pytest.raises(SessionRefusedError, match="--max-sessions"):
        drafter.open(2, 0, 5)
    assert drafter.close(1) == 2
    assert drafter.close(1) == 0
    drafter.open(2, 0, 5)
