"""How the demo shows several answers at once: panels on a terminal, prefixed lines elsewhere; then a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from starsd_edge.cli.demo_star import TargetResult
from starsd_edge.cli.text_streams import printable

_PANEL_ROWS = 18
_PANEL_FRAME = 4  # columns of a panel's border and padding
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


class PlainView:
    """Whole lines, each with its target's name in front, in the order in which they become whole."""

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        self._console = console
        self._names = names
        self._pending = [""] * len(names)

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to put back."""

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

    def end(self, target: int, result: TargetResult) -> None:
        """Print the rest, and how it ended."""
        self._print(target, self._pending[target])
        self._pending[target] = ""
        self._print(target, f"-- {_ending(result)}")

    def _print(self, target: int, line: str) -> None:
        if line.strip():
            self._console.print(f"[{self._names[target]}] {printable(line)}", markup=False, soft_wrap=True)


class LiveView:
    """One panel per target, redrawn as the text comes; each shows the end of its answer."""

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        self._console = console
        self._names = names
        self._texts = [""] * len(names)
        self._endings = ["..."] * len(names)
        self._live = Live(console=console, auto_refresh=False, transient=False, vertical_overflow="crop")

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def piece(self, target: int, text: str) -> None:
        """Show it."""
        self._texts[target] += printable(text)
        self._draw()

    def end(self, target: int, result: TargetResult) -> None:
        """Show how it ended below its panel."""
        self._endings[target] = "failed" if result.failure else f"{result.figures['tokens_per_s']:.1f} tokens/s"
        self._draw()

    def _draw(self) -> None:
        row = Table.grid(expand=True)
        for _ in self._names:
            row.add_column(ratio=1)
        width = self._console.width // len(self._names) - _PANEL_FRAME
        row.add_row(*(self._panel(target, max(8, width)) for target in range(len(self._names))))
        self._live.update(row, refresh=True)

    def _panel(self, target: int, width: int) -> Panel:
        lines = Text(self._texts[target]).wrap(self._console, width)
        tail = Text("\n").join(lines[-(_PANEL_ROWS - 2) :])
        return Panel(tail, title=self._names[target], subtitle=self._endings[target], height=_PANEL_ROWS)


def summary(names: Sequence[str], results: Sequence[TargetResult]) -> Table:
    """The figures of every target that answered, and of all together."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right")
    for name, result in zip(names, results, strict=True):
        table.add_row(name, *(_row(result) if result.figures else ["failed"]))
    answered = [result for result in results if result.figures]
    if answered:
        table.add_section()
        table.add_row("together", *_together(answered))
    return table


def _row(result: TargetResult) -> list[str]:
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


def _together(results: Sequence[TargetResult]) -> list[str]:
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


def _ending(result: TargetResult) -> str:
    if result.failure:
        return f"failed: {result.failure}"
    return f"{result.figures['tokens']} tokens, {result.figures['tokens_per_s']:.1f} tokens/s"
