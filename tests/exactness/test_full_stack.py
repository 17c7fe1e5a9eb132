"""The exactness suite, part (c), through the whole stack: real hub, real sockets, an engine that is a pure function.

There is nothing to round here, so no exception is allowed: not for any drafter, temperature or shape, nor for a hub
whose drafts are random, stale, malformed or not there.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest

from starsd_edge.protocol.messages import Hello
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.penalties import Penalties
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_jetson.decoder import Answer
from starsd_server.drafters.causal_lm import CausalLmDrafter
from starsd_server.drafters.contract import Drafter, Failures
from starsd_server.drafters.ngram import NgramDrafter
from tests.support.decoding import WORDS, Plain, request
from tests.support.draft_sources import future
from tests.support.hub_client import TOKENIZER_FP, running_hub
from tests.support.linked_target import LinkedTarget
from tests.support.prefix_engine import PrefixEngine
from tests.support.scripted_hub import Asked, Reply, ScriptedHub
from tests.support.trees import random_tree

SAMPLINGS = [
    SamplingParams(),
    SamplingParams(0.7, seed=1),
    SamplingParams(1.0, seed=2),
    SamplingParams(1.0, top_k=4, seed=3),
    SamplingParams(0.7, top_p=0.8, seed=2**64 - 1),
    SamplingParams(1.0, top_k=10, top_p=0.9, seed=5),
    SamplingParams(penalties=Penalties(1.5, 0.5, 0.5)),
    SamplingParams(
        0.9, seed=6, min_p=0.05, penalties=Penalties(0.8, -0.3, 0.6), logit_bias=((3, 1.5), (7, -100.0)), min_tokens=9
    ),
]
SHAPES = {"chains": DraftShape(4, 4), "trees": DraftShape(12, 4, 3)}
MODEL = 1
"""Seed of the target's model."""


def answer_all(url: str, shape: DraftShape) -> tuple[list[Answer], list[Plain]]:
    """One target answers by every sampling, one after the other, on one link."""
    wanted = [request(sampling=sampling, shape=shape, max_tokens=48) for sampling in SAMPLINGS]
    with LinkedTarget(url, wanted[0]) as target:
        target.connect()
        answers = [target.answer(each) for each in wanted]
    return answers, [target.plain(each) for each in wanted]


class Teller:
    """A drafter that tells what a script makes of the text."""

    kind = fingerprint = "teller"
    feature_codecs: tuple[str, ...] = ()

    def __init__(self, script: Callable[[list[int], DraftShape, int], DraftTree]) -> None:
        self._script = script
        self._texts: dict[int, list[int]] = {}
        self._drafts = 0

    def refuses(self, hello: Hello) -> str | None:
        return None

    def warm_up(self) -> None:
        pass

    def open(self, session: int, first_row: int, t_first: int) -> None:
        self._texts[session] = [t_first]

    def close(self, session: int) -> int:
        return len(self._texts.pop(session))

    def extend(self, batch: Sequence[NewRows]) -> Failures:
        for rows in batch:
            self._texts[rows.session].extend(rows.ids)
        return {}

    def base_len(self, session: int) -> int:
        return len(self._texts[session]) - 1

    def draft(self, batch: Sequence[int], shapes: Sequence[DraftShape]) -> list[DraftTree]:
        self._drafts += 1
        return [
            self._script(self._texts[session], shape, self._drafts)
            for session, shape in zip(batch, shapes, strict=True)
        ]


def likeliest(text: Sequence[int]) -> int:
    return int(PrefixEngine(MODEL).prefix_logits(text).argmax())


def guessing(text: list[int], shape: DraftShape, number: int) -> DraftTree:
    return random_tree(np.random.default_rng(number), shape, WORDS)


def stale(text: list[int], shape: DraftShape, number: int) -> DraftTree:
    """What followed three tokens ago."""
    return DraftTree.chain(future(likeliest, text[:-3] or text, shape.max_depth))


def oversized(text: list[int], shape: DraftShape, number: int) -> DraftTree:
    """Right, and larger than asked for."""
    return DraftTree.chain(future(likeliest, text, 14))


def unknown_words(text: list[int], shape: DraftShape, number: int) -> DraftTree:
    """Right, then ids that the target does not have."""
    return DraftTree.chain([*future(likeliest, text, 2), WORDS + number % 3])


def failing(text: list[int], shape: DraftShape, number: int) -> DraftTree:
    if number % 4 == 2:
        raise RuntimeError("a drafter with a fault")
    return guessing(text, shape, number)


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "ngram": lambda: NgramDrafter(8),
    "causal-lm, the target's model": lambda: CausalLmDrafter(PrefixEngine(MODEL), TOKENIZER_FP, WORDS, 8),
    "causal-lm, another model": lambda: CausalLmDrafter(PrefixEngine(MODEL + 1), TOKENIZER_FP, WORDS, 8),
    "random": lambda: Teller(guessing),
    "stale": lambda: Teller(stale),
    "oversized": lambda: Teller(oversized),
    "unknown words": lambda: Teller(unknown_words),
    "failing": lambda: Teller(failing),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", DRAFTERS)
async def test_no_drafter_changes_an_id(name: str, shape: str) -> None:
    async with running_hub([DRAFTERS[name]()]) as hub:
        answers, plain = await asyncio.to_thread(answer_all, hub.url, SHAPES[shape])
        assert hub.hub.facts().drafters[0].drafts > 0
    assert [Plain.of(answer) for answer in answers] == plain


def hostile(seed: int) -> Callable[[Asked], Iterable[Reply]]:
    """What a hub may send instead of a draft, one after the other at random; honest in between, or it would be shown
    the door after a few faults.
    """
    rng = random.Random(seed)
    earlier: list[bytes] = []

    def script(asked: Asked) -> Iterable[Reply]:
        wanted = asked.request
        shape = DraftShape(wanted.max_nodes, wanted.max_depth, wanted.branching)
        honest = asked.draft(guessing([], shape, rng.randrange(1000)))
        changed = DraftTree.chain([1, 2])
        kinds: list[list[Reply]] = [
            [honest],
            [honest, honest],
            [*earlier[-2:], honest],
            [asked.draft(changed, base_len=wanted.base_len + 1), honest],
            [asked.draft(changed, epoch=wanted.epoch + 1), honest],
            [asked.draft(changed, tag=rng.randbytes(16))],
            [asked.draft(changed, parents=[1, 0]), honest],
            [asked.draft(changed, ids=[1, WORDS])],
            [asked.draft(changed, ids=[1, 2, 3])],
            [asked.draft(DraftTree.chain([3] * 64)), honest],
            [rng.randbytes(rng.randrange(1, 60)), honest],
            [honest[: rng.randrange(1, len(honest))]],
            ["words", honest],
            [0.02, honest],
            [],
        ]
        earlier.append(honest)
        yield from rng.choice(kinds)

    return script


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_no_hostile_hub_changes_an_id(seed: int, shape: str) -> None:
    with ScriptedHub(hostile(seed)) as hub:
        answers, plain = answer_all(hub.url, SHAPES[shape])
        assert hub.requests
    assert [Plain.of(answer) for answer in answers] == plain


async def test_three_targets_with_different_temperatures_share_a_hub() -> None:
    wanted = [request(sampling=sampling, shape=SHAPES["trees"], max_tokens=60) for sampling in SAMPLINGS[:3]]

    def one(url: str, number: int) -> tuple[Plain, Plain, int]:
        with LinkedTarget(url, wanted[number], name=f"target-{number}", wait_s=20.0) as target:
            target.connect()
            answer = target.answer()
            return Plain.of(answer), target.plain(), answer.stats.by_origin.get("hub", 0)

    async with running_hub([DRAFTERS["causal-lm, the target's model"]()]) as hub:
        results = await asyncio.gather(*(asyncio.to_thread(one, hub.url, number) for number in range(3)))
    for answer, plain, from_hub in results:
        assert answer == plain
        assert from_hub > 0
