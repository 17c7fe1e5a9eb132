"""`bench hub-step` on a small head: every kind of step is there, with its ratio and its label."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from starsd_edge.cli.bench.hub_step import HubStepBench  # noqa: E402
from starsd_edge.cli.bench.options import BenchHubStepOptions  # noqa: E402
from starsd_edge.cli.shared_options import HeadPrecision  # noqa: E402
from starsd_edge.heads.draft_bundle import DraftBundle  # noqa: E402
from tests.support.command_line import CommandLine  # noqa: E402
from tests.support.small_head import small_draft_bundle  # noqa: E402

pytestmark = pytest.mark.export


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> DraftBundle:
    return small_draft_bundle(tmp_path_factory.mktemp("small"), "int8")


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capfd)


def test_the_command_prints_each_batch_size_and_writes_the_figures(
    cli: CommandLine, bundle: DraftBundle, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    sizes = ("--sessions", 1, "--sessions", 3)
    done = cli("bench", "hub-step", bundle.path, *sizes, "--repeats", 3, "--rows", 20, "--threads", 1, "--json", report)
    assert done.code == 0, done.err
    figures = {figure["name"]: figure for figure in json.loads(report.read_text())["figures"]}
    for tree in ("8x5x3", "4x4x1"):
        for sessions in (1, 3):
            assert figures[f"step_ms_{tree}_b{sessions}"]["value"] > 0
        ratio = figures[f"step_ms_{tree}_b3"]["value"] / figures[f"step_ms_{tree}_b1"]["value"]
        assert figures[f"step_{tree}_b3_over_b1"]["value"] == pytest.approx(ratio, rel=1e-4)
    assert {figure["label"] for figure in figures.values()} == {"CPU"}
    assert figures["bytes_per_row_formula"]["value"] == 2 * 2 * 16 * 4
    assert all(len(line) <= 80 for line in done.out.splitlines())
    assert done.out.count("8x5x3") == 2
    assert "CPU: " in done.out


def test_times_are_those_of_the_steps_alone_and_memory_that_of_the_rows_added(bundle: DraftBundle) -> None:
    """A clock that ticks only when it is read, and a process that grows by exactly what the formula says."""
    ticks = iter(range(1000))
    sizes = iter([10_000_000, 10_000_000 + 24 * 1024 * 128])
    options = BenchHubStepOptions(
        bundle=str(bundle.path), sessions=(1, 2), repeats=3, threads=1, draft_precision=HeadPrecision.BFLOAT16
    )
    bench = HubStepBench(options, lambda step: None, lambda: float(next(ticks)), lambda: next(sizes))
    report, times, memory = bench.run()
    assert [(each.tree, each.sessions, list(each.samples)) for each in times] == [
        (tree, sessions, [1000.0] * 3) for tree in ("8x5x3", "4x4x1") for sessions in (1, 2)
    ]
    assert [each.nodes for each in times] == [8, 8, 4, 4]
    assert memory.formula == 2 * 2 * 16 * 2
    assert memory.measured == pytest.approx(128)
    assert report["step_8x5x3_b2_over_b1"].value == 1


@pytest.mark.parametrize("sizes", [(0,), (4, 4), (5000,)])
def test_what_cannot_be_measured_is_one_line(cli: CommandLine, sizes: tuple[int, ...]) -> None:
    line = cli.refused("bench", "hub-step", "head", *(part for size in sizes for part in ("--sessions", size)))
    assert "--sessions takes numbers from 1 to 1024, each once" in line
