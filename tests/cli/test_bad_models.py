"""Wrong models, bundles, hubs and disks: one line that says what to do, nothing left.

What opens no socket, fills no disk and fetches nothing runs in this process: a new one imports torch for each command.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from starsd_edge.bundles.bundle import Bundle
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.export

PROGRAM = (sys.executable, "-m", "starsd_edge.cli")
SLOW_DISK = """
import sys
import starsd_export.pipeline as pipeline
from starsd_edge.cli.main import run
pipeline.require_room = lambda *arguments: None  # as if the space had been there when it was asked for
sys.exit(run(sys.argv[1:]))
"""


@dataclass
class Program:
    """The program with a cache of its own."""

    cache: Path
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*PROGRAM, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "STARSD_CACHE": str(self.cache), "PIP_NO_INDEX": "1", **self.environment},
        )

    def refused(self, *arguments: object) -> str:
        """The one line with which it refuses."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        assert process.returncode != 0, (out, err)
        return only_line(out, err)


def only_line(out: str, err: str) -> str:
    assert out == "", out
    lines = [line for line in err.splitlines() if not line.startswith(("export: ", "fetching "))]  # its steps
    assert len(lines) == 1, err
    assert lines[0].startswith("error: "), err
    return lines[0]


def files_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.suffix != ".lock")


@pytest.fixture(scope="module")
def tiny(tiny_bundles: dict[str, Bundle], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tiny checkpoint in both layouts and its bundle."""
    from tests.support.tiny_llama import write_gguf, write_safetensors

    place = tmp_path_factory.mktemp("tiny")
    write_safetensors(place / "tiny")
    write_gguf(place / "tiny.gguf")
    shutil.copytree(tiny_bundles["fp32"].path, place / "bundle")
    return place


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """Nothing a refused command does may leave a trace in the cache."""
    program = Program(tmp_path / "cache")
    yield program
    assert files_below(program.cache) in ([], ["models"])


@pytest.fixture
def refused(cli: CommandLine, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """The one line with which the program refuses in this process, again without a trace in its cache."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    def line(*arguments: object) -> str:
        ended = cli(*arguments)
        assert ended.code != 0, ended
        return only_line(ended.out, ended.err)

    yield line
    assert files_below(cache) in ([], ["models"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["pull", "no-such-model"], "known: smollm2-135m"),
        (["export", "no-such-model"], "known: smollm2-135m"),
        (["export", "./missing.gguf"], "no file or directory there"),
        (["export", "{place}/bundle"], "it is a bundle already"),
        (["export", "{place}"], "give the GGUF file itself, {place}/tiny.gguf"),
        (["export", "{place}/tiny/tokenizer.json"], "is no GGUF file"),
        (["export", "{place}/tiny.gguf", "--weights", "fp23"], "--weights is fp32 or int8, not 'fp23'"),
        (["export", "{place}/tiny.gguf", "--kv", "fp8"], "--kv is float16 or float32, not 'fp8'"),
        (["export", "{place}/tiny.gguf", "--output", "{place}"], "holds files and no bundle"),
        (["export", "{place}/tiny.gguf", "--output", "{place}/tiny.gguf"], "name a directory, or move the file away"),
        (["export", "{place}/tiny.gguf", "--draft-head", "{place}/missing"], "no head at {place}/missing"),
        (["train-draft", "{place}/tiny", "--output", "{place}/tiny.gguf"], "name a directory for the head"),
        (["train-draft", "{place}/tiny", "--output", "{place}/tiny"], "holds files and no head"),
        (["train-draft", "{place}/tiny", "--output", "{place}/head", "--data", "missing"], "cannot read missing"),
        (["run-target", "{place}/tiny", "--prompt", "x"], "`starsd-edge export {place}/tiny` makes one"),
        (["run-target", "{place}/tiny.gguf", "--prompt", "x"], "`starsd-edge export {place}/tiny.gguf` makes one"),
    ],
)
def test_what_is_no_model_or_no_bundle(
    refused: Callable[..., str], tiny: Path, arguments: Sequence[str], says: str
) -> None:
    line = refused(*(argument.format(place=tiny) for argument in arguments))
    assert says.format(place=tiny) in line


def test_no_network_and_nothing_in_the_cache(program: Program) -> None:
    program.environment = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    process = program.start("export", "smollm2-135m")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "check the index" in only_line(out, err)
    assert err.startswith("fetching smollm2-135m: ")


def test_a_gguf_that_was_cut_short(refused: Callable[..., str], tiny: Path, tmp_path: Path) -> None:
    data = (tiny / "tiny.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(data[: len(data) // 2])
    assert str(cut) in refused("export", cut)


def test_pickles(refused: Callable[..., str], tmp_path: Path) -> None:
    checkpoint = tmp_path / "model.bin"
    checkpoint.write_bytes(b"\x80\x04cos\nsystem\n")
    assert "pickle" in refused("export", checkpoint)
    directory = tmp_path / "published"
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "llama"}')
    shutil.copy(checkpoint, directory / "pytorch_model.bin")
    assert "pickled weights must be converted to safetensors" in refused("export", directory)


def test_a_bundle_that_was_altered(refused: Callable[..., str], tiny: Path, tmp_path: Path) -> None:
    altered = shutil.copytree(tiny / "bundle", tmp_path / "altered")
    weights = altered / "model.onnx.data"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    for command in (["run-target", altered, "--prompt", "x"], ["run-draft", altered, "--port", "0"]):
        assert "model.onnx.data is not the file that was exported" in refused(*command)


def test_a_prompt_longer_than_the_context(refused: Callable[..., str], tiny: Path) -> None:
    line = refused("run-target", tiny / "bundle", "--context", "8", "--prompt", "one two three four five " * 9)
    assert "8" in line


def test_a_port_in_use(program: Program, tiny: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = program.refused("run-draft", tiny / "bundle", "--port", port, "--log-level", "warning")
    assert str(port) in line


def test_a_hub_that_cannot_be_reached(program: Program, tiny: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"ws://127.0.0.1:{port}"
    line = program.refused("run-target", tiny / "bundle", "--hub", url, "--require-hub", "--prompt", "x")
    assert url in line


def test_a_wrong_token(program: Program, tiny: Path, tmp_path: Path) -> None:
    for name in ("right", "wrong"):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(f"{name}-secret\n")
    hub = program.start("run-draft", "--port", "0", "--token-file", tmp_path / "right", "--log-level", "error")
    try:
        assert hub.stdout is not None
        url = hub.stdout.readline().split()[2]
        target = ["run-target", tiny / "bundle", "--hub", url, "--require-hub", "--prompt", "x"]
        line = program.refused(*target, "--token-file", tmp_path / "wrong")
        assert "token" in line
        assert "secret" not in line
        assert "token" in program.refused(*target)
    finally:
        hub.terminate()
        hub.communicate()


def test_a_disk_that_fills_up_during_an_export(program: Program, tiny: Path, tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("not run: this user may not mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f'mount -t tmpfs -o size=200k tmpfs "$1" && shift && "$@"; code=$?; ls -A {disk} && exit $code'
    export = [sys.executable, "-c", SLOW_DISK, "export", str(tiny / "tiny"), "--output", str(disk / "bundle")]
    process = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", str(disk), *export],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "STARSD_CACHE": str(program.cache)},
    )
    assert process.returncode == 1, process.stderr
    assert process.stdout == "", "something is left on the disk"
    last = process.stderr.splitlines()[-1]
    assert last.startswith("error: the disk is full"), process.stderr
