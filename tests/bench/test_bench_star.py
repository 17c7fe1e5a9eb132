"""`bench star` as a user meets it: a tiny star of replayed letters around a real hub that drafts by n-grams."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from starsd_edge.bench.device_times import ModelDraftTimes
from starsd_edge.bench.star_runs import HubPlan
from starsd_edge.bench.trace import Traces, write_traces
from starsd_edge.cli.bench.star import hub_arguments
from starsd_edge.cli.bench.timing_hub import TimingHubOptions, modelled
from starsd_edge.errors import UsageError
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape
from starsd_server.drafters.contract import draft_one
from starsd_server.drafters.ngram import NgramDrafter
from tests.support.command_line import CommandLine
from tests.support.letter_bundle import write_bundle
from tests.support.traces import letter_source, letter_trace

NAMES = {
    "plain_tokens_per_s",
    "colocated_over_plain",
    "rtt50_n1_over_plain",
    "system_tokens_per_s_n2",
    "published_tokens_per_s_n2",
    "system_over_published_n2",
    "tokens_per_round_n2",
    "accepted_per_round_n2",
    "round_ms_p99_n2",
    "idle_while_work_waits",
    "law_knee",
    "law_utilisation_n2",
    "law_idle_gap_ms_n2",
    "crowd_sessions",
    "crowd_dropped",
    "crowd_memory_growth",
    "crowd_loop_lag_ms_p99",
}
FAST = ("--verify-ms", 5, "--draft-ms", 0.5, "--rtt-ms", 0, "--seconds", 0.2, "--warm-up-rounds", 1)


class BenchStar(CommandLine):
    """`starsd-edge bench star BUNDLE --trace FILE --output DIRECTORY ...`"""

    def __init__(self, capture: pytest.CaptureFixture[str], folder: Path) -> None:
        super().__init__(capture)
        self.output = folder / "results"
        self.trace = folder / "trace.npz"
        write_traces(self.trace, Traces(letter_source(), [letter_trace(seed) for seed in range(3)]))
        self._given = ("bench", "star", write_bundle(folder / "letters"), "--trace", self.trace)

    def star(self, *arguments: object):  # type: ignore[no-untyped-def]
        """Run it."""
        return self(*self._given, "--output", self.output, *arguments)

    def refusal(self, *arguments: object) -> str:
        """The one line with which it refuses."""
        return self.refused(*self._given, "--output", self.output, *arguments)


@pytest.fixture
def bench(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> BenchStar:
    return BenchStar(capfd, tmp_path)


def test_a_tiny_star_writes_its_files(bench: BenchStar) -> None:
    sweeps = [word for sweep in ("baselines", "scale", "law", "crowd") for word in ("--only", sweep)]
    ended = bench.star(*FAST, "--targets", 2, "--sessions", 6, "--policy", "fifo", *sweeps)
    assert ended.code == 0, ended
    report = json.loads((bench.output / "figures.json").read_text())
    figures = {figure["name"]: figure for figure in report["figures"]}
    assert {figure["label"] for figure in figures.values()} == {"timing backend"}
    assert set(figures) >= NAMES
    assert figures["inexact_answers"]["value"] == 0
    assert 0 < figures["bytes_up_per_round"]["value"] < 200
    assert figures["law_draft_ms"]["value"] >= 0.5
    assert figures["law_return_ms"]["value"] >= 5
    assert (figures["crowd_sessions"]["value"], figures["crowd_dropped"]["value"]) == (5, 0)
    assert report["settings"]["command"] == "bench star"
    points = json.loads((bench.output / "points.json").read_text())
    assert {point["system"] for point in points} >= {"plain", "co-located", "published", "starsd-edge"}
    assert all(point["tokens/s"] > 0 for point in points)
    table = (bench.output / "report.md").read_text()
    assert "## Scale" in table
    assert "timing backend" in table
    assert "written to" in ended.out
    if importlib.util.find_spec("matplotlib") is None:
        assert "no plots: this needs matplotlib" in ended.out
        assert "pip install '.[bench]'" in table
    else:
        for name in ("throughput", "per-target", "latency", "law", "utilisation"):
            assert (bench.output / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--trace", "/nowhere.npz"), "cannot read the trace /nowhere.npz"),
        (("--shape", "8"), "--shape is NODESxDEPTHxBRANCHING"),
        (("--shape", "64x5x4"), "at most 63 nodes"),
        (("--only", "everything"), "everything"),
        (("--draft", "nowhere"), "no bundle named 'nowhere'"),
        (("--policy", "magic"), "magic"),
        (("--verify-ms", "0"), "--verify-ms"),
        (("--targets", "1000"), "--targets"),
        (("--output", "/proc/nowhere"), "/proc/nowhere cannot be made"),
    ],
)
def test_wrong_input_is_one_line(bench: BenchStar, arguments: tuple[str, ...], says: str) -> None:
    assert says in bench.refusal(*arguments)


def test_a_trace_of_another_model_is_refused(bench: BenchStar) -> None:
    import msgspec

    source = msgspec.structs.replace(letter_source(), source_fp="9" * 64)
    write_traces(bench.trace, Traces(source, [letter_trace()]))
    assert "was made from another checkpoint" in bench.refusal()


def test_without_a_trace_the_command_that_records_one_is_named(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, cache: Path
) -> None:
    bundle = write_bundle(tmp_path / "letters")
    line = CommandLine(capfd).refused("bench", "star", bundle, "--output", tmp_path / "out")
    assert str(cache) in line
    assert "letters.npz" in line
    assert "starsd-edge bench trace" in line


def test_a_hub_is_told_what_is_planned() -> None:
    plan = HubPlan("drr", 8, DraftShape(8, 5, 4), times=ModelDraftTimes(0.01, 0.125, 5), wrong=True)
    told = hub_arguments(plan, Path("head"), [7, 8])
    assert told[:2] == ["head", "--require-drafter"]
    pairs = dict(zip(told[2::2], told[3::2], strict=True))
    assert (
        pairs.items()
        >= {
            "--policy": "drr",
            "--max-batch": "8",
            "--draft-ms": "10.0",
            "--draft-growth": "0.125",
            "--draft-levels": "5",
            "--wrong-ids": "7,8",
            "--draft-shape": "fixed:8x5x4",
        }.items()
    )
    assert hub_arguments(HubPlan(), None, []) == [
        "--threads", "1", "--max-sessions", "8192", "--resume-grace", "1", "--policy", "fifo", "--max-batch", "1",
        "--draft-shape", "auto",
    ]  # fmt: skip


def drafted(options: TimingHubOptions) -> list[int]:
    drafter = modelled(options, NgramDrafter(4))
    drafter.open(1, 0, 5)
    drafter.extend([NewRows(1, 0, [6, 7, 5, 6], None)])
    return [int(token) for token in draft_one(drafter, 1, DraftShape(3, 3)).tokens]


def hub_options(make: Callable[..., TimingHubOptions], **changes: object) -> TimingHubOptions:
    from starsd_edge.cli.logs import LogOptions
    from starsd_edge.cli.run_draft.command import RunDraftOptions

    return make(hub=RunDraftOptions(log=LogOptions()), **changes)


def test_a_modelled_drafter_is_slower_or_wrong_and_else_the_same() -> None:
    import time

    right = drafted(hub_options(TimingHubOptions))
    assert right == [7, 5, 6]
    assert drafted(hub_options(TimingHubOptions, wrong_ids="20,21")) == [20, 20, 20]
    began = time.monotonic()
    assert drafted(hub_options(TimingHubOptions, draft_ms=20.0)) == right
    assert time.monotonic() - began >= 0.02
    with pytest.raises(UsageError, match="--wrong-ids takes numbers"):
        drafted(hub_options(TimingHubOptions, wrong_ids="a"))
