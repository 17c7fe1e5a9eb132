"""The exactness suite, part (d): with the KV that one answer leaves, the next says what it says without, id for id."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape
from starsd_jetson.decoder import Request, decode
from starsd_jetson.drafting import NgramDrafts
from starsd_jetson.kept_sequences import KeptSequences
from tests.support.exactness import Bench

pytestmark = pytest.mark.model

MESSAGES = (
    "Count from one to ten, twice.",
    "And backwards.",
    "Say it all again, with a comma after each.",
    "Thank you.",
)
CHAIN, TREE = DraftShape(4, 4), DraftShape(12, 4, 3)
BENCHES = {
    "fp32, fp16 KV": ("bench_fp16_kv", CHAIN),
    "fp32, fp16 KV, trees": ("bench_fp16_kv", TREE),
    "fp32, fp32 KV": ("bench_fp32_kv", CHAIN),
    "fp32, fp32 KV, trees": ("bench_fp32_kv", TREE),
    "int8": ("bench_int8", CHAIN),
}
SAMPLINGS = (SamplingParams(), SamplingParams(0.8, top_p=0.95, seed=12))


@pytest.fixture(params=BENCHES)
def way(request: pytest.FixtureRequest) -> tuple[str, Bench, DraftShape]:
    """The name of each kind of bundle, and how it drafts, in turn."""
    fixture, shape = BENCHES[request.param]
    return request.param, request.getfixturevalue(fixture), shape


def test_a_chat_says_what_fresh_prefills_say(way: tuple[str, Bench, DraftShape], say: Callable[[str], None]) -> None:
    name, bench, shape = way
    prompt_tokens = reused = equal = 0
    for sampling in SAMPLINGS:
        messages: list[dict[str, str]] = []
        kept = KeptSequences(bench.engine, 512)
        for message in MESSAGES:
            messages.append({"role": "user", "content": message})
            prompt = bench.tokenizer.encode_chat(messages)
            wanted = Request(prompt, sampling, max_tokens=32, context=512, shape=shape)
            going_on = decode(bench.engine, bench.tokenizer, wanted, NgramDrafts(), clock=lambda: 0.0, kept=kept)
            fresh = decode(bench.engine, bench.tokenizer, wanted, NgramDrafts(), clock=lambda: 0.0)
            assert going_on.token_ids == fresh.token_ids
            equal += len(fresh.token_ids)
            prompt_tokens += len(prompt)
            reused += going_on.reused_tokens
            messages.append({"role": "assistant", "content": fresh.text})
    say(f"{name}: {equal} ids equal, {reused} of {prompt_tokens} prompt tokens not run again")
    assert reused > prompt_tokens / 3
