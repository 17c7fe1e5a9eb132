"""The demo's processes and views, with a stand-in for the program that it starts."""

from __future__ import annotations

import asyncio
import io
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from starsd_edge.cli.demo.star import DemoPlan, DemoStar, DemoTargetResult, HubWatch
from starsd_edge.cli.demo.view import LiveView, PlainView, hub_summary, summary
from starsd_edge.errors import StarsdError
from starsd_edge.hub_process import hub_process
from starsd_edge.telemetry.feed import Snapshot
from starsd_edge.telemetry.monitor.board import StarBoard
from starsd_edge.telemetry.monitor.feed_client import LIVE, FeedLink
from tests.support.command_line import CommandLine
from tests.support.demo_frames import CASES, case_text, golden, view_of
from tests.support.monitor_frames import board_of, recorded, text_of

STAND_IN = """
import json, os, sys, time
place, command, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
option = lambda name: rest[rest.index(name) + 1]
open(os.path.join(place, f"{command}-{os.getpid()}"), "w").close()
if command == "run-draft":
    if rest[0] == "broken":
        sys.exit("error: no bundle there")
    print("listening on ws://127.0.0.1:4711 drafter=causal-lm", flush=True)
    time.sleep(600)
assert option("--hub") == "ws://127.0.0.1:4711" and "--require-hub" in rest
prompt = option("--prompt")
if prompt == "fail":
    sys.exit("warning: not yet\\nerror: the hub is not there")
if prompt == "hang":
    time.sleep(600)
for piece in prompt.split("|"):
    print(json.dumps({"type": "text", "piece": piece}), flush=True)
figures = dict(tokens=12, rounds=4, tokens_per_s=8.0, accepted_per_round=1.5, tokens_per_round=2.5, rtt_ms=0.05)
print(json.dumps({"type": "answer", "figures": {**figures, "bytes_up_per_round": 100, "bytes_down_per_round": 40}}))
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    (tmp_path / "started").mkdir()
    return [sys.executable, str(script), str(tmp_path / "started")]


def started(tmp_path: Path) -> list[int]:
    return [int(path.name.rpartition("-")[2]) for path in (tmp_path / "started").iterdir()]


HUB = "ws://127.0.0.1:4711"


def plan(*prompts: str) -> DemoPlan:
    return DemoPlan(target=Path("target"), hub=HUB, prompts=prompts, max_tokens=5, threads=1)


def plain_view(targets: int) -> tuple[PlainView, io.StringIO]:
    out = io.StringIO()
    return PlainView(Console(file=out, width=80, highlight=False), [f"target {n + 1}" for n in range(targets)]), out


async def test_every_target_is_answered_and_nothing_keeps_running(program: list[str], tmp_path: Path) -> None:
    view, out = plain_view(3)
    results = await DemoStar(plan("one |line", "two\n|lines", "three"), view, program).run()
    assert [result.failure for result in results] == ["", "", ""]
    assert all(result.figures["tokens"] == 12 for result in results)
    lines = out.getvalue().splitlines()
    assert [line for line in lines if line.startswith("[target 1]")] == [
        "[target 1] one line",
        "[target 1] -- 12 tokens, 8.0 tokens/s",
    ]
    assert [line for line in lines if line.startswith("[target 2]")][:2] == ["[target 2] two", "[target 2] lines"]
    assert len(started(tmp_path)) == 3
    assert not any(psutil.pid_exists(pid) for pid in started(tmp_path))


async def test_a_target_that_fails_is_told_with_its_last_words_and_the_others_go_on(program: list[str]) -> None:
    view, out = plain_view(2)
    results = await DemoStar(plan("fail", "fine"), view, program).run()
    assert [result.failure for result in results] == ["the hub is not there", ""]
    assert "[target 1] -- failed: the hub is not there" in out.getvalue()


def test_a_hub_that_does_not_start_is_one_clear_line(program: list[str], tmp_path: Path) -> None:
    with (
        pytest.raises(StarsdError, match="the hub did not start: no bundle there"),
        hub_process(["broken"], program),
    ):
        pass
    assert not any(psutil.pid_exists(pid) for pid in started(tmp_path))


def test_what_the_program_starts_for_itself_is_not_set_by_the_users_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STARSD_RUN_DRAFT_HOST", "no.such.host.invalid")
    file = tmp_path / "config.toml"
    file.write_text('[run-draft]\nrequire-drafter = "perhaps"\n')
    monkeypatch.setenv("STARSD_CONFIG", str(file))
    with hub_process([]) as address:
        assert address.startswith("ws://127.0.0.1:")


async def test_being_stopped_ends_every_process(program: list[str], tmp_path: Path) -> None:
    view, _ = plain_view(2)
    task = asyncio.create_task(DemoStar(plan("hang", "hang"), view, program).run())
    while len(started(tmp_path)) < 2:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(psutil.pid_exists(pid) for pid in started(tmp_path))


RUN_STAR = """
import asyncio, signal, sys
from pathlib import Path
from rich.console import Console
from starsd_edge.cli import main
from starsd_edge.cli.demo.star import DemoPlan, DemoStar
from starsd_edge.cli.demo.view import PlainView
from starsd_edge.hub_process import hub_process
import typer
def build():
    app = typer.Typer()
    app.callback()(lambda: None)
    @app.command()
    def star():
        with hub_process(["draft"], sys.argv[1:]) as hub:
            plan = DemoPlan(Path("target"), hub, ("hang", "hang"), 5, 1)
            asyncio.run(DemoStar(plan, PlainView(Console(), ["a", "b"]), sys.argv[1:]).run())
    return app
main.build_app = build
signal.signal(signal.SIGTERM, main._terminate)
sys.exit(main.run(["star"]))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_demo(program: list[str], tmp_path: Path, how: signal.Signals) -> None:
    demo = subprocess.Popen([sys.executable, "-c", RUN_STAR, *program])
    while len(started(tmp_path)) < 3:
        assert demo.poll() is None
        time.sleep(0.01)
    demo.send_signal(how)
    demo.wait()
    gone, alive = psutil.wait_procs(
        [psutil.Process(pid) for pid in started(tmp_path) if psutil.pid_exists(pid)], timeout=30
    )
    assert not alive, gone


def test_plain_lines_fit_a_terminal_and_cannot_drive_it() -> None:
    view, out = plain_view(1)
    with view:
        view.piece(0, "word " * 40)
        view.piece(0, "\x1b[31mred\n" + "x" * 200)
        view.end(0, DemoTargetResult(failure="gone"))
    lines = out.getvalue().splitlines()
    assert max(len(line) for line in lines[:3]) <= 80
    assert "\x1b" not in out.getvalue()
    assert "\\x1b[31mred" in out.getvalue()
    assert "x" * 200 in out.getvalue()
    assert lines[-1] == "[target 1] -- failed: gone"


@pytest.mark.parametrize("name", CASES)
def test_the_hub_stands_beside_the_answers_or_below_them(name: str) -> None:
    assert case_text(name) == golden(name).read_text(), "look, then run: python -m tests.support.demo_frames"


@pytest.mark.parametrize("width", [40, 79, 80, 119, 120, 121, 200])
@pytest.mark.parametrize("height", [24, 30, 60])
@pytest.mark.parametrize("targets", [1, 3, 6])
def test_the_picture_fits_the_terminal(width: int, height: int, targets: int) -> None:
    view = view_of(width, height, targets)
    view.piece(0, "word " * 500)
    for news in (LIVE, board_of(recorded())):
        view.hub(news)
        lines = text_of(view.picture(), width, height).splitlines()
        assert len(lines) < height
        assert max(map(len, lines)) <= width


def test_a_hub_that_is_lost_is_said_so() -> None:
    for width in (80, 120):
        view = view_of(width, 24, 3)
        assert "connecting" in text_of(view.picture(), width, 24)
        view.hub(FeedLink("no hub: the connection was lost", is_live=False))
        assert "no hub: the connection was lost" in text_of(view.picture(), width, 24)


async def test_the_figures_at_the_end_are_of_all_the_time() -> None:
    async def feed() -> AsyncGenerator[Snapshot | FeedLink, None]:
        yield LIVE
        for snapshot in recorded():
            yield snapshot

    news: list[StarBoard | FeedLink] = []
    watch = HubWatch(lambda url: feed(), news.append)
    assert watch.whole() is None
    await watch.follow("ws://127.0.0.1:4711")
    assert news[0] == LIVE
    assert news[-1] == board_of(recorded())
    first, last = recorded()[0].facts, recorded()[-1].facts
    board = watch.whole()
    assert board is not None
    judged = last.drafted.judged - first.drafted.judged
    assert board.hub.acceptance.accepted_per_draft == (last.drafted.accepted - first.drafted.accepted) / judged
    text = text_of(hub_summary(board, Console(width=80, file=io.StringIO())), 80, 24)
    assert "busy" in text
    assert "queue 0" in text
    assert max(map(len, text.splitlines())) <= 80


async def test_what_follows_the_hub_ends_with_the_answers(program: list[str]) -> None:
    seen: list[str] = []

    async def follow(url: str) -> None:
        seen.append(url)
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("ended")

    view, _ = plain_view(1)
    await DemoStar(plan("one"), view, program, follow=follow).run()
    assert seen == ["ws://127.0.0.1:4711", "ended"]


async def test_a_monitor_that_is_not_let_in_is_an_error_after_the_answers(program: list[str]) -> None:
    async def follow(url: str) -> None:
        raise StarsdError("not let in")

    view, out = plain_view(1)
    with pytest.raises(StarsdError, match="not let in"):
        await DemoStar(plan("one"), view, program, follow=follow).run()
    assert "[target 1] one" in out.getvalue()


def test_panels_show_the_end_of_each_answer_and_fit_the_width() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, height=40, force_terminal=True, color_system=None)
    figures = {"tokens": 7, "tokens_per_s": 3.25}
    with LiveView(console, ["target 1", "target 2", "target 3"]) as view:
        for number in range(60):
            view.piece(0, f"line {number}\n")
        view.piece(1, "the quick brown fox jumps over the lazy dog " * 3)
        view.end(0, DemoTargetResult(figures=figures))
    last_frame = out.getvalue().split("\x1b[2K")[-1]
    assert "line 58" in last_frame
    assert "line 40" not in last_frame
    assert "3.2 tokens/s" in last_frame
    assert all(len(line) <= 80 for line in last_frame.splitlines())


def test_the_table_weighs_what_is_together_by_rounds() -> None:
    base = {"rtt_ms": 1.0, "bytes_up_per_round": 10.0, "bytes_down_per_round": 4.0}
    one = {**base, "tokens": 30, "rounds": 10, "tokens_per_s": 5.0, "accepted_per_round": 2.0, "tokens_per_round": 3.0}
    two = {**base, "tokens": 30, "rounds": 30, "tokens_per_s": 6.0, "accepted_per_round": 0.0, "tokens_per_round": 1.0}
    out = io.StringIO()
    results = [DemoTargetResult(one, 1.0, 3.0), DemoTargetResult(two, 2.0, 3.9), DemoTargetResult(failure="gone")]
    Console(file=out, width=80).print(summary(["target 1", "target 2", "target 3"], results))
    together = next(line for line in out.getvalue().splitlines() if "together" in line).split()
    assert together == ["together", "60", "20.0", "0.50", "1.50", "1.00", "10", "4"]
    assert "failed" in out.getvalue()
    assert all(len(line) <= 80 for line in out.getvalue().splitlines())


def test_a_missing_bundle_is_refused_before_anything_starts(cli: CommandLine, cache: Path) -> None:
    assert "no bundle named 'smollm2-135m-fp32'" in cli.refused("demo", "--plain")
    assert "less than or equal to 6" in cli.refused("demo", "--targets", 99)
