"""The exactness suite, part (a): with chains, ids with speculation equal ids without, and there is no exception.

That holds for int8 weights too; there, trees are refused because it does not hold for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.errors import UsageError
from starsd_edge.runtime.engine import Engine
from starsd_edge.runtime.loading import open_engine
from starsd_edge.speculation.tree import DraftShape
from starsd_jetson.draft_size import draft_shape
from starsd_jetson.drafting import DraftSource, NgramDrafts
from starsd_server.drafters.causal_lm import CausalLmDrafter
from starsd_server.drafters.ngram import NgramDrafter
from tests.support.bundle_store import shipped_head
from tests.support.drafter_source import DrafterDrafts
from tests.support.exactness import (
    CASES,
    EVEN,
    ODD,
    OPTIONS,
    Bench,
    Case,
    informed,
    noise,
    right_before_wrong,
    right_then_wrong,
)

pytestmark = pytest.mark.model

USUAL = DraftShape(4, 4)
LONG = DraftShape(12, 12)
BENCHES = {"fp32, fp16 KV": "bench_fp16_kv", "fp32, fp32 KV": "bench_fp32_kv", "int8": "bench_int8"}
SHARES = {"float16": 1, "float32": 2}
"""By KV dtype: one of so many of a way's cases is tried. float32 rows take the same path as those of float16."""


@pytest.fixture(params=BENCHES)
def bench(request: pytest.FixtureRequest) -> Bench:
    """Each kind of bundle in turn."""
    return request.getfixturevalue(BENCHES[request.param])


@dataclass(frozen=True)
class Way:
    """A way to draft: (the target, what is asked of it, an int8 engine) -> source, and where it is tried."""

    source: Callable[[Bench, Case, Engine], DraftSource]
    cases: list[Case]
    shape: DraftShape = USUAL


def causal_lm(engine: Engine, bench: Bench) -> DraftSource:
    return DrafterDrafts(CausalLmDrafter(engine, "a" * 64, bench.tokenizer.size, max_sessions=1))


WAYS = {
    "causal-lm with the target's weights": Way(lambda bench, case, int8: causal_lm(bench.engine, bench), EVEN),
    "causal-lm with int8 weights": Way(lambda bench, case, int8: causal_lm(int8, bench), EVEN),
    "the shipped head": Way(lambda bench, case, int8: DrafterDrafts(shipped_head()), CASES),
    "the hub's ngram": Way(lambda bench, case, int8: DrafterDrafts(NgramDrafter(max_sessions=1)), EVEN),
    "the target's ngram": Way(lambda bench, case, int8: NgramDrafts(), ODD),
    "right, then wrong": Way(lambda bench, case, int8: informed(bench, case, right_then_wrong, seed=1), CASES, LONG),
    "every option": Way(lambda bench, case, int8: informed(bench, case, right_then_wrong, seed=4), OPTIONS),
    "trees unasked for": Way(lambda bench, case, int8: informed(bench, case, right_before_wrong, seed=2), ODD),
    "noise": Way(lambda bench, case, int8: informed(bench, case, noise, seed=3), EVEN),
}


@pytest.mark.parametrize("name", WAYS)
def test_chains_change_no_id(name: str, bench: Bench, engine_int8: Engine, say: Callable[[str], None]) -> None:
    way = WAYS[name]
    tokens = rounds = accepted = 0
    for case in way.cases[:: SHARES[bench.engine.spec.kv_dtype]]:
        said = bench.say(case, way.source(bench, case, engine_int8), way.shape)
        assert list(said.tokens) == bench.plain(case), case
        tokens += len(said.tokens)
        rounds += len(said.rounds)
        accepted += said.accepted
    say(f"{name}: {tokens} ids equal, {accepted} of them drafted, {rounds} rounds")
    assert (accepted > 0) == (name != "noise")


def test_int8_weights_verify_trees_only_where_that_is_allowed(bundle_int8: Bundle, engine_int8: Engine) -> None:
    with pytest.raises(UsageError, match="exact for chains only"):
        draft_shape(engine_int8.spec, depth=4, nodes=None, branching=2)
    allowed = open_engine(bundle_int8, threads=2, allow_inexact=True)
    assert draft_shape(allowed.spec, depth=4, nodes=None, branching=2) == DraftShape(8, 4, 2)
