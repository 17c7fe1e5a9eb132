"""How a plan is shown: tables of 80 columns for people, one object for scripts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import msgspec
from rich.table import Table
from rich.text import Text

from starsd_edge.cli.output import output_console
from starsd_edge.planning.memory import GIB
from starsd_edge.planning.plan import AtTargets, Knee
from starsd_edge.planning.report import MemoryPlan, StarPlan, Traffic, shapes_written, written


def show(plan: StarPlan, as_json: bool) -> None:
    """Print it on standard output."""
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(plan.as_data()), indent=2) + b"\n")
        return
    console = output_console()
    for name, source in plan.sources.items():
        console.print(Text(f"{name}: {source}"))
    console.print()
    for line in [*_alone(plan), *_counts(plan.knee)]:
        console.print(Text(line))
    console.print()
    console.print(_targets(plan.rows))
    console.print(Text("law: closed form; sim, each, wait: simulated, with times that vary"))
    if plan.links:
        console.print()
        console.print(_links(plan))
    for line in [*_traffic(plan.traffic), *_memory(plan.memory)]:
        console.print(Text(line))


def _alone(plan: StarPlan) -> Iterator[str]:
    found = plan.knee
    alone = found.alone
    yield f"One target with the hub to itself: {alone.rate:.1f} tokens/s{_times(found.gain)}"
    draft = "" if plan.is_measured else f"draft {written(alone.shape)} (nodes x depth x branching), "
    yield f"  {draft}{alone.tokens:.2f} tokens a round"
    yield f"  S {1e3 * alone.draft_s:.1f} ms in the drafter, Z {1e3 * alone.return_s:.1f} ms until the next request"
    if found.gain is not None and found.gain <= 1:
        yield "  That is no faster than plain decoding: a hub sends such a target no drafts."
    elif plan.break_even_rtt_s is not None:
        yield f"  A gain up to a round-trip time of {1e3 * plan.break_even_rtt_s:.1f} ms"


def _times(gain: float | None) -> str:
    return "" if gain is None else f", {gain:.2f} times plain decoding"


def _counts(found: Knee) -> Iterator[str]:
    yield f"The hub is never idle from {found.full} such targets on (1 + Z / S, drafted one by one)."
    if found.most is None:
        yield "How many still gain is not known without a plain step's time (plain_step_s)."
    elif found.most:
        yield f"Each still gains with up to {found.most} of them (drafted together up to --max-batch)."
        spot = found.sweet_spot
        yield f"Sweet spot: {spot[0]} to {spot[1]}." if spot else "No sweet spot: they lose before it is busy."


def _targets(rows: Sequence[AtTargets]) -> Table:
    table = _table("targets", "drafts", "tok/s law", "sim", "each", "busy law", "sim", "wait p99", "x plain")
    for row in rows:
        simulated = row.simulated
        table.add_row(
            str(row.targets),
            shapes_written(row.shapes) if row.shapes else ("plain" if simulated is None else "measured"),
            f"{row.tokens_per_s:.0f}",
            f"{row.simulated_tokens_per_s:.0f}",
            f"{row.simulated_tokens_per_s / row.targets:.1f}",
            f"{row.utilisation:.0%}",
            "-" if simulated is None else f"{simulated.utilisation:.0%}",
            "-" if simulated is None else f"{1e3 * simulated.waits.p99:.0f} ms",
            "-" if row.gain is None else f"{row.gain:.2f}",
        )
    return table


def _links(plan: StarPlan) -> Table:
    table = _table("RTT", "best draft", "Z", "tok/s, one", "x plain", "busy from", "gain up to")
    for link, found in plan.links:
        table.add_row(
            f"{1e3 * link.rtt_s:g} ms",
            written(found.alone.shape),
            f"{1e3 * found.alone.return_s:.0f} ms",
            f"{found.alone.rate:.1f}",
            "-" if found.gain is None else f"{found.gain:.2f}",
            f"{found.full} targets",
            "-" if found.most is None else f"{found.most} targets",
        )
    return table


def _traffic(traffic: Traffic | None) -> Iterator[str]:
    if traffic is None:
        return
    up, down = (8e-6 * size * traffic.rounds_per_s for size in (traffic.up_bytes, traffic.down_bytes))
    yield ""
    yield (
        f"Network, each target: {traffic.up_bytes / 1e3:.1f} kB up, {traffic.down_bytes:.0f} B down a round: "
        f"{up:.2f} and {down:.3f} Mbit/s"
    )


def _memory(memory: MemoryPlan | None) -> Iterator[str]:
    if memory is None:
        return
    fitting = memory.fit
    yield ""
    yield f"Memory of {memory.accelerator_bytes / GIB:.1f} GiB, targets with a context of {memory.context} tokens:"
    yield f"  {fitting.co_located} targets with a draft model beside each, {fitting.star} with a hub"
    yield f"  or one with {fitting.co_located_context} tokens beside its draft model, {fitting.star_context} with a hub"
    yield f"  the hub: {memory.hub_bytes / GIB:.2f} GiB with {memory.hub_sessions} sessions, beside the output head"


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in ("drafts", "best draft") else "right")
    return table
