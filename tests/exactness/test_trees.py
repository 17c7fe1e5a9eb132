"""The exactness suite, part (b): trees on the real model.

Rows with holes between their ancestors may differ in their last bits from one-token steps. So every emitted prefix is
replayed through plain one-token steps with the same coins, and each token matches or its decision was within rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from starsd_edge.runtime.engine import Engine, Step
from starsd_edge.speculation.tree import DraftShape
from starsd_jetson.drafting import DraftSource
from starsd_server.drafters.causal_lm import CausalLmDrafter
from starsd_server.drafters.ngram import NgramDrafter
from tests.support.bundle_store import shipped_head
from tests.support.drafter_source import DrafterDrafts
from tests.support.exactness import (
    CASES,
    EVEN,
    EXCEPTIONS,
    ODD,
    OPTIONS,
    Bench,
    Case,
    Mismatch,
    Said,
    informed,
    mismatches,
    noise,
    right_among_wrong,
    right_before_wrong,
)

pytestmark = pytest.mark.model

SHAPE = DraftShape(14, 5, 3)
"""A draft of more than 5 nodes has branches."""


@dataclass(frozen=True)
class Way:
    """A way to draft: (the target, what is asked of it) -> source, and where it is tried."""

    source: Callable[[Bench, Case], DraftSource]
    cases: list[Case]


def causal_lm(bench: Bench) -> DraftSource:
    return DrafterDrafts(CausalLmDrafter(bench.engine, "a" * 64, bench.tokenizer.size, max_sessions=1))


WAYS = {
    "causal-lm": Way(lambda bench, case: causal_lm(bench), CASES),
    "eagle": Way(lambda bench, case: DrafterDrafts(shipped_head()), CASES),
    "ngram": Way(lambda bench, case: DrafterDrafts(NgramDrafter(max_sessions=1)), EVEN),
    "right before wrong": Way(lambda bench, case: informed(bench, case, right_before_wrong, seed=1), CASES),
    "right among wrong": Way(lambda bench, case: informed(bench, case, right_among_wrong, seed=2), CASES),
    "every option": Way(lambda bench, case: informed(bench, case, right_among_wrong, seed=4), OPTIONS),
    "noise": Way(lambda bench, case: informed(bench, case, noise, seed=3), ODD),
}


@pytest.fixture(params=["bench_fp16_kv", "bench_fp32_kv"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """With each KV dtype in turn."""
    return request.getfixturevalue(request.param)


def test_trees_change_no_id_but_where_two_are_as_good_as_equal(bench: Bench, say: Callable[[str], None]) -> None:
    kv = bench.engine.spec.kv_dtype
    share = 1 if kv == "float16" else 2  # float32 rows take the same path: one of two cases is tried with them
    found: list[Mismatch] = []
    tokens = 0
    for name, way in WAYS.items():
        cases = way.cases[::share]
        said = [bench.say(case, way.source(bench, case), SHAPE) for case in cases]
        here = [mismatch for each, case in zip(said, cases, strict=True) for mismatch in mismatches(bench, case, each)]
        say(f"{kv}, {name}: {_summary(said)}, {len(here)} exceptions {here or ''}")
        assert max(each.drafted for answer in said for each in answer.rounds) > SHAPE.max_depth
        found += here
        tokens += sum(len(each.tokens) for each in said)
    assert all(mismatch.margin < mismatch.bound for mismatch in found)
    assert len(found) <= tokens * EXCEPTIONS


def _summary(said: list[Said]) -> str:
    rounds = [each for answer in said for each in answer.rounds]
    return (
        f"{sum(len(each.tokens) for each in said)} tokens replayed, {sum(each.accepted for each in said)} of them "
        f"drafted, {len(rounds)} rounds, {np.mean([each.drafted for each in rounds]):.1f} nodes each"
    )


class NoTreeMask:
    """Wrong: every node sees all nodes before it, as in a chain."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.spec, self.open, self.commit = engine.spec, engine.open, engine.commit

    def forward(self, seq, tokens, positions, tree_mask, logits_rows=None) -> Step:  # type: ignore[no-untyped-def]
        return self._engine.forward(seq, tokens, positions, np.tri(len(tokens), dtype=np.bool_), logits_rows)


class NoCompaction:
    """Wrong: commits as many rows from the first on as were accepted, whichever they were."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.spec, self.open, self.forward = engine.spec, engine.open, engine.forward

    def commit(self, seq, rows) -> None:  # type: ignore[no-untyped-def]
        self._engine.commit(seq, range(len(rows)))


@pytest.mark.parametrize("fault", [NoTreeMask, NoCompaction])
def test_the_suite_catches_a_wrong_engine(fault: Callable[[Engine], Engine], bench_fp16_kv: Bench) -> None:
    wrong = Bench(fault(bench_fp16_kv.engine), bench_fp16_kv.tokenizer)
    caught = False
    for case in CASES:
        said = wrong.say(case, informed(bench_fp16_kv, case, right_among_wrong, seed=2), SHAPE)
        caught = caught or any(found.margin >= found.bound for found in mismatches(bench_fp16_kv, case, said))
        if caught:
            break
    assert caught
