"""`bench verify`: the curve of an engine on a clock of its own, what is kept, and what a target does with it."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Sequence as ListLike
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from starsd_edge.bench import figures
from starsd_edge.bundles.bundle import load_bundle
from starsd_edge.cli.bench.options import BenchVerifyOptions
from starsd_edge.cli.bench.verify import VerifyBench, VerifyOutcome
from starsd_edge.doctor import curve_store as kept_curves_module
from starsd_edge.doctor.curve_store import curve_store, kept_curves
from starsd_edge.runtime.engine import Sequence, Step
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_jetson import target as target_module
from starsd_jetson.hub_channel import HubChannel
from starsd_jetson.hub_drafting import Asked as RequestSent
from tests.support.boards import orin_nano, write_tree
from tests.support.command_line import CommandLine, without_home
from tests.support.letter_bundle import write_bundle
from tests.support.prefix_engine import PrefixEngine
from tests.support.scripted_hub import Asked, ScriptedHub

_HANG_S = 60.0
"""A hang guard; nothing is decided by it."""


class ClockedEngine(PrefixEngine):
    """Each pass takes 10 ms, and so much for every row and for every committed token."""

    def __init__(self, row_s: float, token_s: float = 0.0) -> None:
        super().__init__(1, max_context=128)
        self.now = 0.0
        self._row_s, self._token_s = row_s, token_s

    def clock(self) -> float:
        return self.now

    def forward(
        self,
        seq: Sequence,
        tokens: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        tree_mask: npt.NDArray[np.bool_],
        logits_rows: ListLike[int] | None = None,
    ) -> Step:
        self.now += 0.010 + self._row_s * len(tokens) + self._token_s * seq.length
        return super().forward(seq, tokens, positions, tree_mask, logits_rows)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capfd)


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STARSD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache/bundles").mkdir(parents=True)
    return write_bundle(tmp_path / "cache/bundles/letters")


def measured(monkeypatch: pytest.MonkeyPatch, engine: ClockedEngine, **options: object) -> VerifyBench:
    monkeypatch.setattr(target_module, "open_engine", lambda *arguments, **named: engine)
    asked = BenchVerifyOptions(bundle="letters", threads=1, passes=3, **options)  # type: ignore[arg-type]
    return VerifyBench(asked, lambda step: None, engine.clock)


def run_and_keep(bench: VerifyBench) -> VerifyOutcome:
    """As the command does once it has shown what was measured."""
    outcome = bench.run()
    curve_store().save(outcome.key, outcome.stored)
    return outcome


def test_the_curve_is_that_of_the_engine(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ClockedEngine(0.001, 0.0001)
    outcome = run_and_keep(measured(monkeypatch, engine, committed=(0, 50)))
    sizes = [1, 2, 4, 8, engine.spec.max_tree]
    assert {committed: [*seconds] for committed, seconds in outcome.passes.items()} == {0: sizes, 50: sizes}
    report = outcome.report
    assert report["verify_ms_4_after_50"].value == pytest.approx(10 + 4 + 5)
    assert report["verify8_over_verify1_after_0"].value == pytest.approx(18 / 11)
    kept = kept_curves(load_bundle(bundle).manifest, 1)
    assert kept is not None
    assert kept.curves.at(50).at(8) == pytest.approx(0.023)
    assert kept.curves.at(25).at(3) == pytest.approx(0.0155), "lengths and rows between those measured"


def test_what_is_not_to_be_kept_is_not(cli: CommandLine, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "open_engine", lambda *arguments, **named: PrefixEngine(1, max_context=128))
    done = cli("bench", "verify", "letters", "--passes", 3, "--rows", 4, "--committed", 8, "--no-keep")
    assert done.code == 0, done
    assert kept_curves(load_bundle(bundle).manifest, 1) is None
    assert not (bundle.parents[1] / "verify-curves").exists()


def test_what_cannot_be_kept_is_shown_all_the_same(
    cli: CommandLine, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_module, "open_engine", lambda *arguments, **named: PrefixEngine(1, max_context=128))
    (bundle.parents[1] / "verify-curves").write_text("a file in the place of the directory")
    done = cli("bench", "verify", "letters", "--passes", 3, "--rows", 4, "--committed", 8)
    assert "first drafts after 8 tokens: up to " in done.out
    assert done.code == 1
    (failure,) = [line for line in done.err.splitlines() if not line.startswith("bench: ")]
    assert "verify-curves" in failure


def test_it_counts_for_these_threads_and_this_bundle_only(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_and_keep(measured(monkeypatch, ClockedEngine(0.001)))
    manifest = load_bundle(bundle).manifest
    assert kept_curves(manifest, 1) is not None
    assert kept_curves(manifest, 2) is None
    assert kept_curves(manifest, 1, "cuda") is None
    assert kept_curves(manifest, 1, digest="of an engine") is None


def test_another_power_mode_is_measured_anew(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = orin_nano(tmp_path / "board").host
    monkeypatch.setattr(kept_curves_module, "Host", lambda: board)
    outcome = run_and_keep(measured(monkeypatch, ClockedEngine(0.001)))
    assert (outcome.stored.power_mode, outcome.report.settings["power_mode"]) == ("25W", "25W")
    manifest = load_bundle(bundle).manifest
    assert kept_curves(manifest, 1) is not None
    write_tree(board.root, {"var/lib/nvpmodel/status": "pmode:0002"})
    assert kept_curves(manifest, 1) is None


def test_people_get_a_table_and_scripts_a_file(
    cli: CommandLine, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_module, "open_engine", lambda *arguments, **named: PrefixEngine(1, max_context=128))
    report = tmp_path / "report.json"
    done = cli("bench", "verify", "letters", "--passes", 3, "--rows", 4, "--committed", 8, "--json", report)
    assert done.code == 0, done
    assert max(map(len, done.out.splitlines())) <= 80
    assert "first drafts after 8 tokens: up to " in done.out
    assert "kept for run-target and plan" in done.out
    content = json.loads(report.read_text())
    names = [figure["name"] for figure in content["figures"]]
    assert names == ["verify_ms_1_after_8", "verify_ms_4_after_8", "verify4_over_verify1_after_8"]
    assert content["spread"]["verify_ms_4_after_8"]["samples"] == 3
    assert "measured at" in cli("plan", "letters").out


def test_times_are_shown_without_a_home_and_kept_without_a_report(
    cli: CommandLine, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_module, "open_engine", lambda *arguments, **named: PrefixEngine(1, max_context=128))
    options = (bundle, "--passes", 3, "--rows", 4, "--committed", 8)
    without_home(monkeypatch)
    homeless = cli("bench", "verify", *options)
    assert (homeless.code, "over one row" in homeless.out) == (0, True)
    assert "not kept: no home directory is known" in homeless.out
    monkeypatch.setenv("STARSD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(figures, "write_report", full_disk)
    unreported = cli("bench", "verify", *options, "--json", tmp_path / "report.json")
    assert (unreported.code, "kept for run-target and plan" in unreported.out) == (1, True)
    assert "the disk is full" in unreported.err
    assert "measured at" in cli("plan", bundle).out


def full_disk(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "report.json")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rows", "0"], "--rows takes numbers from 1 on"),
        (["--committed", "-1"], "--committed from 0 on"),
        (["--rows", "17"], "verifies at most 16 rows in a pass"),
        (["--committed", "120"], "120 tokens and 16 rows do not fit a context of 128: lower --committed"),
        (["--device", "toaster"], "no device 'toaster'"),
        (["--passes", "1"], "--passes"),
    ],
)
def test_what_cannot_be_measured_is_one_clear_line(
    cli: CommandLine, bundle: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.setattr(target_module, "open_engine", lambda *arguments, **named: PrefixEngine(1, max_context=128))
    done = cli("bench", "verify", "letters", *arguments)
    errors = [line for line in done.err.splitlines() if not line.startswith("bench: ")]
    assert (done.code, done.out, len(errors)) == (2, "", 1), done
    assert says in errors[0]


def first_request(cli: CommandLine) -> tuple[int, int]:
    """Nodes and depth that `run-target` asks a hub for at first: it waits until the hub has opened the session, so that
    no round of its own is timed before.
    """
    seen: list[tuple[int, int]] = []
    request = HubChannel.request

    def script(asked: Asked) -> list[bytes]:
        seen.append((asked.request.max_nodes, asked.request.max_depth))
        return [asked.draft(DraftTree.empty())]

    def request_once_open(channel: HubChannel, shape: DraftShape) -> RequestSent | None:
        until = time.monotonic() + _HANG_S
        while (sent := request(channel, shape)) is None and time.monotonic() < until:
            time.sleep(0.001)
        return sent

    with ScriptedHub(script) as hub, pytest.MonkeyPatch.context() as patch:
        patch.setattr(HubChannel, "request", request_once_open)
        done = cli("run-target", "letters", "--prompt", "abacabad", "--hub", hub.url, "--threads", 1, "--ignore-eos")
    assert done.code == 0, done
    return seen[0]


def test_a_target_sizes_its_first_draft_by_the_kept_curve(
    cli: CommandLine, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_module, "open_engine", lambda *arguments, **named: ClockedEngine(0.0))
    unmeasured = first_request(cli)
    run_and_keep(measured(monkeypatch, ClockedEngine(0.050)))
    steep = first_request(cli)
    run_and_keep(measured(monkeypatch, ClockedEngine(0.0)))
    flat = first_request(cli)
    assert (steep, unmeasured, flat) == ((1, 1), (8, 4), (15, 6))


def test_the_drafts_that_are_told_are_those_that_a_target_asks_for(
    cli: CommandLine, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = run_and_keep(measured(monkeypatch, ClockedEngine(0.002, 0.00001), committed=(0, 64)))
    monkeypatch.setattr(target_module, "open_engine", lambda *arguments, **named: ClockedEngine(0.0))
    told = outcome.drafts[0]
    assert first_request(cli) == (told.max_nodes, told.max_depth)
    assert 1 < told.max_nodes < 15
