"""The hub of the timing backend: `run-draft` with a drafter that is made slower or wrong. For `bench star` alone.

python -m starsd_edge.cli.bench.timing_hub run-draft BUNDLE [options of run-draft] [--draft-ms N] [--draft-growth G]
[--draft-levels D] [--wrong-ids 1,2,3]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from starsd_edge.cli.commands import add_command
from starsd_edge.cli.run_draft.command import RunDraftOptions, run_hub
from starsd_edge.errors import StarsdError, UsageError

if TYPE_CHECKING:
    from starsd_edge.speculation.tree import DraftShape
    from starsd_server.drafters.contract import Drafter

PROGRAM = (sys.executable, "-m", "starsd_edge.cli.bench.timing_hub")


@dataclass(frozen=True, kw_only=True)
class TimingHubOptions:
    """The options of the command."""

    hub: RunDraftOptions
    draft_ms: Annotated[float, typer.Option(min=0, help="Least milliseconds of a drafter's pass for one session.")] = (
        0.0
    )
    draft_growth: Annotated[float, typer.Option(min=0, help="Share of it that each further session adds.")] = 0.0
    draft_levels: Annotated[int, typer.Option(min=0, help="Depth of a draft that takes so long; 0: any.")] = 0
    wrong_ids: Annotated[str, typer.Option(help="Draft these tokens instead, which no text holds.")] = ""


def timing_hub(options: TimingHubOptions) -> None:
    """Run the draft server with a modelled drafter."""
    run_hub(options.hub, partial(modelled, options))


def modelled(options: TimingHubOptions, drafter: Drafter) -> Drafter:
    """The drafter as the options want it.

    Raises:
        UsageError: the wrong ids are no numbers.
    """
    import time

    from starsd_edge.bench.device_times import ModelDraftTimes, Pacer
    from starsd_server.drafters.modelled import SlowedDrafter, WrongDrafter

    if options.wrong_ids:
        drafter = WrongDrafter(drafter, _ids(options.wrong_ids))
    if options.draft_ms:
        pacer = Pacer(time.monotonic, time.sleep)
        times = ModelDraftTimes(options.draft_ms / 1e3, options.draft_growth, options.draft_levels)

        def end(began: float, shapes: Sequence[DraftShape]) -> None:
            pacer.end(began, times.pass_s([min(shape.max_depth, shape.max_nodes) for shape in shapes]))

        drafter = SlowedDrafter(drafter, pacer.begin, end)
    return drafter


def _ids(written: str) -> list[int]:
    try:
        return [int(each) for each in written.split(",")]
    except ValueError:
        raise UsageError(f"--wrong-ids takes numbers with commas between them, not {written!r}") from None


def main() -> NoReturn:
    """What the process does."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    add_command(app, "run-draft", timing_hub, TimingHubOptions)
    try:
        app(standalone_mode=False)
    except (StarsdError, typer.TyperException) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    main()
