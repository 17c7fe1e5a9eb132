"""`starsd-edge demo`: a hub and some targets on this machine, each a process of its own, answering side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from starsd_edge.cli.commands import add_command
from starsd_edge.cli.shared_options import bundle_names
from starsd_edge.errors import StarsdError

PROMPTS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a short story about a lighthouse keeper and a lost ship.",
    "List five tips for someone who learns to cook, one per line.",
    "Describe how a bicycle stays upright.",
    "What should a visitor know about the city of Rome?",
    "Write a Python function that returns the Fibonacci numbers up to n, and explain it.",
)


_FEW_CORES = 2
"""Up to so many, a target keeps all of them while the hub drafts beside it: it waits meanwhile."""


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The options of the command."""

    target: Annotated[str, typer.Option(help="Bundle of the target model.", autocompletion=bundle_names)] = (
        "smollm2-135m-fp32"
    )
    draft: Annotated[str, typer.Option(help="Bundle of the draft model.", autocompletion=bundle_names)] = (
        "smollm2-135m-eagle-int8"
    )
    targets: Annotated[int, typer.Option(min=1, max=len(PROMPTS), help="Number of targets.")] = 3
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 96
    compare: Annotated[
        int,
        typer.Option(min=0, max=20, help="Runs of each kind for the table of speeds without and with the hub."),
    ] = 2
    plain: Annotated[bool, typer.Option(help="Lines instead of panels, for logs.")] = False


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "demo", demo, DemoOptions)


def demo(options: DemoOptions) -> None:
    """Run a star on this machine: a hub and several targets at once, then one target without and with the hub.

    The first shows answers and monitor side by side. The second shows what the hub is worth here, and that the text is
    the same: the exit code says if it is not.
    """
    import asyncio
    import os
    import sys

    from starsd_edge.bundles.bundle import bundle_kind, load_bundle
    from starsd_edge.bundles.catalogue import find_bundle
    from starsd_edge.cli.demo.comparison import ComparisonPlan, compare, comparison_table, different_texts
    from starsd_edge.cli.demo.star import DemoPlan, DemoStar, HubWatch
    from starsd_edge.cli.demo.view import LiveView, PlainView, hub_summary, summary, view_console
    from starsd_edge.cli.monitor import feed_client
    from starsd_edge.cli.progress import steps
    from starsd_edge.cli.streams import shows_panels
    from starsd_edge.hub_process import hub_process

    cores = os.cpu_count() or 1
    threads = max(1, cores // (options.targets + 1))
    target, draft = find_bundle(options.target), find_bundle(options.draft)
    load_bundle(target, check_files=False)  # before anything is shown; hub and targets check the files
    bundle_kind(draft)
    console = view_console(sys.stdout)
    console.print(
        f"One hub and {options.targets} targets on this machine share its {cores} CPU cores: every draft takes time "
        "from the targets, so their speeds say nothing about devices of their own. What is accepted says more, and the "
        "table at the end says what the hub is worth to one target here."
    )
    names = [f"target {number + 1}" for number in range(options.targets)]
    view = PlainView(console, names) if options.plain or not shows_panels(console) else LiveView(console, names)
    watch = HubWatch(lambda url: feed_client(url, None).items(), view.hub)
    with hub_process([str(draft), "--threads", str(threads)]) as hub:
        console.print(f"To watch the hub meanwhile, in another terminal: starsd-edge monitor {hub}")
        plan = DemoPlan(target, hub, PROMPTS[: options.targets], options.max_tokens, threads)
        results = asyncio.run(DemoStar(plan, view, follow=watch.follow).run())
        console.print(summary(names, results))
        board = watch.whole()
        if board is not None:
            console.print(hub_summary(board, console))
        failed = [f"{name}: {result.failure}" for name, result in zip(names, results, strict=True) if result.failure]
        if failed:
            raise StarsdError("; ".join(failed))
        if not options.compare:
            return
        console.print(f"Now one target at a time, by turns without and with the hub ({options.compare} runs of each):")
        hub_threads = cores if cores <= _FEW_CORES else cores - threads
        comparison = ComparisonPlan(
            target, hub, PROMPTS[: options.targets], options.max_tokens, options.compare, cores, hub_threads
        )
        with steps("demo") as say:
            found = asyncio.run(compare(comparison, say))
    console.print(comparison_table(found))
    if different := different_texts(found):
        raise StarsdError(f"the text was not always the same for {different[0]!r}: please report it")
