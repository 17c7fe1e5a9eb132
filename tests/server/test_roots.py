"""A tree hangs from the root that was asked for, whatever rows came meanwhile: for drafters of every kind."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from starsd_edge.protocol.hub_side import AddRows, OpenSession, QueueDraft
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_server.draft_queue import DraftQueue, Work
from starsd_server.drafter_pool import Drafted, DrafterPool
from starsd_server.drafters.causal_lm import CausalLmDrafter
from starsd_server.drafters.contract import Drafter
from starsd_server.drafters.modelled import WrongDrafter
from starsd_server.drafters.ngram import NgramDrafter
from tests.support.prefix_engine import PrefixEngine

SHAPE = DraftShape(6, 3, 2)
WIDTH, VOCABULARY, FIRST_ROW = 32, 24, 5


def causal_lm() -> Drafter:
    return CausalLmDrafter(PrefixEngine(1), "any", VOCABULARY, 8)


def forgetful_causal_lm() -> Drafter:
    """Its context ends within the text."""
    return CausalLmDrafter(PrefixEngine(1, max_context=16), "any", VOCABULARY, 8)


def head() -> Drafter:
    heads = pytest.importorskip("tests.support.random_heads", reason="needs torch")
    return heads.drafter_on(heads.random_engine(vocab_size=VOCABULARY, draft_vocab_size=8))


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "ngram": lambda: NgramDrafter(8),
    "causal-lm": causal_lm,
    "causal-lm, past its context": forgetful_causal_lm,
    "head": head,
    "wrong on purpose": lambda: WrongDrafter(NgramDrafter(8), [30, 31]),
}


class QueuedPool:
    """A queue and a pool whose thread works when it is told to."""

    def __init__(self, drafter: Drafter) -> None:
        self.queue = DraftQueue(rows_per_turn=8)
        self.pool = DrafterPool([drafter], lambda: 0.0)
        self.trees: dict[int, tuple[int, DraftTree]] = {}
        self.queue.put(OpenSession(1, drafter.kind, FIRST_ROW, 3))

    def feed(self, first_row: int, ids: list[int]) -> None:
        draw = np.random.default_rng(first_row)
        self.queue.put(
            AddRows(NewRows(1, first_row, ids, draw.standard_normal((len(ids), WIDTH)).astype("f2")), "alice")
        )

    def ask(self, epoch: int, base_len: int) -> None:
        self.queue.put(QueueDraft(1, epoch, base_len, SHAPE, 0.0))

    def work(self, pieces: int) -> None:
        while pieces and (work := self.queue.take(0.0)) is not None:
            self._do(work)
            pieces -= 1

    def _do(self, work: Work) -> None:
        for outcome in self.pool.do(work).outcomes:
            assert isinstance(outcome, Drafted), outcome
            self.trees[outcome.epoch] = (outcome.base_len, outcome.tree)


@pytest.mark.parametrize("kind", list(DRAFTERS))
def test_rows_behind_a_request_change_neither_its_tree_nor_its_root(kind: str) -> None:
    rng = random.Random(kind)
    text = [rng.choice([3, 7, 8, 9]) for _ in range(90)]
    at_once, one_by_one = QueuedPool(DRAFTERS[kind]()), QueuedPool(DRAFTERS[kind]())
    asked, row = {}, FIRST_ROW
    for epoch in range(1, 31):
        new = text[row - FIRST_ROW : row - FIRST_ROW + rng.randrange(4)]
        asked[epoch] = row + len(new)
        for queued in (at_once, one_by_one):
            if new:
                queued.feed(row, new)
            queued.ask(epoch, asked[epoch])
        one_by_one.work(-1)
        row += len(new)
        if epoch % 2:  # more of the text, before the first pool works again
            later = text[row - FIRST_ROW : row - FIRST_ROW + 2]
            for queued in (at_once, one_by_one):
                queued.feed(row, later)
            row += len(later)
        at_once.work(rng.randrange(3))
    at_once.work(-1)
    assert set(one_by_one.trees) == set(asked)
    assert len(at_once.trees) > 15
    for queued in (at_once, one_by_one):
        assert {epoch: base_len for epoch, (base_len, _) in queued.trees.items()}.items() <= asked.items()
    for epoch, (_, tree) in at_once.trees.items():
        assert tree == one_by_one.trees[epoch][1], epoch
    assert any(len(tree) for _, tree in at_once.trees.values())
