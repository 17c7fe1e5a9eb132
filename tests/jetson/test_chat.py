"""`starsd-edge run-target --chat` fed by a script: what is read, what is said, what is refused. The model is the numpy
engine; the template writes a letter for each role.
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftTree
from starsd_jetson import target as target_module
from starsd_jetson.hub_channel import HubChannel
from starsd_jetson.hub_link import HubLink
from tests.support.command_line import CommandLine, Ended
from tests.support.decoding import letters, plain_answer, request
from tests.support.letter_bundle import write_bundle
from tests.support.prefix_engine import PrefixEngine
from tests.support.scripted_hub import Asked, ScriptedHub

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}a"
CONTEXT = 128


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> PrefixEngine:
    """The model of the chat."""
    engine = PrefixEngine(1, max_context=CONTEXT)
    monkeypatch.setattr(target_module, "open_engine", lambda *arguments, **named: engine)
    return engine


@pytest.fixture
def chat(
    capsys: pytest.CaptureFixture[str], engine: PrefixEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Chat:
    return Chat(CommandLine(capsys), write_bundle(tmp_path / "bundle", TEMPLATE), monkeypatch, engine)


class Chat:
    """`starsd-edge run-target BUNDLE --chat` with lines on standard input."""

    def __init__(self, command: CommandLine, bundle: Path, monkeypatch: pytest.MonkeyPatch, engine: PrefixEngine):
        self._command = command
        self._bundle = bundle
        self._monkeypatch = monkeypatch
        self.engine = engine

    def __call__(self, *lines: str | bytes, options: tuple[object, ...] = ()) -> Ended:
        data = b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines)
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        return self._command("run-target", self._bundle, "--chat", *options)

    def says(self, *lines: str, options: tuple[object, ...] = ("--max-tokens", 8)) -> list[str]:
        """The answers, where nothing is refused."""
        ended = self(*lines, options=options)
        assert ended.code == 0, ended
        return ended.out.splitlines()

    def expected(self, *messages: str, system: str = "", **changes: Any) -> list[str]:
        """The answers by their definition: each prompt is the whole chat."""
        text, answers = system, []
        for message in messages:
            text += f"u{message}a"
            wanted = {"max_tokens": 8, **changes, "prompt": tuple(letters().encode(text))}
            answers.append(plain_answer(self.engine, letters(), request(**wanted)).text)
            text += answers[-1]
        return answers


def test_every_answer_is_that_to_the_whole_chat(chat: Chat) -> None:
    assert chat.says("abc", "de", "fgh") == chat.expected("abc", "de", "fgh")


def test_only_what_is_new_is_read(chat: Chat, engine: PrefixEngine) -> None:
    ended = chat("abcdefgh", "ij", "/stats", options=("--max-tokens", 8, "--no-speculation"))
    assert ended.out.splitlines() == chat.expected("abcdefgh", "ij")
    assert [rows for rows in engine.forward_sizes if rows > 1] == [10, 6], "two of the answer, and u, i, j, a"
    assert "prompt              22 tokens, 16 of them read before" in ended.err


def test_nothing_but_answers_goes_to_standard_output(chat: Chat) -> None:
    ended = chat("abc", "/stats", "/help", "/settings", "/history", "/reset", "", "abc", options=("--max-tokens", 8))
    assert ended.code == 0
    assert ended.out.splitlines() == 2 * chat.expected("abc")
    assert "/temperature X" in ended.err
    assert "> " not in ended.out


def test_quit_is_the_end(chat: Chat) -> None:
    assert chat.says("abc", "/quit", "de") == chat.expected("abc")


def test_words_that_leave_other_programs_are_messages_in_a_script(chat: Chat) -> None:
    assert chat("exit", "/bye", "/what").out == chat('"""exit"""', "/quit").out != ""


def test_lines_between_quotes_are_one_message(chat: Chat) -> None:
    assert chat.says('"""ab', 'cd"""') == chat.expected("abcd")


def test_system_prompt(chat: Chat) -> None:
    assert chat.says("/system bcd", "abc") == chat.expected("abc", system="sbcd")
    assert chat.says("/system bcd", "/reset", "abc") == chat.expected("abc", system="sbcd")
    assert chat.says("/system bcd", "/system none", "abc") == chat.expected("abc")


# Settings, seeds and trying again.


def test_settings_count_from_the_next_answer_on(chat: Chat) -> None:
    sampling = SamplingParams(0.9, seed=6)
    (usual,) = chat.expected("abc")
    (sampled,) = chat.expected("abc", sampling=sampling, max_tokens=12)
    lines = ("abc", "/temperature 0.9", "/seed 6", "/max-tokens 12", "/retry", "/retry")
    assert chat.says(*lines) == [usual, sampled, sampled]
    options = ("--max-tokens", 12, "--temperature", 0.9, "--seed", 6)
    assert chat.says("abc", options=options) == [sampled]


def test_a_random_seed_is_new_for_each_answer_and_can_be_had_again(chat: Chat) -> None:
    options = ("--temperature", 4, "--max-tokens", 30)
    ended = chat("abc", "/stats", "/retry", "/stats", options=options)
    first, second = ended.out.splitlines()
    seeds = re.findall(r"seed +(\d+)", ended.err)
    assert len(set(seeds)) == 2
    assert first != second
    assert chat.says(f"/seed {seeds[1]}", "abc", options=options) == [second]


def test_trying_again_takes_the_place_of_the_answer(chat: Chat) -> None:
    first, again, more = chat.says("abc", "/retry", "de")
    assert (first, again) == (*chat.expected("abc"), *chat.expected("abc"))
    assert more == chat.expected("abc", "de")[1]


# Where it becomes too long.


def test_the_oldest_turns_are_left_out_and_that_is_said_once(chat: Chat) -> None:
    messages = [12 * letter for letter in "abcdefgh"]
    ended = chat(*messages, "/history", options=("--max-tokens", 8))
    assert ended.code == 0
    assert len(ended.out.splitlines()) == len(messages)
    assert ended.err.count("the context is full: from here on the model no longer reads the oldest turns") == 1
    unread = re.findall(r"\(not read any more\) > (\w)", ended.err)
    assert 0 < len(unread) < len(messages)
    assert unread == list("abcdefgh"[: len(unread)])
    assert ended.out.splitlines()[:3] == chat.expected(*messages[:3])


def test_a_message_that_is_too_long_is_refused_and_the_chat_goes_on(chat: Chat) -> None:
    ended = chat("abc", "d" * 200, "de", "/stats", options=("--max-tokens", 8))
    assert ended.code == 1, "not 2, which would be a wrong option: a service is not started again after one"
    assert ended.out.splitlines() == chat.expected("abc", "de")
    assert ended.err.splitlines()[1].startswith("error: the prompt has 202 tokens and the context holds 128")
    assert "answers of this chat: 2" in ended.err


def test_an_answer_cut_off_says_by_what(chat: Chat) -> None:
    assert "[cut off after 8 tokens; /max-tokens sets how many]" in chat("abc", options=("--max-tokens", 8)).err
    assert "[cut off: the context is full]" in chat("abc", options=("--context", 9)).err


# What documents say.

ROOT = Path(__file__).parents[2]
PAGES = [file for pattern in ("*.md", "docs/*.md", "*/README.md", "*/deploy/*") for file in ROOT.glob(pattern)]
PROGRAM = sorted((ROOT / "starsd_edge" / "cli" / "run_target").glob("chat*.py"))
HTTP_PAGES = {"/health", "/healthz", "/readyz", "/status", "/metrics"}


def written_commands(text: str) -> set[str]:
    """The commands of a chat in this text: alone between backquotes, or given to `echo`; what follows them belongs to
    them.
    """
    found = re.findall(
        r"""`(?:echo ["']?)?(/[a-z-]+(?: [^`"'>|/]*)?)["']?`|echo ["']?(/[a-z-]+(?: [^`"'>|/]*)?)""", text
    )
    return {"".join(one).strip() for one in found} - HTTP_PAGES


def test_commands_of_a_chat_are_found_where_they_stand() -> None:
    text = "`/new`, `echo /old` and `/a b`; GET `/status`; see `/etc/x`.\n```\necho '/seed 5' > /run/x\n```\n"
    assert written_commands(text) == {"/new", "/old", "/a b", "/seed 5"}


def test_commands_that_documents_and_the_program_name_do_something(chat: Chat) -> None:
    written = set.union(*(written_commands(page.read_text(encoding="utf-8")) for page in PAGES if page.is_file()))
    assert {"/help", "/quit", "/reset"} <= written
    assert PROGRAM
    for file in PROGRAM:  # in its messages they stand between words
        written |= set(re.findall(r"(?<![\w/.])/[a-z-]+(?=[ ;,:)'\"]|$)", file.read_text(encoding="utf-8")))
    for command in sorted(written - {"/quit"}):
        ended = chat("abc", command, "/quit", "/what", options=("--max-tokens", 2))
        assert ended.code == 0, (command, ended.err)


# What is refused.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--prompt", "a"), "leave out --prompt and --prompts"),
        (("--prompts", "-"), "leave out --prompt and --prompts"),
        (("--raw",), "leave out --raw"),
        (("--json",), "leave out --json and --stream-json"),
        (("--stream-json",), "leave out --json and --stream-json"),
        (("--log-format", "json"), "give --log-format text"),
        (("--temperature", -1), "temperature must be 0"),
        (("--hub", "http://127.0.0.1:1"), "not the address of a hub"),
    ],
)
def test_options_that_do_not_go_together(chat: Chat, options: tuple[object, ...], says: str) -> None:
    ended = chat("abc", options=options)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert says in ended.err


def test_tint_needs_a_terminal(chat: Chat) -> None:
    ended = chat("abc", "/tint on", options=("--tint", "--max-tokens", 8))
    assert ended.out.splitlines() == chat.expected("abc")
    assert ended.err.count("tokens cannot be tinted here") == 2


def test_a_model_without_a_template(chat: Chat, tmp_path: Path) -> None:
    chat._bundle = write_bundle(tmp_path / "plain")
    assert chat("abc").err == "error: plain has no chat template: leave out --chat, and give --prompt\n"


def test_a_template_that_takes_no_system_prompt_says_so_when_it_is_set(chat: Chat, tmp_path: Path) -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}" + TEMPLATE
    chat._bundle = write_bundle(tmp_path / "refusing", refusing)
    ended = chat("/system be brief", "abc", options=("--max-tokens", 8))
    assert (ended.code, ended.out.splitlines()) == (1, chat.expected("abc"))
    assert ended.err.splitlines()[0] == "error: the model's chat template refuses these messages: no system here"


def test_wrong_commands_and_wrong_bytes_do_not_end_it(chat: Chat) -> None:
    ended = chat("/temperature hot", "/what", b"ab\xff", "/retry", "/stats", "abc", options=("--max-tokens", 8))
    assert (ended.code, ended.out.splitlines()) == (1, chat.expected("abc"))
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert [error.split()[1] for error in errors] == ["/temperature", "there", "the", "there", "there"]
    assert "not valid Unicode" in errors[2]


# With a hub.


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer begins when its session at the hub is open, so that all of it goes there."""
    open_channel = HubLink.open_channel

    def and_wait(link: HubLink, prompt: Sequence[int], sampling_kind: str) -> HubChannel:
        channel = open_channel(link, prompt, sampling_kind)
        with link._changed:
            assert link._changed.wait_for(lambda: channel._session.is_open, 20)
        return channel

    monkeypatch.setattr(HubLink, "open_channel", and_wait)


def with_hub(hub: ScriptedHub) -> tuple[object, ...]:
    return ("--max-tokens", 8, "--hub", hub.url, "--require-hub", "--draft-wait", 60)


def half_right(engine: PrefixEngine) -> Callable[[Asked], list[bytes]]:
    return lambda asked: [asked.draft(DraftTree.chain([int(engine.prefix_logits(asked.text).argmax()), 1]))]


@pytest.mark.usefixtures("settled")
def test_the_hub_is_told_only_what_is_new(chat: Chat, engine: PrefixEngine) -> None:
    with ScriptedHub(half_right(engine)) as hub:
        ended = chat("abcdefgh", "ij", "/stats", "kl", "/reset", "mn", options=with_hub(hub))
    said = chat.expected("abcdefgh", "ij", "kl")
    assert ended.out.splitlines() == [*said, *chat.expected("mn")]
    assert "there, drafts with scripted" in ended.err
    assert re.search(r"RTT +\d", ended.err)
    first, second = hub.sessions.values()
    assert letters().decode(first.text).startswith(f"uabcdefgha{said[0]}uija{said[1]}ukla")
    assert letters().decode(second.text).startswith("umna")
    assert (first.closed, hub.rows_in_order) == (True, True)


@pytest.mark.usefixtures("settled")
def test_the_hub_may_free_the_session_when_the_chat_is_over(chat: Chat, engine: PrefixEngine) -> None:
    with ScriptedHub(half_right(engine)) as hub:
        chat("abc", "de", options=with_hub(hub))
        (session,) = hub.sessions.values()
        end = time.monotonic() + 20
        while not session.closed:
            assert time.monotonic() < end
            time.sleep(0.005)


@pytest.mark.usefixtures("settled")
def test_another_temperature_is_another_session(chat: Chat, engine: PrefixEngine) -> None:
    with ScriptedHub(half_right(engine)) as hub:
        chat("abc", "/temperature 1", "de", options=with_hub(hub))
        assert [message.sampling_kind for message in hub.opens] == ["greedy", "sampled"]


# Ctrl-C where nobody sits at a terminal.


def test_an_interrupt_ends_the_answer_and_the_script(chat: Chat, engine: PrefixEngine) -> None:
    forward = engine.forward

    def interrupted(*arguments: Any, **named: Any) -> Any:
        if len(engine.forward_sizes) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return forward(*arguments, **named)

    engine.forward = interrupted  # type: ignore[method-assign]
    before = signal.getsignal(signal.SIGINT)
    ended = chat("abc", "de", options=("--no-speculation",))
    assert (ended.code, ended.out) == (130, chat.expected("abc", max_tokens=5)[0] + "\n")
    assert ended.err == "[stopped]\n"
    assert signal.getsignal(signal.SIGINT) == before
