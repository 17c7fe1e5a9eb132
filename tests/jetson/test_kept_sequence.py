"""The KV of one answer serves the next, and no text depends on it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_jetson.decoder import Answer, Request, decode
from starsd_jetson.drafting import DraftSource, NgramDrafts, NoDrafts
from starsd_jetson.kept_sequences import KeptSequences
from tests.support import draft_sources
from tests.support.decoding import EOS, PROMPT, Plain, letters, next_token, plain_answer, request
from tests.support.draft_sources import ScriptedDrafts
from tests.support.prefix_engine import PrefixEngine
from tests.support.trees import tree_of

SHAPES = {"chain": DraftShape(4, 4), "tree": DraftShape(12, 5, 3)}


class Chat:
    """Answers of one engine, each with what the one before left."""

    def __init__(
        self,
        engine: PrefixEngine,
        source: Callable[[Request], DraftSource] = lambda wanted: NoDrafts(),
        budget: int = 128,
    ):
        self.engine = engine
        self.kept = KeptSequences(engine, budget)
        self._source = source

    def answer(self, wanted: Request, cancelled: Callable[[], bool] = lambda: False) -> Answer:
        """Answer, and compare with the definition unless it is cancelled."""
        answer = decode(
            self.engine,
            letters(),
            wanted,
            self._source(wanted),
            clock=lambda: 0.0,
            kept=self.kept,
            cancelled=cancelled,
        )
        if answer.finish_reason != "cancelled":
            assert Plain.of(answer) == plain_answer(self.engine, letters(), wanted)
        return answer


def knowing_half(engine: PrefixEngine) -> Callable[[Request], DraftSource]:
    def source(wanted: Request) -> DraftSource:
        follow = lambda text: next_token(engine, wanted.sampling, text, len(wanted.prompt))  # noqa: E731
        return draft_sources.half_knowing(follow, 5, 24)

    return source


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_texts_are_those_of_fresh_prefills(shape: str, temperature: float) -> None:
    """Turns that continue, turn back, branch off and begin anew."""
    reused = 0
    for seed in range(4):
        engine = PrefixEngine(seed, eos_id=EOS, eos_bonus=1.0)
        chat = Chat(engine, knowing_half(engine))
        sampling = SamplingParams(temperature, seed=seed)
        first = chat.answer(request(sampling=sampling, shape=SHAPES[shape], max_tokens=20))
        longer = (*PROMPT, *first.token_ids, EOS, 3, 1, 2)
        for prompt in (longer, longer, longer[:-2], longer[:10], (*longer[:10], 7, 7), (5, 4), PROMPT):
            reused += chat.answer(
                request(prompt=prompt, sampling=sampling, shape=SHAPES[shape], max_tokens=9)
            ).reused_tokens
    assert reused > 100


def test_only_what_is_new_runs() -> None:
    chat = Chat(PrefixEngine(1), lambda wanted: NgramDrafts())
    first = chat.answer(request(max_tokens=30))
    assert first.reused_tokens == 0
    held = len(PROMPT) + len(first.token_ids)
    longer = (*PROMPT, *first.token_ids, 9, 8, 7, 6, 5)
    chat.engine.forward_sizes.clear()
    second = chat.answer(request(prompt=longer, max_tokens=1))
    assert held - 6 < second.reused_tokens < held, "all but the tokens of the last round"
    assert chat.engine.forward_sizes == [len(longer) - second.reused_tokens]


def test_the_same_prompt_again_runs_its_last_token_only() -> None:
    chat = Chat(PrefixEngine(1))
    first = chat.answer(request(max_tokens=8))
    chat.engine.forward_sizes.clear()
    again = chat.answer(request(max_tokens=8))
    assert chat.engine.forward_sizes[0] == 1
    assert (again.reused_tokens, again.token_ids) == (len(PROMPT) - 1, first.token_ids)


def test_rows_out_of_the_middle_of_a_tree_are_not_used_again() -> None:
    """The second round accepts a path that is no prefix of its tree; chains follow."""
    engine = PrefixEngine(1)
    wanted = request(max_tokens=20, shape=SHAPES["tree"])
    true = plain_answer(engine, letters(), wanted).token_ids

    def script(text: list[int], shape: DraftShape) -> DraftTree:
        emitted = len(text) - len(PROMPT)
        ahead = list(true[emitted : emitted + shape.max_depth])
        return tree_of([[(ahead[0] + 1) % 20], ahead]) if emitted == 7 else DraftTree.chain(ahead)

    chat = Chat(engine, lambda wanted: ScriptedDrafts(script))
    chat.answer(wanted)
    again = chat.answer(request(prompt=(*PROMPT, *true, 1), max_tokens=5))
    assert again.reused_tokens == len(PROMPT) + 6, "token 7 was the root of that round and is computed again with it"


def test_an_answer_that_was_cancelled_leaves_what_it_had() -> None:
    for after in range(9):
        chat = Chat(PrefixEngine(1, max_chunk=4))
        asked = iter([False] * after + [True]).__next__
        cut = chat.answer(request(), asked)
        full = chat.answer(request())
        assert full.token_ids[: len(cut.token_ids)] == cut.token_ids
        assert full.reused_tokens == min(4 * after, len(PROMPT) - 1)


def test_an_engine_that_fails_in_the_middle_leaves_nothing_wrong() -> None:
    chat = Chat(PrefixEngine(1))
    forward, passes = chat.engine.forward, iter(range(100))

    def failing(*arguments: object, **named: object) -> object:
        if next(passes) == 5:
            raise MemoryError
        return forward(*arguments, **named)  # type: ignore[arg-type]

    chat.engine.forward = failing  # type: ignore[method-assign, assignment]
    with pytest.raises(MemoryError):
        chat.answer(request())
    assert chat.answer(request()).reused_tokens == len(PROMPT) - 1


def test_a_longer_context_begins_anew() -> None:
    chat = Chat(PrefixEngine(1), budget=65)
    chat.answer(request(context=64))
    assert chat.answer(request(context=60)).reused_tokens == len(PROMPT) - 1
    assert chat.answer(request(context=65)).reused_tokens == 0


def test_the_source_is_told_every_row_with_its_features() -> None:
    engine = PrefixEngine(1, feature_width=8)
    sources: list[ScriptedDrafts] = []

    def source(wanted: Request) -> DraftSource:
        sources.append(ScriptedDrafts(lambda text, shape: DraftTree.empty(), feature_width=8))
        return sources[-1]

    chat = Chat(engine, source)
    first = chat.answer(request(max_tokens=9))
    longer = (*PROMPT, *first.token_ids, 4, 5, 6)
    assert chat.answer(request(prompt=longer, max_tokens=3)).reused_tokens > len(PROMPT)
    chat.answer(request(prompt=longer[:12], max_tokens=3))
    for told in sources:
        expected = [engine.prefix_features(told.text[: row + 1]) for row in range(len(told.features))]
        assert len(told.features) == len(told.text) - 1
        np.testing.assert_array_equal(told.features, expected)
