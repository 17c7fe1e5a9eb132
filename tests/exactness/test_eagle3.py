"""The exactness suite for EAGLE-3: a target whose graph fuses its states, and a head that goes on from them.

The head was trained for the prompts, so that rounds end at every depth and in branches too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from starsd_edge.cli.run_draft.setup import open_drafters
from starsd_edge.runtime.engine import Engine
from starsd_edge.runtime.loading import open_engine
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape
from starsd_jetson.drafting import RoundDraft
from starsd_jetson.target import Target
from starsd_server.drafters.contract import Drafter
from tests.support.drafter_source import DrafterDrafts
from tests.support.exactness import EXCEPTIONS, Bench, Case, mismatches
from tests.support.random_heads import feed, tree_of
from tests.support.tiny_eagle3 import PROMPTS, TinyEagle3

pytestmark = [pytest.mark.export, pytest.mark.timeout(600, func_only=True)]

LENGTH = 24
CASES = [
    Case(PROMPTS[0], SamplingParams()),
    Case(PROMPTS[1], SamplingParams(0.2, seed=1)),
    Case("Nothing it knows", SamplingParams(1.0, top_p=0.9, seed=2)),
]
KS, DEPTHS = (1, 2, 4, 8), range(1, 7)


def drafter_of(tiny: TinyEagle3) -> Drafter:
    (drafter,) = open_drafters([tiny.drafts.path], max_sessions=99, threads=1)
    return drafter


@pytest.fixture(scope="module")
def drafter(tiny_eagle3: TinyEagle3) -> Drafter:
    return drafter_of(tiny_eagle3)


@pytest.fixture(scope="module")
def engine(tiny_eagle3: TinyEagle3) -> Engine:
    return open_engine(tiny_eagle3.target, threads=1)


@pytest.fixture(scope="module")
def bench(tiny_eagle3: TinyEagle3, engine: Engine) -> Bench:
    return Bench(engine, Bench.of(tiny_eagle3.target, engine).tokenizer, LENGTH)


def test_the_head_is_for_features_of_this_target(tiny_eagle3: TinyEagle3, drafter: Drafter) -> None:
    for bundle in (tiny_eagle3.target, tiny_eagle3.target_int8):
        assert drafter.refuses(Target.open(bundle, "cpu", 1).hello("target", DraftShape(4, 4), LENGTH)) is None


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_chains_change_no_id(weights: str, depth: int, tiny_eagle3: TinyEagle3, drafter: Drafter, bench: Bench) -> None:
    if weights == "int8":
        bench = Bench(open_engine(tiny_eagle3.target_int8, threads=1), bench.tokenizer, LENGTH)
    accepted = 0
    for case in CASES:
        said = bench.say(case, DrafterDrafts(drafter), DraftShape(depth, depth))
        assert list(said.tokens) == bench.plain(case), case
        accepted += said.accepted
    assert accepted > 0


@pytest.mark.parametrize("k", KS)
def test_trees_change_no_id_but_where_two_are_as_good_as_equal(k: int, drafter: Drafter, bench: Bench) -> None:
    found = []
    tokens = 0
    deepest = []
    for depth in DEPTHS:
        for case in CASES:
            said = bench.say(case, DrafterDrafts(drafter), DraftShape(24, depth, k))
            found += mismatches(bench, case, said)
            tokens += len(said.tokens)
            deepest.append(max(each.accepted for each in said.rounds))
    assert all(mismatch.margin < mismatch.bound for mismatch in found)
    assert len(found) <= tokens * EXCEPTIONS
    assert max(deepest) >= 4


class Compared(DrafterDrafts):
    """Asks a session that gets all rows at once for the same tree."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self.compared = 0
        self._rows_seen: list[tuple[list[int], np.ndarray]] = []

    def append(self, ids, features) -> None:  # type: ignore[no-untyped-def]
        super().append(ids, features)
        self._rows_seen.append((list(ids), features.copy()))

    def take(self) -> RoundDraft:
        draft = super().take()
        fresh = 10_000 + self.compared
        ids = [token for part, _ in self._rows_seen for token in part]
        self._drafter.open(fresh, 0, 0)
        feed(self._drafter, fresh, 0, ids, np.concatenate([part for _, part in self._rows_seen]))
        assert tree_of(self._drafter, fresh, self._shape) == draft.tree
        self._drafter.close(fresh)
        self.compared += 1
        return draft


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.prompt)
def test_after_any_round_the_drafter_stands_where_a_fresh_prefill_would(
    case: Case, drafter: Drafter, bench: Bench
) -> None:
    source = Compared(drafter)
    said = bench.say(case, source, DraftShape(12, 4, 3))
    assert source.compared >= len(said.rounds) - 1 > 3


class Blurred:
    """Wrong: hands the drafter features of another token."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.spec, self.open, self.commit = engine.spec, engine.open, engine.commit

    def forward(self, seq, tokens, positions, tree_mask, logits_rows=None):  # type: ignore[no-untyped-def]
        step = self._engine.forward(seq, tokens, positions, tree_mask, logits_rows)
        return type(step)(step.logits, np.zeros_like(step.features))


def test_features_decide_what_is_accepted_and_never_what_is_said(drafter: Drafter, bench: Bench) -> None:
    blurred: Callable[[Engine], Engine] = Blurred  # type: ignore[assignment]
    shape = DraftShape(4, 4)
    seeing, blind = 0, 0
    for prompt in PROMPTS:
        case = Case(prompt, SamplingParams())
        seeing += bench.say(case, DrafterDrafts(drafter), shape).accepted
        said = Bench(blurred(bench.engine), bench.tokenizer, LENGTH).say(case, DrafterDrafts(drafter), shape)
        assert list(said.tokens) == bench.plain(case)
        blind += said.accepted
    assert seeing > LENGTH
    assert seeing > 2 * blind
