"""`starsd-edge run-target --chat` as a person has it: a terminal, keys, colours, Ctrl-C."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftTree
from tests.support.decoding import EOS, letters, next_token, plain_answer, request
from tests.support.draft_sources import future
from tests.support.letter_bundle import write_bundle
from tests.support.prefix_engine import PrefixEngine
from tests.support.scripted_hub import Asked, ScriptedHub
from tests.support.terminal import Terminal

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}a"
CYAN, YELLOW, PLAIN = "\x1b[36m", "\x1b[33m", "\x1b[0m"
ENGINE = PrefixEngine(1)
Start = Callable[..., Terminal]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Begins a chat whose answers are 8 letters, and waits for its first prompt."""
    bundle = write_bundle(tmp_path / "bundle", TEMPLATE)
    started: list[Terminal] = []

    def begin(*options: object, **environment: str) -> Terminal:
        usual = ("run-target", bundle, "--chat", "--max-tokens", 8, "--logit-bias", f"{EOS}=-inf")
        started.append(Terminal(*usual, *options, module="tests.support.letter_program", **environment))
        return started[-1]

    yield begin
    for terminal in started:
        terminal.process.kill()


def expected(text: str) -> str:
    """What follows this text, by its letters."""
    return plain_answer(ENGINE, letters([]), request(prompt=tuple(letters().encode(text)), max_tokens=8)).text


def next_letter(text: Sequence[int]) -> int:
    return next_token(ENGINE, SamplingParams(logit_bias=((EOS, -float("inf")),)), text)


def asks(shown: str) -> bool:
    """Whether the chat waits for a line."""
    return without_colour(shown).endswith("> ")


def without_colour(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).replace("\r", "")


def enter(terminal: Terminal, line: str) -> str:
    """Type a line; what is shown until the next prompt."""
    terminal.press(line.encode() + b"\r")
    return without_colour(terminal.until(asks))


def leave(terminal: Terminal) -> None:
    terminal.press(b"/quit\r")
    assert terminal.end() == 0


def test_talking_and_leaving(start: Start) -> None:
    terminal = start()
    greeting = without_colour(terminal.until(asks))
    assert "bundle, 1000000 tokens of context" in greeting
    assert "/help lists the commands; Ctrl-C ends an answer, Ctrl-D the chat" in greeting
    first = expected("uabca")
    assert f"\n{first}\n" in enter(terminal, "abc")
    assert f"\n{expected(f'uabca{first}udea')}\n" in enter(terminal, "de")
    terminal.press(b"\x04")
    assert terminal.end() == 0


def test_words_that_leave_other_programs(start: Start) -> None:
    terminal = start()
    terminal.until(asks)
    assert '\n/quit leaves; """exit""" says it to the model\n' in enter(terminal, "exit")
    assert '\n/help lists the commands; """help""" says it to the model\n' in enter(terminal, "help")
    assert f"\n{expected('uexita')}\n" in enter(terminal, '"""exit"""'), "nothing before it was said to the model"
    terminal.press(b"/bye\r")
    assert terminal.end() == 0


def test_everything_fits_eighty_columns(start: Start) -> None:
    terminal = start()
    shown = without_colour(terminal.until(asks))
    for line in ("/help", "/settings", "abc", "/stats", "/history", "/system", "/seed", "/what"):
        shown += enter(terminal, line)
    assert max(map(len, shown.splitlines())) <= 80
    leave(terminal)


def test_ctrl_c_ends_an_answer_and_the_chat_goes_on(start: Start) -> None:
    terminal = start("--max-tokens", 10**6)
    terminal.until(asks)
    terminal.press(b"abc\r")
    terminal.until(lambda shown: len(shown) > 200)
    terminal.press(b"\x03\x03")
    assert "\n[stopped]\n" in without_colour(terminal.until(asks))
    assert "max-tokens: 8" in enter(terminal, "/max-tokens 8")
    history = enter(terminal, "/history")
    said = re.search(r"> abc\n(\w+) \[stopped\]", history)
    assert said
    assert len(said[1]) > 150
    assert expected(f"uabca{said[1]}udea") in enter(terminal, "de")
    leave(terminal)


def test_ctrl_c_drops_a_line_and_pressed_again_leaves(start: Start) -> None:
    terminal = start()
    terminal.until(asks)
    terminal.press(b"never said")
    terminal.until(lambda shown: "never said" in shown)
    terminal.interrupt()
    assert "Ctrl-C again leaves, as do Ctrl-D and /quit" in terminal.until(asks)
    assert f"\n{expected('uabca')}\n" in enter(terminal, "abc")
    terminal.interrupt()
    terminal.until(asks)
    terminal.interrupt()
    assert terminal.end() == 0


def test_ctrl_c_after_something_was_typed_only_drops_that(start: Start) -> None:
    """However often it is pressed: the next press counts as the first of two."""
    terminal = start()
    terminal.until(asks)
    first = expected("uabca")
    assert f"\n{first}\n" in enter(terminal, "abc")
    terminal.interrupt()
    assert "Ctrl-C again leaves" in terminal.until(asks)
    for typed in (b"never said", b"\x1b[A", b'"""ab\r', b'"""\r', b'"""ab\rcd'):  # a line, one recalled, fences
        terminal.press(typed)
        last = {b"\x1b[A": "abc", b'"""\r': "... ", b'"""ab\r': "... "}.get(typed, typed.decode().rpartition("\r")[2])
        terminal.until(lambda shown, last=last: without_colour(shown).endswith(last))
        terminal.interrupt()
        assert "Ctrl-C again leaves" in terminal.until(asks), typed
    assert "answers of this chat: 1" in enter(terminal, "/stats"), "the chat is still there"
    terminal.interrupt()
    terminal.until(asks)
    assert f"\n{expected(f'uabca{first}udea')}\n" in enter(terminal, "de"), "and goes on"
    terminal.interrupt()
    terminal.until(asks)
    terminal.interrupt()
    assert terminal.end() == 0


def test_keys_edit_recall_and_complete(start: Start) -> None:
    terminal = start()
    terminal.until(asks)
    first = expected("uabca")
    assert f"\n{first}\n" in enter(terminal, "wrong\x15bc\x01a"), "kill the line; go to its beginning"
    assert f"\n{expected(f'uabca{first}uabca')}\n" in enter(terminal, "\x1b[A")
    assert "top-k: 0" in enter(terminal, "/top-k\t")
    assert "nothing has been said" in enter(terminal, "/res\t")
    leave(terminal)


def test_lines_between_quotes_are_asked_for_one_by_one(start: Start) -> None:
    terminal = start()
    terminal.until(asks)
    terminal.press(b'"""ab\r')
    assert without_colour(terminal.until(lambda shown: "... " in shown)).endswith("... ")
    assert f"\n{expected('uabcda')}\n" in enter(terminal, 'cd"""')
    leave(terminal)


def test_lines_pasted_at_once_are_one_message(start: Start) -> None:
    terminal = start()
    terminal.until(asks)
    assert f"\n{expected('uabcda')}\n" in enter(terminal, "\x1b[200~ab\ncd\x1b[201~")
    leave(terminal)


def test_what_is_typed_during_an_answer_waits_for_the_next_line(start: Start) -> None:
    terminal = start("--max-tokens", 3000)
    terminal.until(asks)
    terminal.press(b"abc\r")
    terminal.until(lambda shown: len(shown) > 200)
    terminal.press(b"/temperature\r")
    rest = without_colour(terminal.until(lambda shown: "temperature: 0.0" in shown))
    answer, _, after = rest.partition("[cut off")
    assert "/" not in answer
    assert "> /temperature\n" in after
    leave(terminal)


def test_a_terminal_is_left_as_it_was_when_the_chat_is_killed(start: Start) -> None:
    waiting, answering = start(), start("--max-tokens", 10**6)
    waiting.until(asks)
    answering.until(asks)
    answering.press(b"abc\r")
    answering.until(lambda shown: len(shown) > 200)
    for terminal in (waiting, answering):
        terminal.process.terminate()
        assert terminal.end() == 143


# Colours.


def test_tokens_are_tinted_by_what_guessed_them(start: Start) -> None:
    """Once the hub's session is open, a round is two guesses of the hub and a token of the target's own; the last token
    leaves no room for guesses.
    """

    def script(asked: Asked) -> list[bytes]:
        return [asked.draft(DraftTree.chain(future(next_letter, asked.text, asked.request.max_depth)))]

    with ScriptedHub(script) as hub:
        terminal = start("--tint", "--hub", hub.url, "--draft-wait", 60, "--draft-depth", 2, NO_COLOR="")
        terminal.until(asks)
        said = ""
        while not hub.requests:
            said += "uabca"
            said += expected(said)
            assert said[-8:] in enter(terminal, "abc")
        text = expected(f"{said}udea")
        terminal.press(b"de\r")
        shown = terminal.until(lambda shown: asks(shown) and text in without_colour(shown))
        own, guessed = text, [f"{CYAN}{letter}{PLAIN}" for letter in text]
        wanted = [own[0], guessed[1], guessed[2], own[3], guessed[4], guessed[5], own[6], own[7]]
        assert "".join(wanted) in shown
        enter(terminal, "/tint off")
        terminal.press(b"/retry\r")
        assert CYAN not in terminal.until(lambda shown: asks(shown) and text in shown)
        leave(terminal)


def test_the_legend_is_in_its_own_colours_and_no_color_is_respected(start: Start) -> None:
    terminal = start("--tint", NO_COLOR="")
    legend = f"{CYAN}drafted by the hub{PLAIN}, {YELLOW}by local n-grams{PLAIN}, the rest by the target itself"
    assert legend in terminal.until(asks)
    terminal.press(b"/max-tokens 100\rabc\r")
    assert YELLOW in terminal.until(lambda shown: "[cut off" in shown)
    assert "tokens cannot be tinted here" in start("--tint", NO_COLOR="1").until(asks)


# The hub.


def test_a_hub_that_goes_does_not_garble_what_is_typed(start: Start) -> None:
    hub = ScriptedHub()
    terminal = start("--hub", hub.url)
    terminal.until(asks)
    hub.stop()
    lost = terminal.until(lambda shown: "was lost" in shown and asks(shown))
    assert lost.lstrip("\r").startswith("\x1b[K")
    terminal.press(b"abc")
    typed = terminal.until(lambda shown: "abc" in shown)
    with ScriptedHub(port=hub.port, hub_id="second") as second:
        while not second.hellos:
            terminal.press(b"d\x7f")
            typed += terminal.until(lambda shown: "d" in shown)
        terminal.press(b"\r")
        shown = without_colour(terminal.until(lambda shown: "the hub is back" in shown and "[cut off" in shown))
    assert "hub" not in typed
    notice = r"\n?(> )?the hub is back after a restart and drafts with scripted\n"
    assert expected("uabca") in re.sub(notice, "", shown.removeprefix("\n"))
