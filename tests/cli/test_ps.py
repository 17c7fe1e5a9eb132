"""`starsd-edge ps`: what runs on this machine, and that nothing is removed while it is used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from starsd_edge.cli import ps
from starsd_edge.running import RunningCommand, listed, pid_namespace, running_commands, running_dir
from tests.support.command_line import CommandLine
from tests.support.letter_bundle import write_bundle

WAITS = """
import sys
from pathlib import Path
from starsd_edge.running import listed
with listed(sys.argv[1], [Path(each) for each in sys.argv[3:]], place=sys.argv[2]):
    print("listed", flush=True)
    sys.stdin.read()
"""


@contextmanager
def running(command: str, place: str, *bundles: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that is listed until its input ends."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    script = [sys.executable, "-c", WAITS, command, place, *map(str, bundles)]
    with subprocess.Popen(script, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listed\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def letters(cache: Path) -> Path:
    """A bundle in the cache."""
    (cache / "bundles").mkdir(parents=True)
    write_bundle(cache / "bundles" / "letters")
    return cache / "bundles" / "letters"


def test_what_runs_is_listed_until_it_ends_however_it_does(cli: CommandLine, letters: Path) -> None:
    nothing = "nothing of starsd-edge runs here with this cache\n"
    assert cli("ps").out == nothing
    with running("serve", "http://127.0.0.1:8318/v1", letters) as process:
        head, line = cli("ps").out.splitlines()
        assert head.split() == ["pid", "command", "bundle", "address", "for", "memory"]
        assert line.split()[:4] == [str(process.pid), "serve", "letters", "http://127.0.0.1:8318/v1"]
        (told,) = json.loads(cli("ps", "--json").out)["running"]
        assert (told["pid"], told["bundles"]) == (process.pid, [str(letters)])
        assert told["memory_bytes"] > 1 << 20
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert cli("ps").out == nothing
    directory = running_dir()
    assert directory is not None
    assert list(directory.iterdir()) == [], "what the dead one left is gone"
    assert directory.stat().st_mode & 0o777 == 0o700


def test_what_is_used_is_not_removed_unless_that_is_asked_for(cli: CommandLine, letters: Path) -> None:
    with running("run-draft", "ws://127.0.0.1:8317", letters) as process:
        refused = cli.refused("rm", "letters", "--yes")
        assert f"letters is used by run-draft (process {process.pid}): end it first, or give --force" in refused
        assert letters.exists()
        assert cli("rm", "letters", "--yes", "--force").code == 0
        assert not letters.exists()


def test_a_bundle_that_is_used_through_a_link_is_used(cli: CommandLine, letters: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(letters)
    with running("serve", "", link):
        assert "letters is used by serve" in cli.refused("rm", "letters", "--yes")


def test_a_command_within_a_command_is_listed_once(cache: Path) -> None:
    with listed("run", hub="desk", clock=lambda: 5.0), listed("run-target"):
        (only,) = running_commands()
        assert (only.command, only.hub, only.pid, only.since) == ("run", "desk", os.getpid(), 5.0)
    assert running_commands() == []


@pytest.mark.parametrize(
    "hub", ["ws://me:secret@desk:8317", "ws://desk:8317/x?token=secret", "me:s@secret@desk:8317#s"]
)
def test_a_secret_in_an_address_is_written_nowhere(cache: Path, hub: str) -> None:
    with listed("run-target", hub=hub):
        directory = running_dir()
        assert directory is not None
        (file,) = directory.iterdir()
        assert "secret" not in file.read_text()
        assert running_commands()[0].hub.endswith("desk:8317")
        assert file.stat().st_mode & 0o777 == 0o600


COMMANDS = [
    RunningCommand(
        pid=4194304,
        command="run-target",
        bundles=["/b/smollm2-135m-tensorrt-int8-calibration-own-text"],
        hub="ws://a-hub-with-a-long-name.workshop.example:8317",
        since=0.0,
    ),
    RunningCommand(
        pid=7, command="serve", bundles=["/b/x"], place="http://[::1]:8318/v1", hub="ws://desk:8317", since=0
    ),
    RunningCommand(pid=8, command="export", model="/models/some-model.gguf", since=7100.0),
]


def test_nothing_is_left_out_in_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    ps.show(COMMANDS, lambda: 7200.0, as_json=False)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    for word in ("4194304", "run-target", "2 h", "2 min", "-text", "le:8317", "some-model.gguf", "hub ws://desk:8317"):
        assert word in shown


def test_memory_is_that_of_a_process_that_is_counted_here() -> None:
    with_us = RunningCommand(pid=os.getpid(), pids=pid_namespace(), command="x", since=0)
    in_a_container = RunningCommand(pid=os.getpid(), pids="pid:[1]", command="x", since=0)
    assert (ps.resident_bytes(with_us) or 0) > 1 << 20
    assert ps.resident_bytes(in_a_container) is None


def test_files_that_are_none_of_ours_are_left_out(cache: Path) -> None:
    with listed("run"):
        directory = running_dir()
        assert directory is not None
        (directory / "link.json").symlink_to("/etc/passwd")
        os.mkfifo(directory / "pipe.json")
        assert [record.command for record in running_commands()] == ["run"]


def test_without_a_cache_that_can_be_written_commands_run(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write_text("no directory")
    with listed("run"):
        assert running_commands() == []
    monkeypatch.delenv("STARSD_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    with listed("run"):
        assert running_commands() == []


def test_a_control_character_reaches_no_terminal(cli: CommandLine, letters: Path) -> None:
    with running("run-target", "ws://desk\x1b[2J"):
        assert "\x1b" not in cli("ps").out
