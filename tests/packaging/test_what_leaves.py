"""What leaves the machine, and what is written where: hub, target, export and bench under a guard of the C library.

The guard (`tests/support/guard.c`) lets nothing out, and tells every look-up, every peer and every file opened for
writing. Libraries that are linked against the C library cannot get round it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import starsd_edge
from starsd_edge.bundles.bundle import Bundle

ROOT = Path(__file__).parents[2]
LOOKS_UP_AFTER_S = 8.0
"""ONNX Runtime 1.32 looks its vendor up about five seconds after a model was loaded."""
HARMLESS = ("/dev/", "/proc/self/")


class Guard:
    """Processes with a home, a cache and a place for output of their own, and what they told the guard."""

    def __init__(self, library: Path, place: Path) -> None:
        self.place = place
        self.home, self.cache, self.output, self.temporary = (place / name for name in ("home", "cache", "out", "tmp"))
        for directory in (self.home, self.cache, self.output, self.temporary):
            directory.mkdir()
        self.log = place / "log"
        self._library = library

    def start(self, *arguments: object, more: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """A `starsd-edge` command, or with "-c" first a program."""
        line = [str(each) for each in arguments]
        program = line if line[0] == "-c" else ["-m", "starsd_edge.cli", *line]
        return subprocess.Popen(
            [sys.executable, *program],
            cwd=self.output,
            env=self._environment() | dict(more or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: object) -> str:
        """The same to its end, which has to be a good one; what it printed."""
        process = self.start(*arguments)
        printed, _ = process.communicate(timeout=240)
        assert process.returncode == 0, printed
        return printed

    def told(self) -> list[str]:
        """Hosts that were looked up, foreign peers, and files outside the places that are ours."""
        lines = set(self.log.read_text().splitlines()) if self.log.exists() else set()
        ours = (*map(str, (self.cache, self.output, self.temporary)), *HARMLESS)
        return sorted(line for line in lines if not line.removeprefix("file ").startswith(ours))

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in starsd_edge.SWITCHES and not name.startswith(("XDG_", "STARSD_", "HF_", "TORCH", "TRITON"))
        }
        return kept | {
            "HOME": str(self.home),
            "STARSD_CACHE": str(self.cache),
            "TMPDIR": str(self.temporary),
            "LD_PRELOAD": str(self._library),
            "GUARD_LOG": str(self.log),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTHONDONTWRITEBYTECODE": "1",
        }


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guard, compiled; the tests are not run where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("not run: the guard takes a C compiler (apt install gcc libc6-dev)")
    built = tmp_path_factory.mktemp("guard") / "guard.so"
    source = ROOT / "tests" / "support" / "guard.c"
    made = subprocess.run([compiler, "-shared", "-fPIC", "-o", built, source, "-ldl"], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"not run: the guard cannot be compiled: {made.stderr.decode().splitlines()[-1]}")
    return built


@pytest.fixture
def guard(library: Path, tmp_path: Path) -> Guard:
    return Guard(library, tmp_path)


def test_the_guard_tells_a_look_up_a_peer_and_a_file(guard: Guard) -> None:
    script = (
        "import contextlib, socket, pathlib\n"
        "with contextlib.suppress(OSError): socket.create_connection(('telemetry.example', 443))\n"
        "with contextlib.suppress(OSError): socket.socket().connect(('192.0.2.1', 443))\n"
        "with contextlib.suppress(OSError): socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.2', 53))\n"
        "pathlib.Path.home().joinpath('id').write_text('x')\n"
        "pathlib.Path('mine').write_text('x')\n"
    )
    guard.run("-c", script)
    expected = [f"file {guard.home / 'id'}", "host telemetry.example", "peer 192.0.2.1", "peer 192.0.2.2"]
    assert guard.told() == expected


@contextlib.contextmanager
def listening(guard: Guard, *arguments: object) -> Iterator[str]:
    """A hub or a served target; its address."""
    process = guard.start(*arguments, "--port", 0, "--threads", 1)
    assert process.stdout is not None
    try:
        while not (line := process.stdout.readline()).startswith("listening on "):
            assert line, f"{arguments[0]} did not start"
        yield line.split()[2]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        process.stdout.close()


def say_over_http(url: str) -> None:
    """Ask a served target something."""
    body = json.dumps({"model": "mine", "prompt": "hello", "max_tokens": 4, "ignore_eos": True}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/completions", body), timeout=60) as response:  # noqa: S310
        assert json.load(response)["usage"]["completion_tokens"] == 4


def test_hub_target_and_bench_speak_to_each_other_and_write_into_their_own_places(
    guard: Guard, tiny_bundles: dict[str, Bundle]
) -> None:
    pytest.importorskip("prometheus_client")
    pytest.importorskip("starlette")
    bundle = tiny_bundles["fp32"].path
    with listening(guard, "run-draft", bundle) as url:
        began = time.monotonic()
        answer = ("run-target", bundle, "--hub", url, "--require-hub", "--max-tokens", 4, "--threads", 1, "--raw")
        guard.run(*answer, "--prompt", "hello")
        with listening(guard, "serve", bundle, "--hub", url, "--require-hub", "--model-name", "mine") as served:
            say_over_http(served)
        guard.run("monitor", url, "--once", "--json")
        guard.run("bench", "verify", bundle, "--rows", 1, "--rows", 2, "--passes", 3, "--threads", 1)
        guard.run("doctor", "--bundle", bundle, "--hub", url)
        time.sleep(max(0.0, LOOKS_UP_AFTER_S - (time.monotonic() - began)))
    assert guard.told() == []


@pytest.mark.export
def test_an_export_asks_nobody(guard: Guard) -> None:
    pytest.importorskip("torch")
    from tests.support.tiny_llama import write_safetensors

    guard.run("export", write_safetensors(guard.place / "checkpoint"), "--output", guard.output / "bundle")
    guard.run("check", guard.output / "bundle")
    assert guard.told() == []


START = "import os, sys; import {}; print(*(os.environ.get(name) for name in sys.argv[1:]))"


@pytest.mark.parametrize("package", ["starsd_edge", "starsd_server", "starsd_jetson", "starsd_export"])
def test_any_package_of_ours_tells_libraries_to_keep_quiet(package: str) -> None:
    def switches(**given: str) -> Sequence[str]:
        kept = {name: value for name, value in os.environ.items() if name not in starsd_edge.SWITCHES}
        command = [sys.executable, "-c", START.format(package), *starsd_edge.SWITCHES]
        environment = kept | given | {"PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    usual = [*starsd_edge.SWITCHES.values()]
    assert switches() == switches(DO_NOT_TRACK="") == usual
    asked_for = dict(zip(starsd_edge.SWITCHES, switches(DO_NOT_TRACK="0"), strict=True))
    assert asked_for == starsd_edge.SWITCHES | {"DO_NOT_TRACK": "0"}, "who asks for it is not overruled"
