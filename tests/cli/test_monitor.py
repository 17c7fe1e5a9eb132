"""`starsd-edge monitor` as people and scripts use it: a recording, wrong input, and a real terminal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import pytest

from tests.support.command_line import CommandLine
from tests.support.hub_client import running_hub
from tests.support.monitor_frames import FEED, board_of, recorded
from tests.support.terminal import PATHS, PATIENCE_S, Terminal


def test_once_shows_the_end_of_a_recording(cli: CommandLine) -> None:
    ended = cli("monitor", "--replay", FEED, "--once")
    assert (ended.code, ended.err) == (0, "")
    assert max(map(len, ended.out.splitlines())) <= 80
    for row in board_of(recorded()).targets:
        assert row.name[:8] in ended.out


def test_once_json_is_one_object_with_everything(cli: CommandLine) -> None:
    ended = cli("monitor", "--replay", FEED, "--once", "--json")
    board = json.loads(ended.out)
    assert ended.out.count("\n") == 1
    assert {row["name"] for row in board["targets"]} == {row.name for row in board_of(recorded()).targets}
    assert board["hub"]["acceptance"]["survival"]
    assert board["events"]


@pytest.mark.parametrize("once", [["--once"], ["--speed", 1000]])
def test_json_has_the_targets_that_are_wanted_in_their_order(cli: CommandLine, once: list[object]) -> None:
    def names(*arguments: object) -> list[str]:
        last = cli("monitor", "--replay", FEED, *once, "--json", *arguments).out.splitlines()[-1]
        return [row["name"] for row in json.loads(last)["targets"]]

    assert names("--filter", "NANO") == ["nano-1", "nano-2"]
    assert names("--filter", "no such target") == []
    by_rtt = names("--sort", "rtt")
    assert sorted(by_rtt) == names()
    assert by_rtt != names()


def test_lines_come_once_a_second_of_the_hub(cli: CommandLine) -> None:
    ended = cli("monitor", "--replay", FEED, "--speed", 1000)
    lines = ended.out.splitlines()
    seconds = recorded()[-1].facts.uptime_s - recorded()[0].facts.uptime_s
    assert seconds * 0.6 <= len(lines) <= seconds + 1
    assert all("busy" in line and "drafts/s" in line for line in lines)
    objects = cli("monitor", "--replay", FEED, "--speed", 1000, "--json").out.splitlines()
    assert len([json.loads(line) for line in objects]) == len(lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["http://desk:8317"], "not the address of a hub"),
        (["ws://user:secret@desk:8317"], "must not hold a secret"),
        (["--replay", "/nowhere/feed.jsonl"], "cannot replay"),
        (["--replay", __file__], "line 1 of"),
        (["--replay", str(FEED), "--record", "x"], "leave out --record"),
        (["--replay", str(FEED), "--speed", "0"], "--speed"),
        (["--token-file", "/nowhere/token"], "cannot be read"),
        (["--once", "--record", "/nowhere/feed.jsonl"], "cannot record"),
        (["ws://127.0.0.1:9", "--once"], "no hub: "),
        (["ws://no-such-host.invalid:8317", "--once"], "no hub: "),
    ],
)
def test_wrong_input_is_one_clear_line(cli: CommandLine, arguments: list[str], words: str) -> None:
    assert words in cli.refused("monitor", *arguments)


def test_keys_work_on_a_terminal_and_it_is_left_as_it_was() -> None:
    terminal = Terminal("monitor", "--replay", str(FEED), "--speed", "1000")
    terminal.until(lambda shown: "the recording has ended" in shown)
    terminal.press(b"?")
    terminal.until(lambda shown: "why rounds go without the hub" in shown)
    terminal.press(b"?\x1b[B\r")
    terminal.until(lambda shown: "wait in the queue" in shown)
    terminal.press(b"q")
    assert terminal.end() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_the_terminal_as_it_was(number: signal.Signals, code: int) -> None:
    terminal = Terminal("monitor", "--replay", str(FEED), "--speed", "1000")
    terminal.until(lambda shown: "the recording has ended" in shown)
    terminal.process.send_signal(number)
    assert terminal.end() == code


async def test_a_signal_ends_the_lines_without_a_trace() -> None:
    async with running_hub() as hub:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "starsd_edge.cli",
            "monitor",
            hub.url,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": PATHS},
        )
        assert process.stdout is not None
        assert b"busy" in await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        _, errors = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert (process.returncode, errors) == (143, f"{hub.url}: live\n".encode())
