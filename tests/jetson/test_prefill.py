"""The hub takes part from the prompt's first chunk on, and the first tokens never wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from starsd_edge.telemetry.rounds import HUB, Round
from starsd_jetson.decoder import Piece, decode
from starsd_jetson.drafting import NoDrafts
from starsd_jetson.hub_drafting import HubDrafts, OpenChannel
from starsd_jetson.kept_channel import KeptChannels
from starsd_jetson.kept_sequences import KeptSequences
from starsd_jetson.wait_policy import WaitPolicy
from tests.support.decoding import WORDS, Plain, letters, plain_answer, request
from tests.support.prefix_engine import PrefixEngine
from tests.support.simulated_star import Clock
from tests.support.stepped_star import SteppedStar

PASS_S = 0.035
CHUNK = 8
WIDTH = 64
PROMPT = tuple(np.random.default_rng(5).integers(0, 20, size=100).tolist())
WANTED = request(prompt=PROMPT, max_tokens=60, context=256)


class PacedEngine(PrefixEngine):
    """Every pass takes as long."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(1, max_chunk=CHUNK, feature_width=WIDTH)
        self._clock = clock

    def forward(self, *arguments, **named):  # type: ignore[no-untyped-def]
        self._clock.now += PASS_S
        return super().forward(*arguments, **named)


def expected(prompt: Sequence[int] = PROMPT) -> Plain:
    return plain_answer(PrefixEngine(1), letters([]), request(prompt=prompt, max_tokens=60, context=256))


def features_of(text: Sequence[int], row: int) -> list[float]:
    engine = PrefixEngine(1, feature_width=WIDTH)
    return engine.prefix_features(text[: row + 1]).astype(float).tolist()  # type: ignore[no-any-return]


@dataclass
class Told:
    """When tokens came, and from whom."""

    clock: Clock
    rounds: list[Round] = field(default_factory=list)
    at: list[float] = field(default_factory=list)

    def on_piece(self, piece: Piece) -> None:
        self.at += [self.clock.now] * len(piece.tokens)


def answer(star: SteppedStar, told: Told, open_channel: OpenChannel | None = None) -> Plain:
    source = HubDrafts(open_channel or star.open_channel, NoDrafts(), WaitPolicy(), star.clock)
    engine = PacedEngine(star.clock)
    return Plain.of(
        decode(
            engine, letters([]), WANTED, source, clock=star.clock, on_piece=told.on_piece, on_round=told.rounds.append
        )
    )


def a_star(
    warm_s: float = 0.0, draft_from_s: float = 0.0, window: int | None = None, service_s: float = 0.005
) -> SteppedStar:
    clock = Clock()
    truth = (*PROMPT, *expected().token_ids)
    return SteppedStar(
        clock,
        truth,
        warm_s=warm_s,
        draft_from_s=draft_from_s,
        service_s=service_s,
        window=window,
        vocab_size=WORDS,
        feature_width=WIDTH,
        max_context=256,
        chains_only=True,
    )


@pytest.mark.parametrize("window", [None, 20])
def test_features_of_the_prompt_reach_the_hub_while_it_is_prefilled(window: int | None) -> None:
    star = a_star(window=window)
    told = Told(star.clock)
    assert answer(star, told) == expected()
    first = 0 if window is None else len(PROMPT) - window
    (opening,) = star.opened
    assert (opening.first_row, opening.t_first) == (first, PROMPT[first])
    prefill = [rows for rows in star.absorbed if rows.at < told.at[0]]
    assert len(prefill) >= (len(PROMPT) - first) // CHUNK - 1
    assert prefill[0].first_row == first
    assert sum(len(rows.features) for rows in prefill) >= len(PROMPT) - first - 2 * CHUNK
    for rows in prefill:
        for row, values in enumerate(rows.features, rows.first_row):
            assert values == pytest.approx(features_of(PROMPT, row), abs=0.01)
    assert any(done.origin == HUB for done in told.rounds[:5]), "so it drafts soon"


@pytest.mark.parametrize(
    ("warm_s", "draft_from_s"), [(1.2, 0.0), (0.0, 1.2)], ids=["still warming", "still absorbing the prompt"]
)
@pytest.mark.parametrize("window", [None, 20])
def test_first_tokens_do_not_wait_for_the_hub_and_later_rounds_use_it(
    window: int | None, warm_s: float, draft_from_s: float
) -> None:
    star = a_star(warm_s, draft_from_s, window)
    told = Told(star.clock)
    assert answer(star, told) == expected()
    prefill_s = PASS_S * -(-len(PROMPT) // CHUNK)
    assert told.at[0] == pytest.approx(prefill_s)
    early = [at for at in told.at if at < 1.2]
    assert len(early) > 15
    assert early == pytest.approx([prefill_s + PASS_S * token for token in range(len(early))]), "plain, and no pause"
    later = [done for done in told.rounds[len(early) + 4 :] if done.origin == HUB]
    assert sum(done.emitted for done in later) > 18
    assert told.at[-1] - told.at[0] < 0.75 * PASS_S * len(told.at)


@pytest.mark.parametrize("state", ["idle", "busy", "never answers", "absent"])
def test_the_first_token_comes_when_it_would_come_without_a_hub(state: str) -> None:
    without = Told(Clock())
    decode(PacedEngine(without.clock), letters([]), WANTED, NoDrafts(), clock=without.clock, on_piece=without.on_piece)
    star = a_star(warm_s=1e6 if state == "never answers" else 0.0, service_s=5.0 if state == "busy" else 0.005)
    source = HubDrafts(
        lambda prompt, kind: None if state == "absent" else star.open_channel(prompt, kind),
        NoDrafts(),
        WaitPolicy(),
        star.clock,
    )
    for _ in range(3):  # also once the wait policy knows the hub
        told, began = Told(star.clock), star.clock.now
        said = decode(PacedEngine(star.clock), letters([]), WANTED, source, clock=star.clock, on_piece=told.on_piece)
        assert Plain.of(said) == expected()
        assert told.at[0] - began == pytest.approx(without.at[0])
    assert bool(star.opened) == (state != "absent"), "the hub had the sessions where there was one"


def test_a_chat_goes_on_in_its_session_with_the_rows_that_are_new() -> None:
    star = a_star(window=20)
    channels = KeptChannels(star.open_channel)
    source = HubDrafts(channels.open, NoDrafts(), WaitPolicy(), star.clock)
    engine = PacedEngine(star.clock)
    kept = KeptSequences(engine, 256)
    prompt = list(PROMPT)
    for _ in range(2):
        said = decode(engine, letters([]), request(prompt=prompt[:100], context=256, max_tokens=20), source,
                      clock=star.clock, kept=kept)  # fmt: skip
        told = len(star.absorbed)
        prompt = [*PROMPT, *said.token_ids, 3, 4, 5]
        again = decode(engine, letters([]), request(prompt=prompt, context=256, max_tokens=20), source,
                       clock=star.clock, kept=kept)  # fmt: skip
        assert Plain.of(again) == plain_answer(PrefixEngine(1), letters([]), request(prompt=prompt, context=256,
                                                                                    max_tokens=20))  # fmt: skip
        assert min(rows.first_row for rows in star.absorbed[told:]) > 100
    assert len(star.opened) == 2, "the second turn goes on in the session; a text that turns back does not"
    assert star.opened[1].first_row == 80
