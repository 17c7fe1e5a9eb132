"""`starsd-edge serve` as a process and as a command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from starsd_edge.running import running_commands
from tests.support.command_line import CommandLine
from tests.support.letter_bundle import write_bundle
from tests.support.letter_program import start
from tests.support.scripted_hub import ScriptedHub
from tests.support.served import DEADLINE_S

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("bundles") / "bundle", TEMPLATE)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@contextmanager
def running(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command on the numpy engine, and the address that it says it listens on."""
    process = start("serve", *arguments, "--port", 0)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield process, line.split()[2] if line else ""
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def get(url: str, key: str) -> dict[str, object]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:  # noqa: S310
        body: dict[str, object] = json.load(response)
    return body


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_it_says_where_it_listens_and_ends_in_peace(
    bundle: Path, cache: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# of the kitchen\nfirst\n\nsecond\n")
    keys.chmod(0o600)
    with (
        ScriptedHub() as hub,
        running(
            bundle,
            "--api-keys",
            keys,
            "--host",
            "0.0.0.0",  # noqa: S104
            "--model-name",
            "mine",
            "--hub",
            hub.url,
            "--require-hub",
        ) as (process, url),
    ):
        here = url.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        assert get(f"{here}/models", "second")["data"][0]["id"] == "mine"  # type: ignore[index]
        assert get(here.replace("/v1", "/health"), "")["hub"] == "up"
        (listed,) = running_commands()
        assert (listed.pid, listed.command, listed.bundles) == (process.pid, "serve", [str(bundle)])
        assert (listed.place, listed.hub) == (url, hub.url)
        process.send_signal(number)
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == code
        assert "Traceback" not in errors
        assert "GET /v1/models: 200" in errors
        assert "second" not in errors
        assert running_commands() == []


def test_an_address_that_others_can_reach_needs_keys(cli: CommandLine, bundle: Path, tmp_path: Path) -> None:
    line = cli.refused("serve", bundle, "--host", "0.0.0.0")  # noqa: S104
    assert "give --api-keys FILE" in line
    empty = tmp_path / "keys"
    empty.write_text("# nothing\n")
    empty.chmod(0o600)
    assert "holds no key" in cli.refused("serve", bundle, "--api-keys", empty)
    empty.write_text("good\nnot good\n")
    assert "line 2" in cli.refused("serve", bundle, "--api-keys", empty)
    empty.chmod(0o644)
    assert "chmod 600" in cli.refused("serve", bundle, "--api-keys", empty)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--port", "99999"), "99999 is no port"),
        (("--cors-origin", "chat.example"), "an origin like https://chat.example"),
        (("--model-name", ""), "must not be empty"),
        (("--hub", "desk/8 "), "is not the address of a hub"),
        (("--require-hub",), "need --hub"),
        (("--device", "abacus"), "abacus"),
    ],
)
def test_a_wrong_option_is_one_line(cli: CommandLine, bundle: Path, arguments: tuple[str, ...], said: str) -> None:
    assert said in cli.refused("serve", bundle, *arguments)


def test_without_its_libraries_it_says_what_to_install(
    cli: CommandLine, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("starlette", "starsd_jetson.serve"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert "[serve]" in cli.refused("serve", bundle)
