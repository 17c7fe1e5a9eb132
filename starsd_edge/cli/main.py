"""The command line: `starsd-edge COMMAND`.

Every way a command can end becomes an exit code here: 0, a `StarsdError` (one line on standard error and its own code),
130 for Ctrl-C, 143 for SIGTERM. Anything else is a fault of ours and keeps its traceback. Command modules are imported
to be registered, so they import nothing heavy before their function runs.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from starsd_edge import __version__
from starsd_edge.cli.extras import missing_extra
from starsd_edge.cli.settings import CONFIG_VARIABLE, VARIABLE_PREFIX, Settings, path_of
from starsd_edge.cli.settings_loading import load_settings
from starsd_edge.errors import StarsdError, UsageError

PROGRAM = "starsd-edge"
COMMAND_MODULES = (
    "pull",
    "export",
    "check",
    "train_draft",
    "run_draft",
    "run_target",
    "monitor",
    "demo",
    "bench",
    "plan",
    "doctor",
    "config",
)

_TERMINATED = 128 + signal.SIGTERM
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


def main() -> NoReturn:
    """Entry point of the installed command."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run(sys.argv[1:]))


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
        if remedy is None:
            raise
        return _fail(remedy, 1)
    except OSError as error:
        if error.errno not in _FULL + _REFUSED:
            raise
        return _fail(_explain(error), 1)
    return code if isinstance(code, int) else 0


def build_app() -> typer.Typer:
    """The application with every command."""
    app = typer.Typer(
        name=PROGRAM,
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


def _explain(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in _FULL:
        return f"the disk is full{where}: free some space, or set STARSD_CACHE to another disk"
    return f"{error.strerror}{where}: check the permissions, or choose another place"


def _terminate(signum: int, frame: FrameType | None) -> NoReturn:
    """End like Ctrl-C does, through every `finally`: nothing half-written, no child left."""
    raise SystemExit(_TERMINATED)
