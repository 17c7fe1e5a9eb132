"""Words that other programs have for a command: each is answered with the word here, in one line."""

from __future__ import annotations

import pytest

from starsd_edge.cli import main
from starsd_edge.cli.near_misses import CHAT_WORDS, INSTEAD, INSTEAD_IN_CHATS, meant_by
from starsd_edge.cli.run_target.chat_commands import commands
from tests.support.command_line import CommandLine


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("chat",), "'chat': `run MODEL` chats and answers prompts"),
        (("/bye",), "'/bye': that is for chats; on the command line, Ctrl-C ends what runs"),
        (("ls",), "'ls': `list` shows what is in the cache"),
        (("LS",), "'LS': `list` shows"),
        (("stop", "hub"), "Ctrl-C or SIGTERM ends a command; `ps` shows"),
        (("ecport", "x"), "'ecport': did you mean export?"),
        (("smollm2-135m", "Hi"), "'smollm2-135m': `run smollm2-135m` chats with it"),
        (("frobnicate",), "'frobnicate': there are run, pull, "),
        (("bench", "decod"), "'decod': did you mean decode? (`starsd-edge bench --help`)"),
        (("config", "ls"), "'ls': there are show and path"),
        (("help", "ecport"), "'ecport': did you mean export?"),
        (("a\x1b[2Jb",), r"'a\x1b[2Jb': there are"),
    ],
)
def test_the_right_word_is_said(cli: CommandLine, arguments: tuple[str, ...], says: str) -> None:
    refused = cli.refused(*arguments)
    assert f"there is no command {says}" in refused or says in refused
    assert "\n" not in refused.strip()
    assert cli(*arguments).code == 2


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("help", "--help"),
        ("HELP", "--help"),
        ("help run", "run --help"),
        ("help bench decode", "bench decode --help"),
        ("help help", "--help"),
        ("help --help", "--help"),
        ("bench help", "bench --help"),
        ("bench help decode", "bench decode --help"),
        ("version", "--version"),
    ],
)
def test_words_for_an_option_do_what_it_does(cli: CommandLine, typed: str, meant: str) -> None:
    ended, wanted = cli(*typed.split()), cli(*meant.split())
    assert (ended.code, ended.out, ended.err) == (0, wanted.out, "")


def test_no_word_stands_in_the_way_of_a_command(cli: CommandLine) -> None:
    names = {name.removesuffix(".command").replace("_", "-") for name in main.COMMAND_MODULES} | {"list", "rm"}
    assert not names & set(INSTEAD)
    for remedy in set(INSTEAD.values()):
        for words in remedy.split("`")[1::2]:
            assert words.split()[0] in names | {"help"}, remedy
    assert not (set(CHAT_WORDS) | set(INSTEAD_IN_CHATS)) & set(commands())
    assert not set(CHAT_WORDS) & set(INSTEAD_IN_CHATS)
    words = [each for said in INSTEAD_IN_CHATS.values() for each in said.split() if each.startswith("/")]
    assert {each.strip("/,;:") for each in words} <= {*commands(), "NAME"}
    assert set(CHAT_WORDS.values()) <= set(commands())


@pytest.mark.parametrize("message", ["exit", " Quit ", "exit()"])
def test_a_message_that_leaves_other_programs_is_answered(message: str) -> None:
    word = message.strip().lower()
    assert meant_by(message) == f'/quit leaves; """{word}""" says it to the model'
    assert meant_by(f"{message} now") == ""
    assert meant_by("bye") == "", "that may be said to a model"


def test_a_message_that_asks_other_programs_for_help_is_answered() -> None:
    assert meant_by("Help\n") == '/help lists the commands; """help""" says it to the model'
    assert meant_by("help me") == ""
