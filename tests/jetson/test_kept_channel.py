"""The hub's session goes on from one answer to the next exactly where the text does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from starsd_edge.protocol.target_side import DraftArrived
from starsd_edge.speculation.tree import DraftShape
from starsd_jetson.hub_drafting import Asked
from starsd_jetson.kept_channel import KeptChannel, KeptChannels

CHAIN = DraftShape(4, 4)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Session:
    """What one session at the hub was given."""

    def __init__(self, prompt: Sequence[int], sampling_kind: str) -> None:
        self.prompt = "".join(LETTERS[token] for token in prompt)
        self.text = self.prompt[0]
        self.kind = sampling_kind
        self.features: list[float] = []
        self.pending: int | None = None
        self.requests: list[str] = []
        self.extends: list[str] = []
        self.waits: list[float] = []
        self.closed = False

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        assert not self.closed
        assert features is not None
        assert len(features) == len(ids)
        self.text += "".join(LETTERS[i] for i in ids)
        self.features += features[:, 0].tolist()

    def extend(self) -> None:
        self.extends.append(self.text)

    def request(self, shape: DraftShape) -> Asked | None:
        assert not self.closed
        self.requests.append(self.text)
        self.pending = len(self.requests)
        return Asked(self.pending, 50)

    def wait(self, timeout_s: float) -> DraftArrived | None:
        self.waits.append(timeout_s)
        return None

    def give_up(self) -> None:
        self.pending = None

    def close(self) -> None:
        assert not self.closed
        self.closed = True


class Star:
    """Answers one after the other on a kept channel."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.channels = KeptChannels(self._open)

    def _open(self, prompt: Sequence[int], sampling_kind: str) -> Session:
        self.sessions.append(Session(prompt, sampling_kind))
        return self.sessions[-1]

    def answer(self, prompt: str, said: str, kind: str = "greedy", chunk: int = 3) -> None:
        """One answer: the prompt in chunks, a request, the words with a request after each."""
        channel = self.channels.open([LETTERS.index(letter) for letter in prompt], kind)
        assert channel.pending is None
        for start in range(1, len(prompt), chunk):
            append(channel, prompt[: start + chunk], start)
            channel.extend()
        for end in range(len(prompt) + 1, len(prompt) + len(said) + 1):
            append(channel, (prompt + said)[:end], end - 1)
            assert channel.request(CHAIN) is not None
            assert channel.pending == self.sessions[-1].pending
        channel.close()


def append(channel: KeptChannel, text: str, start: int) -> None:
    """Rows of a text from `start` on; a row's feature is its position."""
    ids = [LETTERS.index(letter) for letter in text[start:]]
    channel.append(ids, np.arange(start, len(text), dtype=np.float16)[:, None])


def test_a_text_that_goes_on_stays_in_its_session() -> None:
    star = Star()
    star.answer("abcd", "efg")
    star.answer("abcdefghij", "kl")
    star.answer("abcdefghijklm", "n")
    (session,) = star.sessions
    assert session.text == "abcdefghijklmn"
    assert session.features == [float(row) for row in range(1, 14)]
    assert session.requests == ["abcde", "abcdef", "abcdefg", "abcdefghijk", "abcdefghijkl", "abcdefghijklmn"]
    assert not session.closed


@pytest.mark.parametrize("prompt", ["abcdefgxyz", "abcdezz", "abzz", "az", "a", "abcdefgz", "abc"])
@pytest.mark.parametrize("chunk", [1, 3, 20])
def test_a_text_that_turns_off_begins_a_new_one(prompt: str, chunk: int) -> None:
    star = Star()
    star.answer("abcd", "efgh")
    star.answer(prompt, "vw", chunk=chunk)
    first, second = star.sessions
    assert (first.text, first.closed) == ("abcdefgh", True)
    assert (second.text, second.requests) == (prompt + "vw", [prompt + "v", prompt + "vw"])
    assert second.features == [float(row) for row in range(1, len(prompt) + 2)]
    star.answer(prompt + "vwx", "y")
    assert len(star.sessions) == 2


@pytest.mark.parametrize(("first", "kind"), [("b", "greedy"), ("a", "sampled")])
def test_what_a_session_was_opened_for_must_be_the_same(first: str, kind: str) -> None:
    star = Star()
    star.answer("abcd", "e")
    star.answer(first + "bcdef", "g", kind)
    assert [session.closed for session in star.sessions] == [True, False]
    assert (star.sessions[1].text, star.sessions[1].kind) == (first + "bcdefg", kind)


def test_nothing_of_one_answer_is_waited_for_in_the_next() -> None:
    star = Star()
    star.answer("ab", "c")
    (session,) = star.sessions
    assert session.pending is None
    star.channels.open([0, 1], "greedy")
    assert session.waits == [0]


def test_rows_are_sent_ahead_only_once_they_are_new() -> None:
    star = Star()
    star.answer("abc", "def")
    (session,) = star.sessions
    session.extends.clear()
    star.answer("abcdefghi", "j")
    assert session.extends == ["abcdefg", "abcdefghi"]


def test_an_answer_that_ends_before_it_is_known_to_turn_off_changes_nothing() -> None:
    star = Star()
    star.answer("abcdef", "gh")
    star.answer("abc", "")
    star.answer("abcdefghi", "j")
    assert [session.text for session in star.sessions] == ["abcdefghij"]


def cancelled(star: Star, prompt: str, rows: int) -> None:
    """An answer that ends while its prompt is prefilled, after so many rows."""
    channel = star.channels.open([LETTERS.index(letter) for letter in prompt], "greedy")
    append(channel, prompt[: rows + 1], 1)
    channel.extend()
    channel.close()


@pytest.mark.parametrize("prompt", ["abcdxyz", "abcdef", "abz"])
def test_a_session_is_not_kept_for_a_text_that_lacks_what_it_was_opened_for(prompt: str) -> None:
    star = Star()
    cancelled(star, "abcdefgh", rows=3)
    star.answer(prompt, "v")
    first, second = star.sessions
    assert (first.text, first.closed) == ("abcd", True)
    assert (second.prompt, second.text) == (prompt, prompt + "v")


def test_a_prompt_that_was_cancelled_goes_on_in_its_session() -> None:
    star = Star()
    cancelled(star, "abcdefgh", rows=3)
    star.answer("abcdefghij", "k")
    assert [(session.text, session.closed) for session in star.sessions] == [("abcdefghijk", False)]


def test_the_hub_may_forget_it_in_the_end() -> None:
    star = Star()
    star.channels.close()
    star.answer("ab", "c")
    star.channels.close()
    star.channels.close()
    assert star.sessions[0].closed


class Several(Star):
    """As many sessions as a hub may take, for answers beside each other."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.channels = KeptChannels(self._open, lambda: most)

    def begin(self, prompt: str) -> KeptChannel | None:
        """An answer that has its prompt's rows."""
        channel = self.channels.open([LETTERS.index(letter) for letter in prompt], "greedy")
        if channel is not None:
            append(channel, prompt, 1)
        return channel

    @property
    def open(self) -> list[str]:
        return [session.text for session in self.sessions if not session.closed]


def test_answers_beside_each_other_have_sessions_of_their_own_up_to_the_limit() -> None:
    star = Several(2)
    first, second = star.begin("abc"), star.begin("abd")
    assert first is not None
    assert second is not None
    assert star.begin("xyz") is None, "it drafts by itself"
    first.close()
    third = star.begin("xyz")
    assert third is not None
    assert star.open == ["abd", "xyz"], "in the place of the one that nobody uses"
    second.close()
    third.close()
    assert star.begin("abde") is second
    assert star.begin("xyzw") is third
    assert star.open == ["abde", "xyzw"]


def test_the_session_not_used_for_longest_makes_room() -> None:
    star = Several(3)
    for prompt in ("abc", "bcd", "cde"):
        channel = star.begin(prompt)
        assert channel is not None
        channel.close()
    again = star.begin("abcx")
    assert again is not None
    again.close()
    assert star.begin("xyz") is not None
    assert star.open == ["abcx", "cde", "xyz"]
    star.channels.close()
    assert star.open == []
