"""What of a chat the model reads."""

from __future__ import annotations

import pytest

from starsd_edge.text.conversation import Conversation, Messages, Turn, fit


def turns(*pairs: tuple[str, str]) -> tuple[Turn, ...]:
    return tuple(Turn(message, answer, "stop") for message, answer in pairs)


def words(messages: Messages) -> list[int]:
    """One token for each letter."""
    return [ord(letter) for message in messages for letter in message["content"]]


def read(messages: Messages) -> str:
    return " ".join(f"{message['role'][0]}:{message['content']}" for message in messages)


TALK = Conversation("be brief", turns(("aaaa", "bbbb"), ("cccc", "dddd"), ("eeee", "ffff")))


def test_the_model_reads_all_of_it() -> None:
    assert read(TALK.messages("g")) == "s:be brief u:aaaa a:bbbb u:cccc a:dddd u:eeee a:ffff u:g"
    assert read(Conversation().messages("g")) == "u:g"


def test_an_answer_stopped_in_the_middle_is_read_and_one_before_its_first_word_is_not() -> None:
    stopped = Conversation("", (Turn("a", "half", "cancelled"), Turn("b", "", "cancelled"), Turn("c", "", "stop")))
    assert read(stopped.messages("d")) == "u:a a:half u:c a: u:d"


def test_the_oldest_turns_are_left_out_and_stay_out() -> None:
    full, prompt = fit(TALK, "gggg", words, context=60, max_tokens=24)
    assert (full.left_out, len(prompt)) == (0, 36)
    shorter, prompt = fit(TALK, "gggg", words, context=59, max_tokens=24)
    assert shorter.left_out == 2, "once it was full, room for more than this answer is made"
    assert prompt == words(shorter.messages("gggg"))
    assert read(shorter.messages("gggg")) == "s:be brief u:eeee a:ffff u:gggg"
    again, _ = fit(shorter.with_turn(Turn("gggg", "h", "stop")), "i", words, context=59, max_tokens=24)
    assert again.left_out == 2
    assert again.turns[:3] == TALK.turns


def test_the_system_prompt_and_the_message_are_never_left_out() -> None:
    alone, prompt = fit(TALK, 40 * "g", words, context=50, max_tokens=24)
    assert (alone.left_out, read(alone.messages("g"))) == (3, "s:be brief u:g")
    assert len(prompt) == 48


def test_an_answer_longer_than_half_the_context_gets_half_of_it() -> None:
    assert fit(TALK, "gggg", words, context=72, max_tokens=10**6)[0].left_out == 0
    assert fit(TALK, "gggg", words, context=70, max_tokens=10**6)[0].left_out == 2


def test_turning_back_and_beginning_anew() -> None:
    left = Conversation("s", TALK.turns, left_out=3)
    assert left.without_last() == Conversation("s", TALK.turns[:2], left_out=2)
    assert left.anew() == Conversation("s")


@pytest.mark.parametrize("context", range(12, 80))
def test_what_fits_leaves_room(context: int) -> None:
    conversation, prompt = fit(TALK, "gg", words, context, max_tokens=8)
    assert len(prompt) <= context - min(8, context // 2) or conversation.left_out == 3
