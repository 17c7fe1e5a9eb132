"""`bench requests` as a user meets it: replayed letters on a modelled device, a real hub that drafts by n-grams."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from starsd_edge.bench.trace import Traces, write_traces
from tests.support.command_line import CommandLine
from tests.support.decoding import PROMPT
from tests.support.letter_bundle import write_bundle
from tests.support.traces import letter_source, letter_trace

FAST = ("--verify-ms", 4, "--draft-ms", 1, "--rtt-ms", 1, "--repeats", 1, "--busy-targets", 1, "--new-tokens", 24)
STATES = ("no_hub", "hub_idle", "hub_busy", "hub_gone", "hub_absent")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    texts = [letter_trace(seed, prompt=(*PROMPT, seed)) for seed in range(4)]
    write_traces(tmp_path / "trace.npz", Traces(letter_source(), texts))
    return tmp_path / "trace.npz"


@pytest.fixture
def bench(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capfd)


def test_both_ways_and_every_state_of_the_hub_are_told(bench: CommandLine, trace: Path, tmp_path: Path) -> None:
    bundle, report = write_bundle(tmp_path / "letters"), tmp_path / "report.json"
    ended = bench("bench", "requests", bundle, "--trace", trace, "--requests", 3, "--json", report, *FAST)
    assert ended.code == 0, ended
    written = json.loads(report.read_text())
    figures = {figure["name"]: figure for figure in written["figures"]}
    assert {figure["label"] for figure in figures.values()} == {"timing backend"}
    speeds = {"plain_tokens_per_s", "by_turns_tokens_per_s", "together_tokens_per_s", "together_over_by_turns"}
    assert set(figures) == {*speeds, *(f"ttft_ms_{state}" for state in STATES), "ttft_worst_over_no_hub"}
    assert all(figure["value"] > 0 for figure in figures.values())
    assert all(figures[f"ttft_ms_{state}"]["value"] >= 4 for state in STATES), "a pass at least"
    assert written["settings"]["command"] == "bench requests"
    assert "the same 3 together" in ended.out
    assert "exactness: every answer is the recorded text" in ended.out


def test_too_few_texts_are_one_line(bench: CommandLine, trace: Path, tmp_path: Path) -> None:
    line = bench.refused("bench", "requests", write_bundle(tmp_path / "letters"), "--trace", trace, "--requests", 5)
    assert "5 requests need as many texts, and the trace has 4" in line
