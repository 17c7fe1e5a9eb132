"""How the demo shows answers and hub at once: panels on a terminal, prefixed lines elsewhere; then the figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from starsd_edge.cli.demo.star import DemoTargetResult, View
from starsd_edge.cli.streams import printable
from starsd_edge.telemetry.monitor.board import StarBoard
from starsd_edge.telemetry.monitor.feed_client import FeedLink
from starsd_edge.telemetry.monitor.formats import acceptance_lines, heading, marks_for
from starsd_edge.telemetry.monitor.frame import CONNECTING, Sight, figure_lines, pane, strip

_PANEL_ROWS = 18
_LEAST_PANEL_ROWS = 5
_PANEL_FRAME = 4  # columns of a panel's border and padding
_BESIDE = 120  # columns from which the hub stands beside the answers and not below them
_GAP = 2  # columns between answers and hub
_LEAST_BESIDE_ROWS = 24  # where few panels leave the hub more room than they take
_SUMMARY_WIDTH = 80
_REDRAWS_PER_S = 8.0
_LINE_WIDTH = 66  # with the target's name in front it fits 80 columns
_HEADINGS = (
    "tokens",
    "tokens/s",
    "accepted_\nper_round",
    "tokens_\nper_round",
    "RTT\nms",
    "bytes up\nper round",
    "bytes down\nper round",
)


def view_console(stream: TextIO) -> Console:
    """Where the demo writes."""
    return Console(file=stream, highlight=False)


class PlainView(View):
    """Whole lines, each with its target's name in front, in the order in which they become whole."""

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        self._console = console
        self._names = names
        self._pending = [""] * len(names)

    def piece(self, target: int, text: str) -> None:
        """Print what makes a whole line."""
        *whole, rest = (self._pending[target] + text).split("\n")
        for line in whole:
            self._print(target, line)
        while len(rest) > _LINE_WIDTH and " " in rest[:_LINE_WIDTH]:
            cut = rest.rindex(" ", 0, _LINE_WIDTH)
            self._print(target, rest[:cut])
            rest = rest[cut + 1 :]
        self._pending[target] = rest

    def end(self, target: int, result: DemoTargetResult) -> None:
        """Print the rest, and how it ended."""
        self._print(target, self._pending[target])
        self._pending[target] = ""
        self._print(target, f"-- {_ending(result)}")

    def _print(self, target: int, line: str) -> None:
        if line.strip():
            self._console.print(f"[{self._names[target]}] {printable(line)}", markup=False, soft_wrap=True)


class LiveView(View):
    """One panel per target, each with the end of its answer, and the hub: beside them where there is room, else below.

    Drawn anew a few times a second, however fast the text comes.
    """

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        self._console = console
        self._names = names
        self._texts = [""] * len(names)
        self._endings = ["..."] * len(names)
        self._board = StarBoard()
        self._link = CONNECTING
        self._live = Live(
            console=console,
            get_renderable=self.picture,
            refresh_per_second=_REDRAWS_PER_S,
            vertical_overflow="crop",
        )

    def __enter__(self) -> LiveView:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def piece(self, target: int, text: str) -> None:
        """Show it."""
        self._texts[target] += printable(text)

    def end(self, target: int, result: DemoTargetResult) -> None:
        """Show how it ended below its panel."""
        self._endings[target] = "failed" if result.failure else f"{result.figures['tokens_per_s']:.1f} tokens/s"

    def hub(self, news: StarBoard | FeedLink) -> None:
        """Show it."""
        if isinstance(news, FeedLink):
            self._link = news
        else:
            self._board = news

    def picture(self) -> RenderableType:
        """All of it at the size that the terminal has now, a line less so that it scrolls nothing away."""
        width, height = self._console.width, self._console.height - 1
        rows = min(height, max(_LEAST_BESIDE_ROWS, _PANEL_ROWS * len(self._names))) // len(self._names)
        if width >= _BESIDE and rows >= _LEAST_PANEL_ROWS:
            return self._beside(width, rows)
        return self._below(width, height)

    def _beside(self, width: int, rows: int) -> RenderableType:
        """Panels of so many rows one below the other on the left, the monitor on the right."""
        left = width * 2 // 5
        right = width - _GAP - left
        panels = Group(*(self._panel(target, left, rows) for target in range(len(self._names))))
        grid = Table.grid(padding=(0, _GAP, 0, 0))
        grid.add_column(width=left)
        grid.add_column(width=right)
        grid.add_row(panels, pane(self._board, self._sight(right, rows * len(self._names))))
        return grid

    def _below(self, width: int, height: int) -> RenderableType:
        """Panels side by side, the hub's strip below them."""
        strip_rows = 2 + len(self._names)
        rows = max(_LEAST_PANEL_ROWS, min(_PANEL_ROWS, height - strip_rows))
        columns = width // len(self._names)
        grid = Table.grid(expand=True)
        for _ in self._names:
            grid.add_column(ratio=1)
        grid.add_row(*(self._panel(target, columns, rows) for target in range(len(self._names))))
        return Group(grid, strip(self._board, self._sight(width, strip_rows)))

    def _panel(self, target: int, width: int, rows: int) -> Panel:
        lines = Text(self._texts[target]).wrap(self._console, max(8, width - _PANEL_FRAME))
        tail = Text("\n").join(lines[-(rows - 2) :])
        return Panel(tail, title=self._names[target], subtitle=self._endings[target], height=rows)

    def _sight(self, width: int, height: int) -> Sight:
        return Sight(width, height, marks_for(self._console.encoding), "the hub", self._link.text, self._link.is_live)


def hub_summary(board: StarBoard, console: Console) -> RenderableType:
    """What the hub did, from the beginning to the end."""
    width = min(console.width, _SUMMARY_WIDTH)
    marks = marks_for(console.encoding)
    lines = [heading("the hub", width), *figure_lines(board.hub, width, marks)]
    lines.append(heading("acceptance by level", width))
    return Group(*lines, *acceptance_lines(board.hub.acceptance, width, marks))


def summary(names: Sequence[str], results: Sequence[DemoTargetResult]) -> Table:
    """The figures of every target that answered, and of all together."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for title in _HEADINGS:
        table.add_column(title, justify="right")
    for name, result in zip(names, results, strict=True):
        table.add_row(name, *(_row(result) if result.figures else ["failed"]))
    answered = [result for result in results if result.figures]
    if answered:
        table.add_section()
        table.add_row("together", *_together(answered))
    return table


def _row(result: DemoTargetResult) -> list[str]:
    figures = result.figures
    rtt = figures["rtt_ms"]
    return [
        f"{figures['tokens']}",
        f"{figures['tokens_per_s']:.1f}",
        f"{figures['accepted_per_round']:.2f}",
        f"{figures['tokens_per_round']:.2f}",
        "-" if rtt is None else f"{rtt:.2f}",
        f"{figures['bytes_up_per_round']:.0f}",
        f"{figures['bytes_down_per_round']:.0f}",
    ]


def _together(results: Sequence[DemoTargetResult]) -> list[str]:
    """The sum of the tokens, their rate between the first text and the last end, and the rest weighted by rounds.

    As everywhere, a rate leaves out the first token of each answer, which belongs to the prefill.
    """
    tokens = sum(result.figures["tokens"] for result in results)
    seconds = max(result.finished_s for result in results) - min(result.first_s for result in results)
    rounds = [int(result.figures["rounds"]) for result in results]

    def per_round(name: str) -> float:
        total = sum(float(result.figures[name]) * count for result, count in zip(results, rounds, strict=True))
        return total / max(1, sum(rounds))

    rtts = [result.figures["rtt_ms"] for result in results if result.figures["rtt_ms"] is not None]
    return [
        f"{tokens}",
        f"{(tokens - len(results)) / seconds:.1f}" if seconds > 0 else "-",
        f"{per_round('accepted_per_round'):.2f}",
        f"{per_round('tokens_per_round'):.2f}",
        f"{sum(rtts) / len(rtts):.2f}" if rtts else "-",
        f"{per_round('bytes_up_per_round'):.0f}",
        f"{per_round('bytes_down_per_round'):.0f}",
    ]


def _ending(result: DemoTargetResult) -> str:
    if result.failure:
        return f"failed: {result.failure}"
    return f"{result.figures['tokens']} tokens, {result.figures['tokens_per_s']:.1f} tokens/s"
