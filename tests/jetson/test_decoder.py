"""The decode loop says what one-token decoding says, whatever drafts it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from starsd_edge.errors import UsageError
from starsd_edge.speculation.penalties import Penalties
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.telemetry.rounds import HUB, NONE
from starsd_jetson.answering import fit
from starsd_jetson.decoder import Piece, Request, Span, decode
from starsd_jetson.drafting import DraftSource, NgramDrafts, NoDrafts
from tests.support import draft_sources
from tests.support.decoding import EOS, PROMPT, Plain, letters, next_token, plain_answer, request
from tests.support.draft_sources import Follow, ScriptedDrafts
from tests.support.prefix_engine import PrefixEngine
from tests.support.trees import tree_of

SOURCES: dict[str, Callable[[Follow], DraftSource]] = {
    "none": lambda follow: NoDrafts(),
    "ngram": lambda follow: NgramDrafts(),
    "knowing": draft_sources.knowing,
    "half_knowing": lambda follow: draft_sources.half_knowing(follow, 5, 24),
    "guessing": lambda follow: draft_sources.guessing(7, 24),
    "oversized": draft_sources.oversized,
    "stale": lambda follow: draft_sources.stale(follow, 3),
    "impossible": lambda follow: draft_sources.impossible(9),
}
SHAPES = {"chain": DraftShape(4, 4, 1), "tree": DraftShape(12, 5, 3), "wide": DraftShape(15, 2, 8)}


class Steps:
    """A clock that moves on by a second whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def run(engine: PrefixEngine, wanted: Request, source: DraftSource) -> Plain:
    return Plain.of(decode(engine, letters(), wanted, source, clock=Steps()))


def follow(engine: PrefixEngine, wanted: Request, eos_ids: Sequence[int] = ()) -> Follow:
    return lambda text: next_token(engine, wanted.sampling, text, len(wanted.prompt), eos_ids)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("name", SOURCES)
def test_text_does_not_depend_on_drafts(name: str, temperature: float, shape: str) -> None:
    for seed in range(3):
        engine = PrefixEngine(seed, padding=4, vocab_size=28, eos_id=EOS, eos_bonus=2.0)
        wanted = request(sampling=SamplingParams(temperature, seed=seed), shape=SHAPES[shape])
        expected = plain_answer(engine, letters(), wanted)
        assert run(engine, wanted, SOURCES[name](follow(engine, wanted))) == expected


OPTIONS: dict[str, dict[str, object]] = {
    "min p": {"min_p": 0.2},
    "repetition": {"penalties": Penalties(repetition=1.5)},
    "presence": {"penalties": Penalties(presence=1.0)},
    "frequency": {"penalties": Penalties(frequency=0.8)},
    "favoured repetition": {"penalties": Penalties(0.8, -0.5, -0.5)},
    "bias": {"logit_bias": ((3, 2.0), (7, -float("inf")))},
    "min tokens": {"min_tokens": 12},
    "all": {"min_p": 0.1, "penalties": Penalties(1.2, 0.4, 0.3), "logit_bias": ((EOS, 3.0),), "min_tokens": 12},
}
REQUESTS: dict[str, dict[str, object]] = {
    "alone": {},
    "end of sequence ignored": {"ignore_eos": True},
    "several stop strings": {"stop": ("ab", "c", "fgh", "m"), "ignore_eos": True},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("changes", REQUESTS)
@pytest.mark.parametrize("option", OPTIONS)
def test_text_does_not_depend_on_drafts_whatever_the_options(
    option: str, changes: str, temperature: float, shape: str
) -> None:
    sampling = SamplingParams(temperature, seed=5, **OPTIONS[option])  # type: ignore[arg-type]
    wanted = request(sampling=sampling, shape=SHAPES[shape], prompt=PROMPT[:9], **REQUESTS[changes])
    for seed, name in enumerate(SOURCES):
        engine = PrefixEngine(seed, padding=4, vocab_size=28, eos_id=EOS, eos_bonus=2.0)
        eos_ids = () if wanted.ignore_eos else (EOS,)
        expected = plain_answer(engine, letters(), wanted)
        assert run(engine, wanted, SOURCES[name](follow(engine, wanted, eos_ids))) == expected, name


def test_right_drafts_are_accepted_whatever_the_options() -> None:
    for options in OPTIONS.values():
        engine = PrefixEngine(1)
        sampling = SamplingParams(0.8, seed=5, **options)  # type: ignore[arg-type]
        wanted = request(sampling=sampling, max_tokens=41, ignore_eos=True)
        answer = decode(engine, letters(), wanted, draft_sources.knowing(follow(engine, wanted)), clock=Steps())
        assert answer.stats.rounds == 8


def test_right_drafts_are_accepted_and_counted() -> None:
    engine, wanted = PrefixEngine(1), request(max_tokens=41)
    answer = decode(engine, letters([]), wanted, draft_sources.knowing(follow(engine, wanted)), clock=Steps())
    assert answer.stats.rounds == 8
    assert answer.stats.accepted_per_round == 4
    assert answer.stats.tokens_per_round == 5
    assert answer.stats.survival == [1, 1, 1, 1]
    assert answer.stats.draft_share == 1


def test_plain_rounds_give_one_token_each() -> None:
    engine = PrefixEngine(1)
    answer = decode(engine, letters([]), request(max_tokens=21), NoDrafts(), clock=Steps())
    assert (answer.stats.rounds, answer.stats.tokens_per_round, answer.stats.draft_share) == (20, 1, 0)
    assert set(engine.forward_sizes[1:]) == {1}


def test_repetitive_text_is_drafted_from_itself() -> None:
    engine = PrefixEngine(3, prefix_weight=0.0)
    answer = decode(engine, letters([]), request(max_tokens=80), NgramDrafts(), clock=Steps())
    assert answer.stats.accepted_per_round > 1
    assert answer.stats.by_origin["ngram"] > answer.stats.by_origin["none"]


@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_prompt_is_taken_in_chunks(chunk: int) -> None:
    engine = PrefixEngine(2, max_chunk=chunk)
    wanted = request(prompt=PROMPT * 3)
    assert run(engine, wanted, NoDrafts()) == plain_answer(engine, letters(), wanted)
    assert max(engine.forward_sizes) == min(chunk, 45)


def test_source_is_told_every_token_with_its_feature() -> None:
    engine = PrefixEngine(4, feature_width=3, max_chunk=4)
    wanted = request(shape=DraftShape(9, 4, 2))

    def script(text: list[int], shape: DraftShape) -> DraftTree:
        # The true path is not the first one, so the rows to keep are not the first rows.
        return tree_of([[22, 21], draft_sources.future(follow(engine, wanted), text, 2)])

    source = ScriptedDrafts(script, 3)
    answer = decode(engine, letters([]), wanted, source, clock=Steps())
    text = [*PROMPT, *answer.token_ids]
    told = len(source.text)
    assert len(text) - told < 5  # the last round's tokens are of no use to anybody
    assert source.text == text[:told]
    expected = np.array([engine.prefix_features(text[: row + 1]) for row in range(told - 1)])
    assert np.array_equal(np.array(source.features), expected)


def test_second_shorter_prompt_starts_afresh() -> None:
    engine, wanted = PrefixEngine(5), request(prompt=PROMPT * 4)
    source = draft_sources.knowing(follow(engine, wanted))
    run(engine, wanted, source)
    shorter = request(prompt=PROMPT[:3])
    assert run(engine, shorter, source) == plain_answer(engine, letters(), shorter)
    assert source.opened == source.ended == 2


# Ends of an answer inside accepted blocks.


def block_engine(eos_at: int | None, period: int = 7) -> tuple[PrefixEngine, Follow]:
    """A model that counts in a circle, and says EOS once the text has a certain length."""
    engine = PrefixEngine(0)

    def logits(prefix: object) -> np.ndarray:
        text = list(prefix)  # type: ignore[call-overload]
        row = np.zeros(engine.spec.vocab_size, dtype=np.float32)
        row[EOS if len(text) == eos_at else (text[-1] + 1) % period] = 5
        return row

    engine.prefix_logits = logits  # type: ignore[method-assign, assignment]
    return engine, lambda text: next_token(engine, SamplingParams(), text)


@pytest.mark.parametrize("index", range(8))
def test_end_of_sequence_at_every_place_of_a_block(index: int) -> None:
    engine, truth = block_engine(eos_at=len(PROMPT) + 1 + index)
    wanted = request(shape=DraftShape(6, 6))
    answer = run(engine, wanted, draft_sources.knowing(truth))
    assert answer == plain_answer(engine, letters(), wanted)
    assert (len(answer.token_ids), answer.finish_reason) == (1 + index, "stop")


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_max_tokens_at_every_place_of_a_block(max_tokens: int) -> None:
    engine, truth = block_engine(eos_at=None)
    wanted = request(max_tokens=max_tokens, shape=DraftShape(6, 6))
    answer = run(engine, wanted, draft_sources.knowing(truth, depth=9))
    assert answer == plain_answer(engine, letters(), wanted)
    assert (len(answer.token_ids), answer.finish_reason) == (max_tokens, "length")


@pytest.mark.parametrize("room", range(1, 9))
def test_context_ends_at_every_place_of_a_block(room: int) -> None:
    engine, truth = block_engine(eos_at=None)
    wanted = request(context=len(PROMPT) + room, shape=DraftShape(6, 6))
    answer = run(engine, wanted, draft_sources.knowing(truth, depth=9))
    assert answer == plain_answer(engine, letters(), wanted)
    assert (len(answer.token_ids), answer.finish_reason) == (room, "length")


@pytest.mark.parametrize("stop", ["b", "cd", "def", "fgab", "cx"])
@pytest.mark.parametrize("depth", [1, 3, 6])
def test_stop_strings_across_tokens_of_a_block(stop: str, depth: int) -> None:
    engine, truth = block_engine(eos_at=None)
    wanted = request(stop=(stop,), max_tokens=16, shape=DraftShape(6, depth))
    answer = run(engine, wanted, draft_sources.knowing(truth))
    assert answer == plain_answer(engine, letters(), wanted)
    assert stop not in answer.text


def test_stop_wins_over_length_in_one_block() -> None:
    engine, truth = block_engine(eos_at=len(PROMPT) + 2)
    answer = run(engine, request(max_tokens=5, shape=DraftShape(6, 6)), draft_sources.knowing(truth))
    assert (len(answer.token_ids), answer.finish_reason) == (2, "stop")
    wanted = request(max_tokens=3, stop=("bcd",), shape=DraftShape(6, 6))
    engine, truth = block_engine(eos_at=None)
    assert run(engine, wanted, draft_sources.knowing(truth)) == Plain((1, 2, 3), "", "stop")


def test_drafts_asked_for_fit_context_and_tokens_left() -> None:
    """Context 64, prompt 60: never a draft deeper than 3, though 8 are allowed."""
    engine = PrefixEngine(6, max_context=64)
    wanted = request(prompt=PROMPT * 4, context=64, max_tokens=100, shape=DraftShape(8, 8))
    source = draft_sources.knowing(follow(engine, wanted), depth=8)
    assert run(engine, wanted, source) == plain_answer(engine, letters(), wanted)
    assert [shape.max_depth for shape in source.shapes] == [3]
    source = draft_sources.knowing(follow(engine, wanted))
    run(engine, request(max_tokens=3, context=64), source)
    assert [shape.max_depth for shape in source.shapes] == [1]


def test_drafts_fit_the_largest_pass_of_the_engine() -> None:
    engine = PrefixEngine(7, max_tree=5)
    wanted = request(shape=DraftShape(50, 20))
    source = draft_sources.knowing(follow(engine, wanted), depth=20)
    assert run(engine, wanted, source) == plain_answer(engine, letters(), wanted)
    assert max(engine.forward_sizes[1:]) == 5


@pytest.mark.parametrize("min_tokens", range(8))
@pytest.mark.parametrize("depth", [1, 3, 6])
def test_min_tokens_at_every_place_of_a_block(min_tokens: int, depth: int) -> None:
    """The model says EOS after 3 tokens and from then on; its second choice counts on."""
    engine, _ = block_engine(eos_at=None)
    counting = engine.prefix_logits

    def logits(prefix: Sequence[int]) -> np.ndarray:
        row = counting(prefix)
        row[EOS] = 9 if len(prefix) >= len(PROMPT) + 3 else -9
        return row

    engine.prefix_logits = logits  # type: ignore[method-assign, assignment]
    wanted = request(sampling=SamplingParams(min_tokens=min_tokens), shape=DraftShape(6, depth))
    answer = run(engine, wanted, draft_sources.knowing(follow(engine, wanted, [EOS])))
    assert answer == plain_answer(engine, letters(), wanted)
    assert (len(answer.token_ids), answer.finish_reason) == (max(3, min_tokens), "stop")


def test_stop_string_among_the_first_tokens_is_text() -> None:
    engine, truth = block_engine(eos_at=None)
    for min_tokens, text in ((0, "b"), (3, "b"), (4, "bcdefgab"), (10, "bcdefgab"), (11, "bcdefgabcdefgab")):
        wanted = request(stop=("cde",), sampling=SamplingParams(min_tokens=min_tokens), shape=DraftShape(6, 6))
        answer = run(engine, wanted, draft_sources.knowing(truth))
        assert answer == plain_answer(engine, letters(), wanted)
        assert (answer.text, answer.finish_reason) == (text, "stop")


def test_ignored_end_of_sequence_is_a_token_like_any_other() -> None:
    engine, truth = block_engine(eos_at=len(PROMPT) + 3)
    wanted = request(max_tokens=8, ignore_eos=True, shape=DraftShape(6, 6))
    answer = run(engine, wanted, draft_sources.knowing(truth))
    assert answer == plain_answer(engine, letters(), wanted)
    assert (answer.token_ids[3], len(answer.token_ids), answer.finish_reason) == (EOS, 8, "length")


def test_more_tokens_at_least_than_at_most_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 41 and at most 40 tokens"):
        request(sampling=SamplingParams(min_tokens=41))
    request(sampling=SamplingParams(min_tokens=40))


@pytest.mark.parametrize("length", [0, 128, 129, 500])
def test_prompts_that_cannot_be_answered(length: int) -> None:
    source = draft_sources.guessing(1, 24)
    with pytest.raises(UsageError, match=r"empty|has \d+ tokens and the context holds 128"):
        run(PrefixEngine(), request(prompt=(1,) * length), source)
    assert source.opened == 0


# Streaming and cancelling.


def test_pieces_are_the_answer() -> None:
    engine, wanted = PrefixEngine(8), request(stop=("zz",))
    pieces: list[Piece] = []
    source = draft_sources.half_knowing(follow(engine, wanted), 3, 24)
    answer = decode(engine, letters(), wanted, source, clock=Steps(), on_piece=pieces.append)
    assert "".join(piece.text for piece in pieces) == answer.text
    assert [token for piece in pieces for token in piece.tokens] == list(answer.token_ids)
    assert all(len(piece.tokens) == len(piece.origins) for piece in pieces)


def test_pieces_say_where_each_token_is_from() -> None:
    engine, wanted = PrefixEngine(1), request(max_tokens=13)
    pieces: list[Piece] = []
    decode(engine, letters([]), wanted, knowing_at_times(engine, wanted), clock=Steps(), on_piece=pieces.append)
    assert [piece.origins for piece in pieces] == [(NONE,), (HUB, HUB, NONE), *5 * [(NONE,)], (HUB, HUB, HUB, NONE)]
    for piece in pieces:
        assert [span.origin for span in piece.spans] == list(piece.origins)
        assert [len(span.text) for span in piece.spans] == [1] * len(piece.tokens)


def knowing_at_times(engine: PrefixEngine, wanted: Request) -> ScriptedDrafts:
    """Right for two tokens in the first round, wrong in the following ones, right to the end."""
    true = follow(engine, wanted)

    def script(text: list[int], shape: DraftShape) -> DraftTree:
        ahead = draft_sources.future(true, text, shape.max_depth)
        emitted = len(text) - len(PROMPT)
        wrong = [(ahead[0] + 1) % 20]
        return DraftTree.chain(ahead[:2] if emitted == 1 else wrong if emitted < 9 else ahead)

    return ScriptedDrafts(script)


def test_text_held_back_at_the_end_is_from_its_last_token() -> None:
    engine, truth = block_engine(eos_at=len(PROMPT) + 4)
    pieces: list[Piece] = []
    source = draft_sources.knowing(truth)
    decode(engine, letters(), request(stop=("dez",)), source, clock=Steps(), on_piece=pieces.append)
    assert pieces[-1] == Piece((Span("de", HUB),), (), ())


def test_text_that_could_begin_a_stop_string_waits() -> None:
    engine, _ = block_engine(eos_at=len(PROMPT) + 4)
    texts: list[str] = []
    decode(
        engine,
        letters(),
        request(stop=("bcdx",)),
        NoDrafts(),
        clock=Steps(),
        on_piece=lambda piece: texts.append(piece.text),
    )
    assert texts == ["", "", "", "bcde"]


@pytest.mark.parametrize("after", [0, 1, 5])
def test_cancelling_keeps_what_there_is(after: int) -> None:
    engine, wanted = PrefixEngine(9), request()
    source = ScriptedDrafts(lambda text, shape: DraftTree.empty())
    asked = iter([False] * after + [True])
    answer = decode(engine, letters([]), wanted, source, clock=Steps(), cancelled=lambda: next(asked))
    assert answer.finish_reason == "cancelled"
    assert answer.token_ids == plain_answer(engine, letters([]), wanted).token_ids[:after]
    assert source.ended == 1


def test_times_come_from_the_clock() -> None:
    answer = decode(PrefixEngine(), letters([]), request(max_tokens=3), NoDrafts(), clock=Steps())
    assert answer.prefill_s > 0
    assert answer.decode_s >= answer.stats.round_s > answer.stats.verify_s == answer.stats.rounds


# Cutting trees to fit.


def test_fit_keeps_the_likeliest_chain_of_a_tree() -> None:
    tree = tree_of([[1, 2, 3], [1, 4], [5]])
    assert fit(tree, DraftShape(9, 9, 1), 24) == DraftTree.chain([1, 2, 3])
    assert fit(tree, DraftShape(9, 9, 2), 24) == tree
    assert fit(tree, DraftShape(9, 2, 1), 24) == DraftTree.chain([1, 2])
    assert fit(tree, DraftShape(0, 9, 2), 24) == DraftTree.empty()
    assert fit(tree, DraftShape(9, 9, 2), 5) == DraftTree.empty()
