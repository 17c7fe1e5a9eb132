"""Text and lines about it, on one terminal and on two files."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from starsd_edge.cli.streams import TextStreams, shows_panels, takes_colour


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def test_a_line_in_the_middle_of_a_text_stands_alone() -> None:
    terminal = Terminal()
    streams = TextStreams(terminal, terminal)
    streams.write("half")
    streams.say("the hub is away")
    streams.write(" done\n")
    streams.say("end")
    assert terminal.getvalue() == "half\nthe hub is away\n done\nend\n"


def test_a_line_appears_above_an_empty_prompt_and_waits_for_what_is_typed() -> None:
    terminal = Terminal()
    streams = TextStreams(terminal, terminal)
    typed = ""
    with streams.asking("> ", lambda: typed):
        terminal.write("> ")
        streams.say("the hub is away")
        typed = "hel"
        terminal.write("hel")
        streams.say("the hub is back")
        terminal.write("lo\n")
    streams.say("after")
    assert terminal.getvalue() == "> \r\x1b[Kthe hub is away\n> hello\nthe hub is back\nafter\n"


def test_a_line_waits_where_nobody_knows_what_is_typed() -> None:
    terminal = Terminal()
    streams = TextStreams(terminal, terminal)
    with streams.asking("> ", None):
        terminal.write("> ")
        streams.say("the hub is away")
        terminal.write("hello\n")
    assert terminal.getvalue() == "> hello\nthe hub is away\n"


def test_a_line_to_a_file_disturbs_no_prompt() -> None:
    terminal, file = Terminal(), io.StringIO()
    streams = TextStreams(terminal, file)
    with streams.asking("> ", lambda: "typed"):
        streams.say("the hub is away")
    assert (terminal.getvalue(), file.getvalue()) == ("", "the hub is away\n")


def test_colour_surrounds_the_words_and_their_control_characters_stay_harmless() -> None:
    terminal = Terminal()
    TextStreams(terminal, terminal).write("a\x1b[2J", "\x1b[36m")
    assert terminal.getvalue() == "\x1b[36ma\\x1b[2J\x1b[0m"


def test_a_table_is_a_line_each_in_a_file() -> None:
    file = io.StringIO()
    TextStreams(io.StringIO(), file).table([("a", "x" * 100), ("long", "[b] y")])
    assert file.getvalue() == f"  a     {'x' * 100}\n  long  [b] y\n"


def test_colours_need_a_terminal_and_no_no_color(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert takes_colour(Terminal())
    assert not takes_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not takes_colour(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not takes_colour(Terminal())


@pytest.mark.parametrize(("term", "draws"), [("xterm", True), ("dumb", False), ("unknown", False), ("", False)])
def test_panels_are_for_terminals_that_move_their_cursor(
    monkeypatch: pytest.MonkeyPatch, term: str, draws: bool
) -> None:
    monkeypatch.setenv("TERM", term)
    assert shows_panels(Console(force_terminal=True)) is draws
    assert not shows_panels(Console(force_terminal=False))
