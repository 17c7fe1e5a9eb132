"""The commands of a chat, without a chat."""

from __future__ import annotations

import pytest

from starsd_edge.cli.run_target.chat_commands import (
    Action,
    ChatSettings,
    ChatState,
    as_message,
    commands,
    is_command,
    run_command,
)
from starsd_edge.cli.run_target.options import SamplingOptions
from starsd_edge.errors import UsageError
from starsd_edge.text.conversation import Conversation, Turn
from tests.support.decoding import request

TURNS = (Turn("hello", "hi", "stop"), Turn("go on", "and", "cancelled"), Turn("more", "", "length"))


def state(**changes: object) -> ChatState:
    usual = ChatState(ChatSettings(request(stop=("zz",)), SamplingOptions(), 40), Conversation("", TURNS))
    return ChatState(**{**vars(usual), **changes})


def said(line: str, before: ChatState | None = None) -> str:
    return "\n".join(run_command(before or state(), line).says)


def refused(line: str) -> str:
    with pytest.raises(UsageError) as caught:
        run_command(state(), line)
    return str(caught.value)


SETTINGS = {
    "temperature": "0.7",
    "top-k": "40",
    "top-p": "0.9",
    "min-p": "0.05",
    "repetition-penalty": "1.1",
    "presence-penalty": "0.5",
    "frequency-penalty": "-0.5",
    "min-tokens": "3",
    "max-tokens": "77",
    "seed": "5",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_shown_and_changed_for_the_next_answer(name: str) -> None:
    before = state()
    usual = said(f"/{name}")
    after = run_command(before, f"/{name} {SETTINGS[name]}")
    assert list(after.says) == [f"{name}: {SETTINGS[name]}"] != [usual]
    assert said(f"/{name}", after.state) == f"{name}: {SETTINGS[name]}"
    assert said(f"/{name}", before) == usual, "the state is a value"


def test_settings_reach_the_request() -> None:
    now = state()
    for name, value in SETTINGS.items():
        now = run_command(now, f"/{name} {value}").state
    wanted = now.settings.request([1, 2], seed=9)
    sampling, penalties = wanted.sampling, wanted.sampling.penalties
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.7, 40, 0.9, 0.05)
    assert (penalties.repetition, penalties.presence, penalties.frequency) == (1.1, 0.5, -0.5)
    assert (sampling.min_tokens, wanted.max_tokens, sampling.seed) == (3, 77, 5)
    assert (wanted.prompt, wanted.stop) == ([1, 2], ("zz",))
    assert state().settings.request([1], seed=9).sampling.seed == 9


def test_a_seed_can_be_random_again() -> None:
    now = run_command(run_command(state(), "/seed 5").state, "/seed random").state
    assert said("/seed", now) == said("/seed") == "seed: random for each answer"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/temperature hot", "/temperature takes a number, not 'hot'"),
        ("/temperature -1", "temperature must be 0 (always the likeliest token) or a positive number, not -1.0"),
        ("/temperature nan", "temperature must be 0"),
        ("/top-p 0", "top-p must lie above 0"),
        ("/top-k 1.5", "/top-k takes a whole number, not '1.5'"),
        ("/repetition-penalty 0", "a repetition penalty lies between"),
        ("/seed -1", "a seed is an integer from 0 to"),
        ("/seed five", "/seed takes a whole number, not 'five'"),
        ("/max-tokens 0", "max-tokens must be at least 1, not 0"),
        ("/min-tokens -1", "min-tokens must be at least 0, not -1"),
        ("/min-tokens 41", "lower --min-tokens or raise --max-tokens"),
        ("/tint maybe", "/tint is on or off, not 'maybe'; now it is off"),
        ("/temprature 1", "there is no command /temprature: did you mean /temperature?"),
        ("/list", "there is no command /list: that is for the command line: /quit leaves, then `starsd-edge list`"),
        ("/set temperature 0.5", "there is no command /set: /NAME VALUE sets one, like /temperature 0.7"),
        ("/Load x", "there is no command /Load: a chat keeps its model"),
        ("/stop", "there is no command /stop: Ctrl-C ends an answer, /quit the chat"),
        ("/etc/passwd", "there is no command /etc/passwd: /help lists them (// begins a message)"),
        ("/", "there is no command /: /help lists them"),
    ],
)
def test_what_cannot_be_done_is_one_line(line: str, says: str) -> None:
    assert says in refused(line)
    assert "\n" not in refused(line)


def test_slashes() -> None:
    assert is_command("/help")
    assert not is_command("//help")
    assert not is_command(" /help")
    assert as_message("//help") == "/help"
    assert as_message("what is /help") == "what is /help"


def test_the_system_prompt_is_set_shown_and_taken_away() -> None:
    now = run_command(state(), "/system  You are brief. ").state
    assert now.conversation == Conversation("You are brief.", TURNS)
    assert said("/system", now) == "system: You are brief."
    assert run_command(now, "/SYSTEM None").state.conversation.system == ""
    assert said("/system").startswith("no system prompt")


def test_reset_forgets_what_was_said_and_nothing_else() -> None:
    now = run_command(run_command(state(), "/system x").state, "/top-k 3").state
    outcome = run_command(now, "/reset")
    assert outcome.state == ChatState(now.settings, Conversation("x"))
    assert outcome.action is Action.FORGET


def test_history_shows_how_answers_ended_and_what_is_no_longer_read() -> None:
    shown = said("/history", state(conversation=Conversation("brief", TURNS, left_out=1)))
    assert shown.splitlines() == [
        "system: brief",
        "(not read any more) > hello",
        "hi",
        "> go on",
        "and [stopped]",
        "> more",
        "[cut off]",
    ]
    assert said("/history", state(conversation=Conversation())) == "nothing has been said"


def test_what_is_left_to_the_chat() -> None:
    actions = {"/retry": Action.RETRY, "/stats": Action.STATS, "/quit": Action.QUIT, "/tint on": Action.LEGEND}
    actions |= dict.fromkeys(("/bye", "/exit", "/q"), Action.QUIT) | dict.fromkeys(("/clear", "/new"), Action.FORGET)
    assert {line: run_command(state(), line).action for line in actions} == actions
    assert run_command(state(), "/tint on").state.tint
    assert run_command(state(tint=True), "/tint off").state == state()
    with pytest.raises(UsageError, match="no message to answer again"):
        run_command(state(conversation=Conversation()), "/retry")


def test_words_of_other_programs_do_what_the_command_does() -> None:
    assert run_command(state(), "/?") == run_command(state(), "/help")
    assert run_command(state(), "/clear").state == run_command(state(), "/reset").state


def test_help_names_every_command_and_settings_every_value() -> None:
    listed = dict(run_command(state(), "/help").table)
    assert [usage.split()[0] for usage in listed] == [f"/{name}" for name in commands()]
    assert all(listed.values())
    values = dict(run_command(state(), "/settings").table)
    assert set(values) == set(SETTINGS)
    assert (values["max-tokens"], values["seed"]) == ("40", "random for each answer")
    for command in commands().values():
        assert f"/{command.usage.split()[0][1:]}" == command.usage.split()[0]
