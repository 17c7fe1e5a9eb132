"""Directories are whole or not there, whatever interrupts their making."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from starsd_edge.bundles import integrity
from starsd_edge.bundles.integrity import hash_files, require_free_space, sha256_file, staged_directory
from starsd_edge.errors import StarsdError, UsageError

BUILD_AND_WAIT = """
import sys, time
from pathlib import Path
from starsd_edge.bundles.integrity import staged_directory
with staged_directory(Path(sys.argv[1])) as staging:
    (staging / "half").write_text("half")
    print("building", flush=True)
    sys.stdin.readline()
"""


def contents(directory: Path) -> dict[str, str]:
    return {path.relative_to(directory).as_posix(): path.read_text() for path in directory.rglob("*") if path.is_file()}


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def start_builder(target: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILD_AND_WAIT, str(target)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "building\n"
    return process


def end(process: subprocess.Popen[str], how: signal.Signals) -> None:
    process.send_signal(how)
    process.communicate()


def test_what_was_built_appears_whole_and_alone(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "bundle"
    with staged_directory(target) as staging:
        (staging / "sub").mkdir()
        (staging / "sub" / "a").write_text("1")
        assert not target.exists()
    assert contents(target) == {"sub/a": "1"}
    assert names_in(target.parent) == ["bundle"]


@pytest.mark.parametrize("interruption", [RuntimeError("boom"), KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_an_interrupted_build_leaves_what_was_there(tmp_path: Path, interruption: BaseException) -> None:
    target = tmp_path / "bundle"
    target.mkdir()
    (target / "old").write_text("old")
    with pytest.raises(type(interruption)), staged_directory(target) as staging:  # noqa: PT012
        (staging / "new").write_text("new")
        raise interruption
    assert contents(tmp_path) == {"bundle/old": "old"}


def test_a_full_disk_at_the_last_moment_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="full"), staged_directory(tmp_path / "bundle") as staging:
        (staging / "a").write_text("1")
    assert names_in(tmp_path) == []


def test_a_write_that_fails_without_a_reason_is_told_as_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(StarsdError, match="the disk is full, or fails"), staged_directory(tmp_path / "bundle"):
        raise OSError("4096 requested and 0 written")  # numpy's tofile
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("has_exchange", [True, False])
def test_an_existing_directory_is_replaced_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_exchange: bool
) -> None:
    if not has_exchange:
        monkeypatch.setattr(integrity, "_exchange", integrity._replace_in_two_steps)
    target = tmp_path / "bundle"
    for generation in ("1", "2"):
        with staged_directory(target) as staging:
            (staging / generation).write_text(generation)
    assert contents(tmp_path) == {"bundle/2": "2"}


def test_a_reader_never_finds_the_directory_missing_while_it_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    missing = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                target.stat()
            except FileNotFoundError:
                missing.append(1)

    with staged_directory(target):
        pass
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for generation in range(50):
            with staged_directory(target) as staging:
                (staging / str(generation)).touch()
    finally:
        done.set()
        reader.join()
    assert not missing


def test_leavings_of_a_killed_process_are_removed_by_the_next_one(tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    end(start_builder(target), signal.SIGKILL)
    assert len(names_in(tmp_path)) == 1
    with staged_directory(target) as staging:
        (staging / "a").write_text("1")
    assert contents(tmp_path) == {"bundle/a": "1"}


def test_work_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    other = start_builder(target)
    with staged_directory(target) as staging:
        (staging / "mine").write_text("1")
    assert contents(target) == {"mine": "1"}
    _, errors = other.communicate("\n")
    assert other.returncode == 0, errors
    assert contents(tmp_path) == {"bundle/half": "half"}


def test_control_c_leaves_nothing(tmp_path: Path) -> None:
    end(start_builder(tmp_path / "bundle"), signal.SIGINT)
    assert names_in(tmp_path) == []


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "bundle").write_text("a file")
    with pytest.raises(UsageError, match="is a file"), staged_directory(tmp_path / "bundle"):
        pass
    with pytest.raises(UsageError, match="cannot write to"), staged_directory(tmp_path / "bundle" / "below"):
        pass
    assert contents(tmp_path) == {"bundle": "a file"}


def test_hashes_are_those_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    big = bytes(3_000_001)
    (tmp_path / "sub" / "big").write_bytes(big)
    (tmp_path / "empty").touch()
    assert sha256_file(tmp_path / "sub" / "big") == hashlib.sha256(big).hexdigest()
    assert list(hash_files(tmp_path).items()) == [
        ("empty", hashlib.sha256().hexdigest()),
        ("sub/big", hashlib.sha256(big).hexdigest()),
    ]


def test_space_is_asked_of_the_nearest_directory_that_exists(tmp_path: Path) -> None:
    require_free_space(tmp_path / "not" / "yet", 1, "this")
    with pytest.raises(StarsdError, match=r"this needs .* MB at .*not/yet and .* are free"):
        require_free_space(tmp_path / "not" / "yet", 1 << 60, "this")
