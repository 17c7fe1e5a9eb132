"""Keys, from bytes to what is shown; the screen is a list."""

from __future__ import annotations

import pytest
from rich.console import RenderableType

from starsd_edge.cli.monitor import SORTS
from starsd_edge.telemetry.feed import Snapshot
from starsd_edge.telemetry.hub_facts import HubFacts, TargetFacts
from starsd_edge.telemetry.monitor.board import ORDERS, ViewState
from starsd_edge.telemetry.monitor.feed_client import LIVE, FeedLink
from starsd_edge.telemetry.monitor.formats import UNICODE
from starsd_edge.telemetry.monitor.frame import Screen, parse_keys
from tests.support.monitor_frames import recorded, text_of


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"", []),
        (b"q", ["q"]),
        (b"jjk\r", ["j", "j", "k", "enter"]),
        (b"\x1b[A\x1b[B\x1bOA\x1bOB", ["up", "down", "up", "down"]),
        (b"\x1b", ["esc"]),
        (b"\x1b[15~\x1b[1;5Cs", ["s"]),  # F5 and ctrl-right are nobody's
        ("é?".encode(), ["?"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[F\x1bOH\x1bOF\x1b[1~\x1b[4~", ["page-up", "page-down"] + 3 * ["home", "end"]),
        (b"/a\x7f\x08", ["/", "a", "backspace", "backspace"]),
    ],
)
def test_keys_of_bytes(data: bytes, keys: list[str]) -> None:
    assert parse_keys(data) == keys


class Terminal:
    """A screen in front of nobody."""

    def __init__(self) -> None:
        self.width, self.height = 80, 24
        self.drawn: list[RenderableType] = []
        self.screen = Screen("hub", UNICODE, lambda: (self.width, self.height), self.drawn.append)

    def press(self, data: bytes) -> str:
        for key in parse_keys(data):
            self.screen.press(key)
        return self.text()

    def text(self) -> str:
        return text_of(self.drawn[-1], self.width, self.height)


@pytest.fixture
def terminal() -> Terminal:
    terminal = Terminal()
    terminal.screen.take(LIVE)
    for snapshot in recorded():
        terminal.screen.take(snapshot)
    return terminal


def test_everything_that_comes_is_drawn(terminal: Terminal) -> None:
    assert len(terminal.drawn) == 1 + len(recorded())
    assert "orin-hall" in terminal.text()


def test_arrows_choose_and_enter_shows_one_target(terminal: Terminal) -> None:
    assert "▸nano-1" in terminal.press(b"\x1b[B\x1b[B")
    detail = terminal.press(b"\r")
    assert "nano-1 ---" in detail
    assert "wait in the queue" in detail
    assert "▸nano-1" in terminal.press(b"\x1b")


def test_the_choice_follows_its_target_when_the_order_changes(terminal: Terminal) -> None:
    terminal.press(b"k")  # the last by name
    for _ in range(6):
        text = terminal.press(b"s")
        assert "▸thor" in text
    assert "sorted by name" in text


def test_pause_holds_the_picture_and_lets_it_go_on(terminal: Terminal) -> None:
    held = terminal.press(b"p")
    assert "paused" in held
    later = recorded()[-1].facts.uptime_s + 1
    terminal.screen.take(Snapshot(1, HubFacts(hub_id=recorded()[-1].facts.hub_id, uptime_s=later)))
    assert terminal.text() == held
    gone_on = terminal.press(b" ")
    assert "targets: 0" in gone_on
    assert "paused" not in gone_on


def test_help_comes_and_goes(terminal: Terminal) -> None:
    assert "why rounds go without the hub" in terminal.press(b"?")
    assert "why rounds go without the hub" not in terminal.press(b"h")


def test_q_leaves_and_unknown_keys_do_nothing(terminal: Terminal) -> None:
    before = terminal.text()
    assert terminal.press(b"x\x1b[15~") == before
    assert not terminal.screen.choice.quit
    terminal.press(b"q")
    assert terminal.screen.choice.quit


def test_keys_without_targets_are_harmless() -> None:
    terminal = Terminal()
    text = terminal.press(b"jkd\rsp?")
    assert "connecting" in text or "paused" in text


def test_a_target_that_leaves_while_shown_leaves_the_list_behind() -> None:
    terminal = Terminal()
    terminal.screen.take(Snapshot(1, HubFacts(hub_id="h", uptime_s=1, targets=[TargetFacts("orin", number=1)])))
    assert "orin ---" in terminal.press(b"d")
    terminal.screen.take(Snapshot(1, HubFacts(hub_id="h", uptime_s=2)))
    assert "targets: 0" in terminal.text()


def test_every_order_has_a_name_on_the_command_line() -> None:
    assert [name.lower().replace(" ", "-").removesuffix("/s") for name, _ in ORDERS] == list(SORTS)


def test_a_new_size_is_used_at_once(terminal: Terminal) -> None:
    terminal.width, terminal.height = 120, 40
    terminal.screen.draw()
    assert len(terminal.text().splitlines()) == 40


def test_a_lost_hub_is_said_while_the_last_picture_stays(terminal: Terminal) -> None:
    terminal.screen.take(FeedLink("no hub: Connection refused", is_live=False))
    assert "no hub: Connection refused" in terminal.text().splitlines()[0]
    assert "orin-hall" in terminal.text()


PAGE_DOWN, PAGE_UP, HOME, END = b"\x1b[6~", b"\x1b[5~", b"\x1b[H", b"\x1b[F"


def crowd(numbers: range) -> Snapshot:
    targets = [TargetFacts(f"orin-{number:02}", number=number, rtt_ms=float(number)) for number in numbers]
    return Snapshot(1, HubFacts(hub_id="h", uptime_s=1, targets=targets))


@pytest.fixture
def crowded() -> Terminal:
    """Fifty targets, of which 12 fit."""
    terminal = Terminal()
    terminal.screen.take(LIVE)
    terminal.screen.take(crowd(range(1, 51)))
    return terminal


def test_pages_go_through_all_targets_and_say_which_are_shown(crowded: Terminal) -> None:
    assert "1-12 of 50" in crowded.text()
    seen = {name for name in crowded.text().split() if name.startswith("orin-")}
    for _ in range(5):
        text = crowded.press(PAGE_DOWN)
        seen |= {name.removeprefix("▸") for name in text.split() if "orin-" in name}
    assert "39-50 of 50" in text
    assert "▸orin-50" in text
    assert len(seen) == 50, "none was left out between two pages"
    assert "1-12 of 50" in crowded.press(HOME)
    assert "39-50 of 50" in crowded.press(END)
    assert "▸orin-38" in crowded.press(PAGE_UP)


def test_targets_that_leave_take_nothing_of_the_page_with_them(crowded: Terminal) -> None:
    crowded.press(END)
    crowded.screen.take(crowd(range(1, 20)))
    assert " of 19" in crowded.text()
    assert "orin-01" in crowded.press(HOME)
    assert "orin-19" in crowded.press(END)


def test_a_filter_shows_what_has_these_letters(crowded: Terminal) -> None:
    assert "filter: orin-4_" in crowded.press(b"/ORIN-4".lower())
    text = crowded.press(b"\r")
    assert "10 of 50" in text
    assert "only 'orin-4'" in text
    assert "orin-40" in text
    assert "orin-39" not in text
    assert "q quit" in text
    assert "filter: orin-_" in crowded.press(b"/\x7f")
    assert "targets: 50" in crowded.press(b"\x1b") or "1-12 of 50" in crowded.text()
    assert "0 of 50" in crowded.press(b"/qqq\r")
    assert "1-12 of 50" in crowded.press(b"\x1b"), "esc shows all again"
    assert not crowded.screen.choice.quit, "letters of a filter are no commands"


def test_a_filter_from_the_command_line_and_the_order_before(crowded: Terminal) -> None:
    crowded.screen.choice = ViewState(wanted="orin-1", sort=1)
    assert "10 of 50" in crowded.press(b"x")
    lines = [line for line in crowded.text().splitlines() if "orin-1" in line]
    assert lines[0].split()[0] == "orin-19", "the longest round trip first"
    assert "sorted by name" in crowded.press(b"S")
