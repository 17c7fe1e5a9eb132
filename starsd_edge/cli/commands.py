"""Putting a command that takes its options as one object on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from starsd_edge.cli.options import Options, as_command
from starsd_edge.cli.settings.values import Settings, path_of
from starsd_edge.errors import UsageError

HOW_TO_SET = (
    "Any option can also be set by a variable, like STARSD_RUN_TARGET_MAX_TOKENS for --max-tokens of run-target, or in "
    "a file (`starsd-edge config show`). Any flag can be undone: --no-FLAG."
)


_DIAGNOSIS = ("doctor",)
"""Runs whatever is wrong elsewhere: it is who looks for faults."""


class OptionsCommand(TyperCommand):
    """A command whose help names a flag as it changes something: its other name would take the room of the text.

    What is wrong in a file or a variable that was meant for it ends it here, after its `--help`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the arguments.

        Raises:
            UsageError: what files or variables say for it cannot be understood.
        """
        settings = ctx.find_root().obj
        if ctx.resilient_parsing or not isinstance(settings, Settings):
            rest: list[str] = super().parse_args(ctx, args)
            return rest
        path = path_of(ctx)
        fault = settings.fault(path)
        is_for_all = path == _DIAGNOSIS and not settings.faults.get(path)
        try:
            rest = super().parse_args(ctx, args)
        except typer.TyperException:
            if fault and not is_for_all:
                raise UsageError(fault) from None
            raise
        for name in settings.unknown:
            typer.echo(f"note: {name} is set, and there is no such option", err=True)
        if fault and not is_for_all:
            raise UsageError(fault)
        if fault:
            typer.echo(f"note: {fault}", err=True)
        return rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        named = [(param, param.opts, param.secondary_opts) for param in self.params]
        for param, opts, opposite in named:
            if opposite:
                param.opts, param.secondary_opts = opposite if param.default else opts, []
        super().format_help(ctx, formatter)
        for param, opts, opposite in named:
            param.opts, param.secondary_opts = opts, opposite


def add_command(app: typer.Typer, name: str, function: Callable[[Options], None], kind: type[Options]) -> None:
    """Register a command; see `starsd_edge.cli.options`."""
    app.command(name, cls=OptionsCommand, epilog=HOW_TO_SET)(as_command(function, kind))
