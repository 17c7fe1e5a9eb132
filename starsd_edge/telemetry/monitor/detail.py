"""One target on the whole screen, and the help."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from starsd_edge.protocol import shape_reasons
from starsd_edge.protocol.checks import printable
from starsd_edge.protocol.reasons import MEANINGS
from starsd_edge.telemetry.feed import Event
from starsd_edge.telemetry.hub_facts import LatencyFacts, ShapeFacts
from starsd_edge.telemetry.monitor.board import FAILING, ON, WARMING, TargetRow
from starsd_edge.telemetry.monitor.formats import Marks, clock, count, milliseconds, number, percent, size, sparkline
from starsd_edge.telemetry.monitor.parts import acceptance_lines, accepted_of, event_line, heading
from starsd_edge.telemetry.monitor.view import KEYS

_STATES = {
    ON: "the hub drafts for it",
    WARMING: "the hub's drafter is not ready yet",
    FAILING: "the hub's drafter keeps failing",
    **MEANINGS,
}
_COLUMNS = {
    "RTT, least": "round trip, ms: now, least of late, course; yellow: degraded",
    "wait ms": "in the hub's queue: median / 99th percentile",
    "back, verify": "from a draft to the next request; the pass in it, ms",
    "accepted": "nodes of a draft that came true / nodes of a draft",
    "tok/s, plain": "tokens a second in rounds with a draft, and without",
    "of hub, own": "share of rounds with a draft of the hub, of the target's own",
    "drafting": "on, or why rounds go without the hub:",
}
_LABEL = 18


def detail_lines(row: TargetRow, events: Sequence[Event], uptime_s: float, width: int, marks: Marks) -> list[Text]:
    """Everything that is known of a target; `events` are those of its name."""
    spoken = row.spoken
    at_port = f" at port {row.port}" if row.port else ""
    figures = [
        ("address", f"{row.address}{at_port}, connected for {clock(row.connected_s)}"),
        ("drafter", f"{row.drafter}, {count(row.sessions)} sessions"),
        ("drafting", f"{row.state}: {_STATES.get(row.state, 'a reason of a newer target')}"),
        ("draft size", _shape(row.shape)),
        ("RTT", f"{milliseconds(row.rtt_ms)} ms, least {milliseconds(row.min_rtt_ms)} ms"),
        ("", sparkline(row.rtt_history, max(8, width - _LABEL - 2), marks)),
        ("round", _round(row.latency)),
        ("wait in the queue", f"{milliseconds(row.queue_ms_p50)} ms median, {milliseconds(row.queue_ms_p99)} ms p99"),
        ("drafts", f"{number(row.drafts_per_s)}/s, accepted/nodes {accepted_of(row.acceptance)}"),
        ("verify", f"{milliseconds(spoken.verify_ms)} ms a round, {milliseconds(spoken.wait_ms)} ms waiting"),
        ("tokens/s", f"{number(spoken.tokens_per_s)} with drafts, {number(spoken.plain_tokens_per_s)} without"),
        ("rounds", f"{percent(spoken.hub_share)} with the hub, {percent(spoken.local_share)} with own drafts"),
        ("bytes", f"{size(row.bytes_up_per_s)}/s up, {size(row.bytes_down_per_s)}/s down"),
    ]
    lines = [heading(row.name, width)]
    lines += [Text.assemble((f"{label:<{_LABEL}}", "dim"), text) for label, text in figures]
    lines += [heading("acceptance by level", width), *acceptance_lines(row.acceptance, min(width, 70), marks)]
    return [*lines, heading("events", width), *(event_line(event) for event in reversed(events))]


def _round(latency: LatencyFacts) -> str:
    """From a draft to the next request as the hub sees it, and the network's part of it."""
    parts = [_spread(latency.return_ms, latency.return_deviation_ms)]
    if latency.link_ms is not None:
        parts.append(f"network {_spread(latency.link_ms, latency.link_deviation_ms)}")
    if latency.degraded:
        parts.append(f"degraded from {milliseconds(latency.usual_ms)} ms")
    return ", ".join(parts)


def _shape(shape: ShapeFacts) -> str:
    """How large its drafts are, and why."""
    if not shape.why:
        return "-"
    drafted = f"{shape.nodes} nodes, {shape.depth} levels: " if shape.nodes else ""
    why = shape_reasons.MEANINGS.get(shape.why, printable(shape.why))
    gain = f"; {shape.gain:.2f} x plain expected" if shape.gain and shape.nodes else ""
    return f"{drafted}{why}{gain}"


def _spread(value_ms: float | None, deviation_ms: float) -> str:
    return f"{milliseconds(value_ms)} ms" + (f" +-{milliseconds(deviation_ms)}" if value_ms is not None else "")


def help_lines(room: int) -> list[Text]:
    """Keys, columns, reasons; without the keys, which the last line names too, where there is no room for all."""
    keys = [Text.assemble((f"{keys:<{_LABEL}}", "bold"), meaning) for keys, meaning in KEYS.items()]
    lines = [Text.assemble((f"{title:<{_LABEL}}", "bold"), meaning) for title, meaning in _COLUMNS.items()]
    lines += [
        Text.assemble("  ", (f"{state:<{_LABEL - 2}}", "bold"), why) for state, why in _STATES.items() if state != ON
    ]
    return [*keys, *lines] if len(keys) + len(lines) <= room else lines
