"""Every way a command can end is an exit code and at most one line."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn

import pytest
import typer

import starsd_edge
from starsd_edge.cli import main
from starsd_edge.errors import EngineError, StarsdError, UsageError
from tests.support.command_line import CommandLine


@pytest.fixture
def fail_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Put a command `fail` on the command line that raises what it is given."""

    def install(error: BaseException) -> None:
        def fail() -> NoReturn:
            raise error

        def build() -> typer.Typer:
            app = typer.Typer()
            app.callback()(lambda: None)
            app.command("fail")(fail)
            return app

        monkeypatch.setattr(main, "build_app", build)

    return install


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (StarsdError("it broke"), 1, "error: it broke"),
        (EngineError("two\nlines"), 1, "error: two lines"),
        (UsageError("not like this"), 2, "error: not like this"),
        (ModuleNotFoundError("x", name="onnxruntime.capi"), 1, "pip install '.[cpu]'"),
        (ModuleNotFoundError("x", name="prometheus_client"), 1, "pip install '.[server]'"),
        (OSError(errno.ENOSPC, "No space left on device", "/disk/file"), 1, "the disk is full (/disk/file)"),
        (OSError(errno.EIO, "Input/output error", "/dev/sda"), 1, "Input/output error (/dev/sda)"),
        (PermissionError(errno.EACCES, "Permission denied", "/root/x"), 1, "Permission denied (/root/x)"),
    ],
)
def test_what_a_user_can_mend_is_one_line(
    cli: CommandLine, fail_with: Callable[[BaseException], None], error: BaseException, code: int, line: str
) -> None:
    fail_with(error)
    assert line in cli.refused("fail")
    assert cli("fail").code == code


@pytest.mark.parametrize(
    "error", [ValueError("ours"), RecursionError("deep"), ModuleNotFoundError("x", name="starsd_edge.lost")]
)
def test_a_fault_of_ours_is_a_line_and_its_traceback_can_be_had(
    cli: CommandLine,
    fail_with: Callable[[BaseException], None],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    fail_with(error)
    monkeypatch.delenv("STARSD_TRACEBACK", raising=False)
    assert "STARSD_TRACEBACK=1" in cli.refused("fail")
    monkeypatch.setenv("STARSD_TRACEBACK", "1")
    with pytest.raises(type(error)):
        cli("fail")


def test_control_c_is_130_and_quiet(cli: CommandLine, fail_with: Callable[[BaseException], None]) -> None:
    fail_with(KeyboardInterrupt())
    ended = cli("fail")
    assert (ended.code, ended.out, ended.err) == (130, "", "")


def test_no_command_shows_the_help(cli: CommandLine) -> None:
    ended = cli()
    assert ended.code == 2
    assert "Usage: starsd-edge" in ended.out
    assert ended.err == ""


def test_help_and_version(cli: CommandLine) -> None:
    ended = cli("--help")
    assert ended.code == 0
    assert "pull" in ended.out
    assert cli("-h").out == ended.out
    assert cli("--version").out == f"starsd-edge {starsd_edge.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "place"),
    [(("puil", "x"), "starsd-edge"), (("pull", "--lsit"), "starsd-edge pull"), (("--verbose",), "starsd-edge")],
)
def test_arguments_that_do_not_parse_are_one_line(cli: CommandLine, arguments: tuple[str, ...], place: str) -> None:
    assert f"`{place} --help`" in cli.refused(*arguments)
    assert cli(*arguments).code == 2


def test_every_command_is_listed_and_has_help(cli: CommandLine) -> None:
    names = [name.removesuffix(".command").replace("_", "-") for name in main.COMMAND_MODULES if name != "cached"]
    names += ["list", "rm"]  # of the module "cached"
    listed = cli("--help").out
    for name in names:
        assert f" {name} " in listed
        ended = cli(name, "--help")
        assert ended.code == 0
        assert f"Usage: starsd-edge {name}" in ended.out


WAIT = """
import sys, time
from starsd_edge.cli import main
import typer
def build():
    app = typer.Typer()
    app.callback()(lambda: None)
    @app.command()
    def wait():
        try:
            print("waiting", flush=True)
            time.sleep(60)
        finally:
            print("cleaned up", flush=True)
    return app
main.build_app = build
sys.argv = ["starsd-edge", "wait"]
main.main()
"""


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_a_command_through_its_cleaning_up(how: signal.Signals, code: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAIT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as it:
        assert it.stdout is not None
        assert it.stdout.readline() == "waiting\n"
        it.send_signal(how)
        out, err = it.communicate()
    assert (it.returncode, out, err) == (code, "cleaned up\n", "")


@pytest.mark.parametrize("size", ["9" * 400, "100000000000", "0", "-1", "x", "\u0663"])
def test_a_size_of_the_terminal_that_none_has_is_no_fault(size: str) -> None:
    environment = {**os.environ, "COLUMNS": size, "LINES": size}
    command = [sys.executable, "-m", "starsd_edge.cli", "config", "path", "--help"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Usage" in ended.stdout


def test_a_reader_that_leaves_early_is_no_failure_to_report() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", "from starsd_edge.cli.main import main; main()", "pull", "--list"]
    result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("redirection", "code", "says"),
    [
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        ("2>/dev/full", 0, ""),
        (">/dev/full", 1, "error: standard output cannot be written (No space left on device): what is missing"),
        (">/dev/full 2>/dev/full", 1, ""),
    ],
)
def test_a_stream_that_is_closed_or_full_is_named_and_changes_no_answer(redirection: str, code: int, says: str) -> None:
    command = f"{sys.executable} -m starsd_edge.cli --version {redirection}"
    ended = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == code
    assert ended.stderr.startswith(says)
    assert len(ended.stderr.splitlines()) == bool(says)
