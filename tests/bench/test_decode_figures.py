"""From rounds and runs to figures: what is counted, what is left out, and that the tables fit 80 columns."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from starsd_edge.bench.decode_figures import DecodeTimes, decode_figures, decode_tables
from starsd_edge.bench.figures import CPU, BenchReport
from starsd_edge.bench.runs import Run
from starsd_edge.telemetry.rounds import HUB, NGRAM, NONE, Round
from starsd_edge.telemetry.rtt import TcpRtt
from starsd_edge.telemetry.summary import LinkFigures

TOKENS = tuple(range(11))


def hub_round(added_s: float, late: bool = False, origin: str = HUB) -> Round:
    """Drafting takes 40 ms, verifying 25 ms, the rest is added."""
    return Round(
        origin, drafted=4, accepted=2, levels_offered=3, emitted=3, late=late, bytes_up=40, bytes_down=50,
        round_s=0.065 + added_s, verify_s=0.025, draft_s=0.04,
    )  # fmt: skip


def plain_run(decode_s: float) -> Run:
    return Run(TOKENS, 0.1, decode_s, tuple(Round(NONE, emitted=1, round_s=0.03, verify_s=0.028) for _ in range(10)))


def report_of(runs: dict[str, Sequence[Run]], links: dict[str, LinkFigures] | None = None) -> BenchReport:
    curve = {1: [0.02, 0.03], 5: [0.022, 0.036], 16: [0.04, 0.04]}
    return BenchReport(decode_figures(DecodeTimes(runs, 64, curve, links or {}), CPU))


HUB_RUN = Run(
    TOKENS, 0.2, 0.25,
    (hub_round(0.3), hub_round(0.001), hub_round(0.9, late=True), hub_round(0.8, origin=NGRAM), hub_round(0.003)),
)  # fmt: skip
FULL = report_of(
    {
        "plain": [plain_run(0.5), plain_run(0.4)],
        "ngram": [Run(TOKENS, 0.1, 0.5, (hub_round(0, origin=NGRAM),)), plain_run(0.2)],
        "speculative": [HUB_RUN, HUB_RUN],
        "speculative_ngram": [HUB_RUN, HUB_RUN],
        "transformers": [Run(TOKENS, 0.3, 1.0), Run(TOKENS, 0.3, 1.6)],
    },
    {
        "speculative": LinkFigures("causal-lm", TcpRtt(0.0002, 0.00002), 0.0007, 1),
        "speculative_ngram": LinkFigures("ngram", None, 0.0, 1),
    },
)


def value(name: str) -> float:
    return FULL[name].value


def test_speeds_are_medians_over_the_runs() -> None:
    assert value("plain_tokens_per_s") == pytest.approx((20 + 25) / 2)
    spread = FULL["plain_tokens_per_s"].spread
    assert spread is not None
    assert (spread.low, spread.high, spread.samples) == (20, 25, 2)
    assert value("ttft_ms") == value("plain_ttft_ms") == pytest.approx(100)
    assert value("transformers_ttft_ms") == pytest.approx(300)
    assert value("speculative_prefill_tokens_per_s") == pytest.approx(320)


def test_ratios_are_taken_run_by_run() -> None:
    assert value("plain_over_transformers") == pytest.approx((2.0 + 4.0) / 2)
    assert value("ngram_over_plain") == pytest.approx((1.0 + 2.0) / 2)
    assert value("speculative_over_plain") == pytest.approx((2.0 + 1.6) / 2)
    assert value("verify5_over_verify1") == pytest.approx((1.1 + 1.2) / 2)
    assert value("verify_ms_5") == pytest.approx((22 + 36) / 2)
    assert FULL.get("verify1_over_verify1") is None


def test_hub_adds_what_is_neither_draft_nor_verify() -> None:
    """The first round of an answer, late drafts and rounds without the hub's draft are no measure of it."""
    assert value("hub_added_ms_p50") == pytest.approx(1)
    assert value("hub_added_ms_p99") == pytest.approx(3)
    assert value("draft_ms_p50") == pytest.approx(40)


def test_rounds_of_all_runs_are_counted_together() -> None:
    assert value("tokens_per_round") == 3
    assert value("accepted_per_round") == 2
    assert (value("survival_level_1"), value("survival_level_2"), value("survival_level_3")) == (1, 1, 0)
    assert (value("bytes_up_per_round"), value("bytes_down_per_round")) == (40, 50)
    assert value("hub_share") == pytest.approx(0.8)
    assert value("ngram_tokens_per_round") == pytest.approx(13 / 11)
    assert FULL.get("ngram_hub_share") is None
    assert value("rtt_ms") == pytest.approx(0.2)
    assert value("draft_link_ms") == pytest.approx(0.7)
    assert FULL.get("speculative_ngram_rtt_ms") is None
    assert value("plain_own_ms_p50") == pytest.approx(2)


def test_every_figure_is_labelled_and_named_once() -> None:
    names = [figure.name for figure in FULL.figures]
    assert len(names) == len(set(names))
    assert {figure.label for figure in FULL.figures} == {CPU}


def test_hub_that_never_drafted_in_time_gives_no_times() -> None:
    silent = Run(TOKENS, 0.1, 0.5, tuple(hub_round(0.1, origin=NGRAM) for _ in range(3)))
    report = report_of({"plain": [plain_run(0.5)], "speculative": [silent]}, {"speculative": LinkFigures("ngram")})
    assert report["hub_share"].value == 0
    assert report.get("hub_added_ms_p50") is None


def test_plain_and_nothing_else_is_enough() -> None:
    report = report_of({"plain": [plain_run(0.5)]})
    assert report.get("tokens_per_round") is None
    text = printed(report, {"plain": "plain"})
    assert "20.0" in text
    assert "drafting" not in text


def printed(report: BenchReport, titles: dict[str, str]) -> str:
    out = io.StringIO()
    console = Console(file=out, width=80, highlight=False)
    for table in decode_tables(report, titles, committed=128):
        console.print(table)
    return out.getvalue()


def test_tables_say_it_all_in_80_columns() -> None:
    titles = {
        "plain": "plain",
        "ngram": "local ngram",
        "speculative": "hub causal-lm",
        "speculative_ngram": "hub ngram",
        "transformers": "transformers fp32",
    }
    text = printed(FULL, titles)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    for title in titles.values():
        assert any(line.strip().startswith(title) for line in lines), title
    plain = next(line for line in lines if line.strip().startswith("plain"))
    assert "22.5 (20.0-25.0)" in plain
    assert "128 committed tokens" in text
    row = next(line for line in lines if "hub_added_ms_p50" in line)
    assert row.split() == ["hub_added_ms_p50", "-", "1.00", "1.00"]
    assert sum(line.startswith("CPU: ") for line in lines) == 3
