"""Putting a command that takes its options as one object on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from starsd_edge.cli.options import Options, as_command

HOW_TO_SET = (
    "Any option can also be set by a variable, like STARSD_RUN_TARGET_MAX_TOKENS for --max-tokens of run-target, or in "
    "a file (`starsd-edge config show`). Any flag can be undone: --no-FLAG."
)


class OptionsCommand(TyperCommand):
    """A command whose help names a flag as it changes something: its other name would take the room of the text."""

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
