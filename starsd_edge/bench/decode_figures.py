"""The figures of `bench decode`, computed from its runs, and its report for people in 80 columns."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from starsd_edge.bench.figures import BenchReport, Figure, percentile
from starsd_edge.bench.runs import Run, Runs
from starsd_edge.telemetry.rounds import HUB, Round, RoundStats
from starsd_edge.telemetry.summary import LinkFigures

PLAIN = "plain"
NGRAM = "ngram"
SPECULATIVE = "speculative"
"""Name of the mode through a hub with the first drafter asked for; modes of further drafters are named
`speculative_<drafter>`.
"""
TRANSFORMERS = "transformers"
LLAMA_CPP = "llama_cpp"


@dataclass(frozen=True)
class DecodeTimes:
    """What `bench decode` measured.

    Attributes:
        runs: runs by mode; `PLAIN` is always among the modes.
        prompt_tokens: tokens of every prompt.
        verify_s: seconds of verify passes by their number of rows.
        links: for modes through a hub, what the link had seen at the end.
    """

    runs: Runs
    prompt_tokens: int
    verify_s: Mapping[int, Sequence[float]]
    links: Mapping[str, LinkFigures] = field(default_factory=dict)


def decode_figures(measured: DecodeTimes, label: str) -> list[Figure]:
    """Every figure, the ratios among modes included: medians over the runs, a ratio being taken run by run."""
    return [
        *_speeds(measured, label),
        *_ratios(measured.runs, label),
        *verify_curve_figures(measured.verify_s, label),
        *_own_time(measured.runs[PLAIN], label),
        *(
            figure
            for mode, runs in measured.runs.items()
            if mode == NGRAM or mode.startswith(SPECULATIVE)
            for figure in _speculation(mode, runs, measured.links.get(mode), label)
        ),
    ]


def _speeds(measured: DecodeTimes, label: str) -> Iterator[Figure]:
    for mode, runs in measured.runs.items():
        yield Figure.median(f"{mode}_tokens_per_s", [run.tokens_per_s for run in runs], "tokens/s", label)
        yield Figure.median(f"{mode}_ttft_ms", [1e3 * run.first_s for run in runs], "ms", label)
        rates = [measured.prompt_tokens / run.first_s for run in runs]
        yield Figure.median(f"{mode}_prefill_tokens_per_s", rates, "tokens/s", label)
    yield Figure.median("ttft_ms", [1e3 * run.first_s for run in measured.runs[PLAIN]], "ms", label)


def _ratios(runs: Runs, label: str) -> Iterator[Figure]:
    pairs = [(mode, PLAIN) for mode in runs if mode != PLAIN]
    pairs += [(mode, rival) for rival in (TRANSFORMERS, LLAMA_CPP) if rival in runs for mode in (PLAIN, SPECULATIVE)]
    for one, other in pairs:
        if one in runs:
            ratios = [a.tokens_per_s / b.tokens_per_s for a, b in zip(runs[one], runs[other], strict=True)]
            yield Figure.median(f"{one}_over_{other}", ratios, "", label)


def verify_curve_figures(verify_s: Mapping[int, Sequence[float]], label: str, suffix: str = "") -> Iterator[Figure]:
    """Of the seconds of verify passes by their number of rows; the names of the figures end with `suffix`."""
    for rows, seconds in verify_s.items():
        yield Figure.median(f"verify_ms_{rows}{suffix}", [1e3 * each for each in seconds], "ms", label)
    for rows, seconds in verify_s.items():
        if rows > 1:
            ratios = [many / one for many, one in zip(seconds, verify_s[1], strict=True)]
            yield Figure.median(f"verify{rows}_over_verify1{suffix}", ratios, "", label)


def _own_time(runs: Sequence[Run], label: str) -> Iterator[Figure]:
    """What a plain round costs beside the model's pass: choosing, text, committing."""
    own = [1e3 * (done.round_s - done.verify_s) for run in runs for done in run.rounds]
    if own:
        yield Figure("plain_own_ms_p50", statistics.median(own), "ms", label)


def _speculation(mode: str, runs: Sequence[Run], link: LinkFigures | None, label: str) -> Iterator[Figure]:
    prefix = figure_prefix(mode)
    stats = RoundStats()
    for run in runs:
        for done in run.rounds:
            stats.add(done)
    yield Figure(f"{prefix}tokens_per_round", stats.tokens_per_round, "tokens", label)
    yield Figure(f"{prefix}accepted_per_round", stats.accepted_per_round, "tokens", label)
    for level, share in enumerate(stats.survival, 1):
        yield Figure(f"{prefix}survival_level_{level}", share, "", label)
    yield Figure(f"{prefix}draft_share", stats.draft_share, "", label)
    if link is None:
        return
    yield Figure(f"{prefix}hub_share", stats.by_origin.get(HUB, 0) / stats.rounds, "", label)
    yield Figure(f"{prefix}bytes_up_per_round", stats.bytes_up_per_round, "B", label)
    yield Figure(f"{prefix}bytes_down_per_round", stats.bytes_down_per_round, "B", label)
    yield from _hub_times(prefix, hub_rounds(runs), label)
    if link.tcp is not None:
        yield Figure(f"{prefix}rtt_ms", 1e3 * link.tcp.rtt_s, "ms", label)
        yield Figure(f"{prefix}min_rtt_ms", 1e3 * link.tcp.min_rtt_s, "ms", label)
    if link.link_s:
        yield Figure(f"{prefix}draft_link_ms", 1e3 * link.link_s, "ms", label)


def _hub_times(prefix: str, rounds: Sequence[Round], label: str) -> Iterator[Figure]:
    if rounds:
        yield Figure(f"{prefix}draft_ms_p50", 1e3 * statistics.median(done.draft_s for done in rounds), "ms", label)
        yield Figure(f"{prefix}round_ms_p50", 1e3 * statistics.median(done.round_s for done in rounds), "ms", label)
        added = [1e3 * (done.round_s - done.draft_s - done.verify_s) for done in rounds]
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            yield Figure(f"{prefix}hub_added_ms_{name}", percentile(added, share), "ms", label)


def hub_rounds(runs: Sequence[Run]) -> list[Round]:
    """Rounds with a hub's draft that came in its own round, without the first of each answer: that one also waits for
    the hub's own prefill.
    """
    return [done for run in runs for done in run.rounds[1:] if done.origin == HUB and not done.late]


def figure_prefix(mode: str) -> str:
    """The prefix of the names of a mode's figures about drafts; empty for `SPECULATIVE`."""
    return "" if mode == SPECULATIVE else f"{mode}_"


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
    yield _speed_table(report, titles)
    yield _verify_table(report, committed)
    drafting = [mode for mode in titles if report.get(f"{figure_prefix(mode)}tokens_per_round")]
    if drafting:
        yield _drafts(report, titles, drafting)


def _speed_table(report: BenchReport, titles: Mapping[str, str]) -> RenderableType:
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


def _verify_table(report: BenchReport, committed: int) -> RenderableType:
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
