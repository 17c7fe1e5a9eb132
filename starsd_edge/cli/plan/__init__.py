"""`starsd-edge plan`: what a star would give, before it is built."""

from __future__ import annotations

import typer

from starsd_edge.cli.commands import add_command
from starsd_edge.cli.plan.options import PlanOptions


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "plan", plan, PlanOptions)


def plan(options: PlanOptions) -> None:
    """Tell what a star gives: how many targets a hub is for, the best drafts, other links, memory.

    From assumed times, or measured ones (BUNDLE, --from); the closed form and a simulation side by side. A quick look:
    `starsd-edge plan --rtt-ms 20 --acceptance 0.6`.
    """
    from starsd_edge.cli.plan.inputs import assumed_plan, measured_plan
    from starsd_edge.cli.plan.output import show

    made = assumed_plan(options) if options.from_file is None else measured_plan(options, options.from_file)
    show(made, options.as_json)
