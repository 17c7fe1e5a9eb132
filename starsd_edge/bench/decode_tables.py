"""The report of `bench decode` for people, in 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from starsd_edge.bench.decode_figures import PLAIN, figure_prefix
from starsd_edge.bench.figures import BenchReport, Figure

WIDTH = 80
"""Columns of the report, which fit every terminal."""
_DRAFT_ROWS = (
    ("tokens_per_round", 2),
    ("accepted_per_round", 2),
    ("draft_share", 2),
    ("hub_share", 2),
    ("bytes_up_per_round", 0),
    ("bytes_down_per_round", 0),
    ("round_ms_p50", 1),
    ("draft_ms_p50", 1),
    ("hub_added_ms_p50", 2),
    ("hub_added_ms_p99", 2),
    ("draft_link_ms", 2),
    ("rtt_ms", 2),
    ("min_rtt_ms", 2),
)
"""Rows of the table of drafts: names of figures, and the number of decimals that each is shown with."""


def decode_tables(report: BenchReport, titles: Mapping[str, str], committed: int) -> Iterator[RenderableType]:
    """Speeds of all modes, the verify curve, what drafting did.

    Args:
        titles: what people call each mode, in the order of the rows.
        committed: tokens in the KV when the verify curve was measured.
    """
    yield _speeds(report, titles)
    yield _verify_curve(report, committed)
    drafting = [mode for mode in titles if report.get(f"{figure_prefix(mode)}tokens_per_round")]
    if drafting:
        yield _drafts(report, titles, drafting)


def _speeds(report: BenchReport, titles: Mapping[str, str]) -> RenderableType:
    first = report[f"{PLAIN}_tokens_per_s"]
    samples = first.spread.samples if first.spread else 1
    title = f"{first.label}: decoding, median of {samples} {'run' if samples == 1 else 'runs'} (least to greatest)"
    table = _table("", "tokens/s", "x plain", "first token\nms", "prefill\ntokens/s")
    for mode, name in titles.items():
        speed, ttft = report[f"{mode}_tokens_per_s"], report[f"{mode}_ttft_ms"]
        ratio, prefill = report.get(f"{mode}_over_{PLAIN}"), report[f"{mode}_prefill_tokens_per_s"]
        table.add_row(
            name,
            _with_spread(speed, 1),
            "1" if ratio is None else _with_spread(ratio, 2),
            _with_spread(ttft, 0),
            f"{prefill.value:.0f}",
        )
    return _below(title, table)


def _verify_curve(report: BenchReport, committed: int) -> RenderableType:
    curve = [figure for figure in report.figures if figure.name.startswith("verify_ms_")]
    samples = curve[0].spread.samples if curve[0].spread else 1
    title = f"{curve[0].label}: verify pass over T rows on {committed} committed tokens, median of {samples} passes"
    table = _table("T", "ms", "x T=1")
    for figure in curve:
        rows = figure.name.removeprefix("verify_ms_")
        ratio = report.get(f"verify{rows}_over_verify1")
        table.add_row(rows, _with_spread(figure, 1), "1" if ratio is None else _with_spread(ratio, 2))
    return _below(title, table)


def _drafts(report: BenchReport, titles: Mapping[str, str], modes: list[str]) -> RenderableType:
    title = f"{report[f'{PLAIN}_tokens_per_s'].label}: what drafting did, over all rounds"
    table = _table("", *(titles[mode] for mode in modes))
    for name, digits in _DRAFT_ROWS:
        figures = [report.get(figure_prefix(mode) + name) for mode in modes]
        if any(figures):
            table.add_row(name, *("-" if figure is None else f"{figure.value:.{digits}f}" for figure in figures))
    levels = max(len(_survival(report, mode)) for mode in modes)
    for level in range(levels):
        shares = [_survival(report, mode)[level : level + 1] for mode in modes]
        table.add_row(f"survival_level_{level + 1}", *(f"{share[0].value:.2f}" if share else "-" for share in shares))
    return _below(title, table)


def _survival(report: BenchReport, mode: str) -> list[Figure]:
    return [figure for figure in report.figures if figure.name.startswith(f"{figure_prefix(mode)}survival_level_")]


def _with_spread(figure: Figure, digits: int) -> str:
    text = f"{figure.value:.{digits}f}"
    if figure.spread is None or figure.spread.samples == 1:
        return text
    return f"{text} ({figure.spread.low:.{digits}f}-{figure.spread.high:.{digits}f})"


def _table(first: str, *headings: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _below(title: str, table: Table) -> RenderableType:
    """A table below a separate title, which may be wider than the table."""
    return Group(Text(title, style="bold"), table)
