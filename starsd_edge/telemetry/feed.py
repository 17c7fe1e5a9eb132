"""The monitor's feed: what a hub sends to those who watch it, one JSON object per message and per line of a recording.

A monitor is a WebSocket client of the hub's port with a subprotocol of its own and the token that targets show. It
only listens. Snapshots are whole, so a monitor that misses some needs nothing sent again; events are numbered, and
each snapshot carries the last few of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from starsd_edge.errors import StarsdError
from starsd_edge.telemetry.hub_facts import HubFacts, Label, Measure, Total

FEED_SUBPROTOCOL = "starsd.monitor.v1"
"""WebSocket subprotocol by which a hub knows a monitor."""
FEED_VERSION = 1
"""Version of the snapshots, which a reader checks."""
MAX_SNAPSHOT_BYTES = 4 << 20
"""Most bytes of a snapshot that a reader takes: enough for some thousand targets."""
MAX_EVENTS = 32
"""Most events in a snapshot."""

# Kinds of events.
JOINED = "joined"
LEFT = "left"
RESUMED = "resumed"
REFUSED = "refused"
FAILED = "failed"
WARM = "warm"
TURNED_AWAY = "turned away"
DEGRADED = "degraded"
"""The path to a target has become much slower than usual."""
RECOVERED = "recovered"
"""The path to a target is as fast as usual again."""


class FeedError(StarsdError):
    """A hub's feed cannot be had or cannot be read."""


@dataclass(frozen=True)
class Event:
    """Something that happened at the hub.

    Attributes:
        number: number of the event, from 1, rising while the hub runs.
        at_s: uptime of the hub.
        kind: one of the names above; others may come.
        target: whom it concerns, or "".
        text: more about it, or "".
    """

    number: Total
    at_s: Measure
    kind: Label
    target: Label = ""
    text: Label = ""


@dataclass(frozen=True)
class Snapshot:
    """The facts of a hub at one moment, and its last events."""

    version: Total
    facts: HubFacts
    events: Annotated[list[Event], Meta(max_length=1024)] = field(default_factory=list)


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Snapshot)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """One line of JSON, without its end."""
    return _ENCODER.encode(snapshot)


def decode_snapshot(line: bytes | str) -> Snapshot:
    """What `encode_snapshot` wrote.

    Raises:
        FeedError: it is none, or of another version.
    """
    if len(line) > MAX_SNAPSHOT_BYTES:
        raise FeedError(f"a snapshot of {len(line)} bytes is over the limit of {MAX_SNAPSHOT_BYTES}")
    try:
        snapshot = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FeedError(f"not a snapshot of a hub: {error}") from None
    if snapshot.version != FEED_VERSION:
        raise FeedError(f"the feed has version {snapshot.version}, this program reads version {FEED_VERSION}")
    return snapshot
