"""`starsd-edge run-draft` as a user meets it."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from starsd_edge.cli.main import run
from starsd_edge.protocol.messages import TICKET_HEADER
from starsd_edge.running import running_commands
from tests.support.hub_client import HubClient, connect_to, http_get
from tests.support.letter_bundle import write_bundle

REPO = Path(__file__).resolve().parents[2]
PATIENCE_S = 60


@contextmanager
def run_draft(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command as a process of its own, and the line that says where it listens."""
    paths = os.pathsep.join(str(REPO / part) for part in (".", "export", "server", "jetson"))
    process = subprocess.Popen(
        [sys.executable, "-c", "from starsd_edge.cli.main import main; main()", "run-draft", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line with which the command refuses to start."""
    assert run(["run-draft", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    assert said.startswith("error: ")
    return said


def write_token(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    "shape", ["some", "16x5x2", "fixed:", "fixed:5", "fixed:2x5x1", "fixed:4096x5x1", "fixed:5x5x0"]
)
def test_a_draft_shape_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], shape: str) -> None:
    assert "--draft-shape" in fails(capsys, "--draft-shape", shape)


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
async def test_it_says_where_it_listens_serves_and_ends_with_zero(
    signal_number: int, cache: Path, tmp_path: Path
) -> None:
    token = write_token(tmp_path / "token", "open-sesame\n")
    with run_draft("--port", "0", "--token-file", str(token)) as (process, line):
        url, drafter = line.removeprefix("listening on ").split()
        assert drafter == "drafter=ngram"
        assert url.startswith("ws://127.0.0.1:")
        assert [(each.pid, each.command, each.place) for each in running_commands()] == [
            (process.pid, "run-draft", url)
        ]
        assert (await http_get(int(url.rpartition(":")[2]), "/healthz", {}))[0] == 200
        async with connect_to(url, "open-sesame") as websocket:
            client = HubClient(websocket)
            await client.introduce(target="spoke")
            tag = await client.open([1, 2, 3])
            assert (await client.draft(tag, 1, [1, 2, 3, 1, 2], new=4)).ids == [3, 1, 2, 3]
            process.send_signal(signal_number)
            with pytest.raises(ConnectionClosed) as ended:
                await client.receive()
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == 1001
        assert process.wait(PATIENCE_S) == 0
        assert running_commands() == []
        assert process.stderr is not None
        log = process.stderr.read()
        assert "spoke" in log
        assert "open-sesame" not in log
        assert "Traceback" not in log


async def test_it_takes_keys_a_policy_and_a_batch(tmp_path: Path) -> None:
    write_token(tmp_path / "kitchen.token", "open-sesame\n")
    keys = tmp_path / "keys.toml"
    keys.write_text('[kitchen]\ntoken-file = "kitchen.token"\nweight = 3\n')
    with run_draft("--port", "0", "--keys", str(keys), "--policy", "drr", "--max-batch", "4") as (_, line):
        port = int(line.split()[2].rpartition(":")[2])
        assert (await http_get(port, "/status", {}))[0] == 401
        code, body = await http_get(port, "/status", {"Authorization": "Bearer open-sesame"})
    facts = msgspec.json.decode(body)
    assert (code, facts["policy"], facts["batches"]["most"]) == (200, "drr", 4)


async def test_with_dedicated_isolation_a_target_is_served_at_a_port_of_the_range(tmp_path: Path) -> None:
    token = write_token(tmp_path / "token", "open-sesame\n")
    first = random.randrange(20_000, 32_000)
    ports = f"{first}-{first + 9}"
    own = ["--isolation", "dedicated", "--port-range", ports, "--log-level", "debug"]
    with run_draft("--port", "0", "--token-file", str(token), *own) as (process, line):
        _, _, url, drafter, told = line.split()
        assert (drafter, told) == ("drafter=ngram", f"ports={ports}")
        async with connect_to(url, "open-sesame") as websocket:
            welcome = await HubClient(websocket).introduce(dedicated=True)
        assert first <= welcome.port < first + 10
        headers = {"Authorization": "Bearer open-sesame", TICKET_HEADER: welcome.ticket}
        async with connect_to(f"ws://127.0.0.1:{welcome.port}", additional_headers=headers) as websocket:
            client = HubClient(websocket)
            await client.introduce(target="spoke", dedicated=True)
            assert await client.open([1, 2, 3])
            process.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed):
                await client.receive()
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        log = process.stderr.read()
        assert f"on port {welcome.port}" in log
        assert welcome.ticket not in log
        assert "open-sesame" not in log
        assert "Traceback" not in log


def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = fails(capsys, "--port", str(port))
    assert f"port {port} on 127.0.0.1 is in use" in said
    assert "--port" in said


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])  # noqa: S104
def test_an_address_others_can_reach_needs_a_token(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--token-file" in fails(capsys, "--host", host, "--port", "0")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--port", "0", "--host", "no.such.host.invalid"], "not known"),
        (["--port", "0", "--host", ""], "--host is empty"),
        (["--port", "70000"], "70000 is no port"),
        (["--drafter", "causal-lm"], "needs a model"),
        (["--drafter", "ngram", "bundle"], "uses no model"),
        (["--drafter", "eagle"], "eagle"),
        (["--max-sessions", "0"], "at least one session, not 0"),
        (["--resume-grace", "nan"], "--resume-grace"),
        (["--resume-grace", "inf"], "--resume-grace is a number of seconds, not inf"),
        (["--resume-grace", "-1"], "--resume-grace"),
        (["--log-format", "xml"], "'xml' is not one of 'text', 'json'"),
        (["--isolation", "dedicated", "--port-range", "9000"], "write --port-range like 9000-9099"),
        (["--isolation", "dedicated", "--port-range", "9099-9000"], "the lower one first"),
        (["--isolation", "dedicated", "--port-range", "0-10"], "from 1 to 65535"),
        (["--isolation", "dedicated", "--port-range", "65000-65536"], "from 1 to 65535"),
        (["--isolation", "dedicated", "--port-range", "1000-9999"], "9000 ports: a hub takes at most 1024"),
        (["--isolation", "dedicated", "--port-range", "9000-\u0663"], "write --port-range like"),
        (["--policy", "lifo"], "'lifo' is not one of 'latency', 'drr', 'fifo', 'srf'"),
        (["--max-batch", "0"], "--max-batch"),
        (["--keys", "no/such/file"], "no/such/file cannot be read"),
        (["--port-range", "9000-9099"], "is for --isolation dedicated"),
    ],
)
def test_what_cannot_work_is_one_line(arguments: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert what in fails(capsys, *arguments)


def test_an_address_of_another_machine_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = write_token(tmp_path / "token", "open-sesame")
    said = fails(capsys, "--host", "192.0.2.1", "--port", "0", "--token-file", str(token))
    assert "192.0.2.1 is no address of this machine" in said


def test_a_precision_for_a_model_is_refused_and_not_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = write_bundle(tmp_path / "letters")
    said = fails(capsys, str(bundle), "--port", "0", "--draft-precision", "float16")
    assert f"--draft-precision is for draft heads, and {bundle} is a model" in said


def test_an_unknown_bundle_is_one_line_and_frees_the_port(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run-draft", "./no/such/bundle", "--port", "0"]) == 1
    assert "starsd-edge export" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "mode", "what"),
    [
        ("", 0o600, "is empty"),
        (" \n", 0o600, "is empty"),
        ("secret", 0o640, "chmod 600"),
        ("secret", 0o604, "chmod 600"),
        ("secret one", 0o600, "one token"),
        ("secret\none", 0o600, "one token"),
        ("schlüssel", 0o600, "one token"),
        ("s" * 5000, 0o600, "one token"),
    ],
)
def test_a_token_file_must_hold_one_token_for_its_owner_alone(
    text: str, mode: int, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_token(tmp_path / "token", text, mode)
    said = fails(capsys, "--port", "0", "--token-file", str(path))
    assert what in said
    assert "secret" not in said


def test_a_token_file_that_cannot_be_read_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot be read" in fails(capsys, "--port", "0", "--token-file", str(tmp_path / "none"))
    assert "cannot be read" in fails(capsys, "--port", "0", "--token-file", str(tmp_path))
