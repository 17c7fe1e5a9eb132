"""What decodes but must not be used: ids, trees and texts of a peer."""

from __future__ import annotations

import numpy as np
import pytest

from starsd_edge.protocol.codec import ProtocolError, check_ids, printable, read_tree
from starsd_edge.protocol.messages import Draft
from starsd_edge.speculation.tree import DraftShape, DraftTree

TAG = b"t" * 16
ROOMY = DraftShape(64, 16, 64)


def a_draft(ids: list[int], parents: list[int]) -> Draft:
    return Draft(TAG, 1, 0, ids, parents, 0, 0, 0)


def test_ids_of_the_vocabulary_pass_and_others_name_the_first_fault() -> None:
    check_ids([], 10)
    check_ids([0, 9], 10)
    with pytest.raises(ProtocolError, match="token id 12 is not below the vocabulary size 10") as refused:
        check_ids([0, 12, 10], 10)
    assert refused.value.scope == "session"


def test_a_tree_comes_back_as_it_was() -> None:
    tree = DraftTree(np.array([5, 6, 7, 8]), np.array([-1, 0, 0, -1]))
    assert read_tree(a_draft(tree.tokens.tolist(), tree.parents.tolist()), ROOMY, 100) == tree
    assert len(read_tree(a_draft([], []), DraftShape(0, 0), 100)) == 0


@pytest.mark.parametrize(
    ("ids", "parents", "asked"),
    [
        ([1, 2], [-1], ROOMY),
        ([1], [-1, 0], ROOMY),
        ([1], [0], ROOMY),
        ([1, 2], [1, 0], ROOMY),
        ([1, 2], [-1, 1], ROOMY),
        ([1, 2, 3, 4], [-1, -1, 0, 1], ROOMY),
        ([1, 1], [-1, -1], ROOMY),
        ([100], [-1], ROOMY),
        ([1, 2, 3], [-1, 0, 1], DraftShape(2, 16, 64)),
        ([1, 2, 3], [-1, 0, 1], DraftShape(64, 2, 64)),
        ([1, 2], [-1, -1], DraftShape(64, 16, 1)),
        ([1, 2, 3, 4], [-1, 0, 0, 0], DraftShape(64, 16, 2)),
        ([1], [-1], DraftShape(0, 0)),
    ],
)
def test_what_is_no_tree_or_larger_than_asked_costs_the_frame(
    ids: list[int], parents: list[int], asked: DraftShape
) -> None:
    with pytest.raises(ProtocolError) as refused:
        read_tree(a_draft(ids, parents), asked, 100)
    assert refused.value.scope == "frame"


def test_text_of_a_peer_cannot_steer_a_terminal() -> None:
    assert printable("fine ünïcode 漢") == "fine ünïcode 漢"
    assert "\x1b" not in printable("\x1b[2Jgone\r\nforged line\u202e")
    assert "\n" not in printable("\x1b[2Jgone\r\nforged line")
