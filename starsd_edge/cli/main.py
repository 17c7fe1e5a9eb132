"""The command line: `starsd-edge COMMAND`.

Every way a command can end becomes an exit code here: 0, a `StarsdError` (one line on standard error and its own code),
130 for Ctrl-C, 143 for SIGTERM, 141 where the reader of standard output has left. Anything else is a fault of ours: a
line too, and its traceback where STARSD_TRACEBACK is set. Command modules are imported to be registered, so they import
nothing heavy before their function runs.

Standard streams may be closed, full or broken. A closed one is /dev/null from the beginning: else the next file or
socket would get its number. What cannot be told on standard error changes no exit code; what is lost of standard output
does.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn, TextIO

import typer

from starsd_edge import CONFIG_VARIABLE, VARIABLE_PREFIX, __version__
from starsd_edge.cli.commands import TRACEBACK_VARIABLE, Settings, path_of
from starsd_edge.cli.near_misses import CommandGroup
from starsd_edge.cli.settings_files import load_settings
from starsd_edge.errors import StarsdError, UsageError, missing_extra

PROGRAM = "starsd-edge"
COMMAND_MODULES = (
    "run",
    "pull",
    "cached",
    "ps",
    "export",
    "check",
    "train_draft",
    "run_draft.command",
    "run_target.command",
    "serve.command",
    "monitor",
    "demo",
    "bench",
    "plan",
    "doctor",
    "config",
)

STANDARD_OUTPUT = "standard output"
_TERMINATED = 128 + signal.SIGTERM
_FULL = (errno.ENOSPC, errno.EDQUOT)
_READER_LEFT = 128 + signal.SIGPIPE
_SHOWN = 300
_MOST_DIGITS = 4
"""Of the number of columns or lines of a terminal."""


def main() -> NoReturn:
    """Entry point of the installed command."""
    signal.signal(signal.SIGTERM, _terminate)
    _forget_odd_sizes()
    output = _standard_streams()
    code: str | int | None = None
    try:
        code = run(sys.argv[1:])
    except SystemExit as ended:
        code = ended.code
    sys.exit(_after_output(code, output))


def _forget_odd_sizes() -> None:
    """Leave out sizes of a terminal that no terminal has: libraries that draw take any number of digits, and fail."""
    for name in ("COLUMNS", "LINES"):
        size = os.environ.get(name)
        if size is not None and not (size.isascii() and size.isdigit() and 0 < len(size.lstrip("0")) <= _MOST_DIGITS):
            del os.environ[name]


class _Stream(io.TextIOWrapper):
    """Standard output or error.

    After the first write that fails, what is still buffered and all that follows goes to /dev/null: nothing may trip
    over it again, nor the interpreter at its end. The buffer stays the library's own: one in Python writes a piece
    twice where a signal comes in between.
    """

    def __init__(self, number: int, encoding: str, *, by_line: bool) -> None:
        raw = io.FileIO(number, "wb", closefd=False)
        super().__init__(io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=by_line or raw.isatty())
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._fail(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        _discard(self.fileno(), os.O_WRONLY)


class _Output(_Stream):
    """Standard output: a failure is remembered and raised."""

    def _fail(self, error: OSError) -> None:
        super()._fail(error)
        self.failure = OSError(error.errno, error.strerror, STANDARD_OUTPUT)
        raise self.failure from None


def _standard_streams() -> _Output:
    """Make streams of the three that any command can rely on, whatever it was started with.

    Characters that an encoding lacks, and bytes of file names that are no text, are written as escapes.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            _discard(number, mode)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (a number, open to the end)
    output = _Output(1, _encoding(sys.stdout), by_line=False)
    sys.stdout, sys.stderr = output, _Stream(2, _encoding(sys.stderr), by_line=True)
    return output


def _encoding(stream: TextIO | None) -> str:
    return "utf-8" if stream is None else stream.encoding


def _discard(number: int, mode: int) -> None:
    """Make it /dev/null, also where it is closed."""
    null = os.open(os.devnull, mode)
    if null != number:
        os.dup2(null, number)
        os.close(null)


def _after_output(code: str | int | None, output: _Output) -> str | int | None:
    """The exit code, once all of standard output is written or lost."""
    with contextlib.suppress(OSError):  # it is remembered
        sys.stdout.flush()
    if output.failure is None:
        return code
    if output.failure.errno == errno.EPIPE:
        return _READER_LEFT if code in (None, 0, 1) else code
    return code or _fail(_explain(output.failure), 1)


def run(arguments: Sequence[str]) -> int:
    """Run one command and give its exit code; what went wrong is one line on standard error."""
    settings = Settings()
    try:
        code = build_app()(list(arguments), prog_name=PROGRAM, standalone_mode=False, obj=settings)
    except UsageError as error:
        return _fail(f"{error}{_elsewhere(settings)}", error.exit_code)
    except StarsdError as error:
        return _fail(str(error), error.exit_code)
    except typer.TyperException as error:  # the arguments do not parse
        return _refuse(error, settings)
    except typer.Abort:
        return _fail("aborted", 1)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except ModuleNotFoundError as error:
        remedy = missing_extra(error.name)
        return _unexpected(error) if remedy is None else _fail(remedy, 1)
    except BrokenPipeError as error:
        return _READER_LEFT if error.filename == STANDARD_OUTPUT else _fail(_explain(error), 1)
    except OSError as error:
        return _fail(_explain(error), 1)
    except Exception as error:
        return _unexpected(error)
    return code if isinstance(code, int) else 0


def build_app() -> typer.Typer:
    """The application with every command."""
    app = typer.Typer(
        name=PROGRAM,
        cls=CommandGroup,
        help="Speculative decoding in a star: one draft model on a hub speeds up language models on many devices.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name in COMMAND_MODULES:
        importlib.import_module(f"starsd_edge.cli.{name}").register(app)
    return app


def _options(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            envvar=CONFIG_VARIABLE,
            help="Take options from this TOML file instead of the usual ones (`config path`).",
            show_default=False,
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and leave.", is_eager=True, callback=lambda asked: _show_version(asked)
        ),
    ] = False,
) -> None:
    settings: Settings = context.obj
    load_settings(settings, context, config, os.environ)
    context.default_map = settings.default_map()


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"starsd-edge {__version__}")
        raise typer.Exit


def _refuse(error: typer.TyperException, settings: Settings) -> int:
    message = error.format_message().replace("Value error, ", "")  # says nothing to a user
    if not message:  # no command was named and typer has shown the help
        return error.exit_code
    context = getattr(error, "ctx", None)
    command = context.command_path if context else PROGRAM
    origin = _origin(error, settings)
    if origin is not None:
        return _fail(f"{message.rstrip('.')} (set in {origin})", error.exit_code)
    return _fail(f"{message} (`{command} --help` lists what there is)", error.exit_code)


def _origin(error: typer.TyperException, settings: Settings) -> str | None:
    """Where a wrong value is from, if not from the command line."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if context is None or parameter is None:
        return None
    path = path_of(context)
    origin = settings.origin(path, parameter.name)
    source = context.get_parameter_source(parameter.name)
    if origin is None or source is None or source.name != "DEFAULT_MAP":
        return None
    return origin if origin.startswith(VARIABLE_PREFIX) else f"{origin}, [{'.'.join(path)}]"


def _elsewhere(settings: Settings) -> str:
    """Whoever did not give an option on the command line is told where else it may be from."""
    origins = settings.origins()
    if not origins:
        return ""
    return f" (options also come from {', '.join(origins)}: `{PROGRAM} config show {settings.command}` shows them)"


def _fail(message: str, code: int) -> int:
    typer.secho(f"error: {' '.join(message.split())}", fg="red", err=True)
    return code


def _unexpected(error: Exception) -> int:
    """A fault of ours."""
    if os.environ.get(TRACEBACK_VARIABLE):
        raise error
    what = f"{type(error).__name__}: {error}"[:_SHOWN]
    return _fail(f"{what} (a fault of {PROGRAM}: set {TRACEBACK_VARIABLE}=1 and report what it shows)", 1)


def _explain(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename == STANDARD_OUTPUT:
        return f"standard output cannot be written ({reason}): what is missing there is lost"
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in _FULL:
        return f"the disk is full{where}: free some space, or set STARSD_CACHE to another disk"
    return f"{reason}{where}: check the permissions, or choose another place"


def _terminate(signum: int, frame: FrameType | None) -> NoReturn:
    """End like Ctrl-C does, through every `finally`: nothing half-written, no child left."""
    raise SystemExit(_TERMINATED)
