"""What the target's state machine tells the link."""

from __future__ import annotations

from dataclasses import dataclass, field

from starsd_edge.protocol.messages import Welcome
from starsd_edge.protocol.target_session import DraftArrived, TargetSession


@dataclass(frozen=True)
class Welcomed:
    """The hub accepted this target. `restarted`: another instance than last time, all sessions are opened anew."""

    welcome: Welcome
    restarted: bool


@dataclass(frozen=True)
class SentOn:
    """The hub has a port of its own for this target, on the same host: connect there with the ticket, which lets it in
    once and is never shown.
    """

    port: int
    ticket: str = field(repr=False)


@dataclass(frozen=True)
class HubReady:
    """The hub's drafter is warm."""

    drafter: str


@dataclass(frozen=True)
class SessionOpened:
    """A session may ask for drafts now (again, after a reconnect): requests made before are void."""

    session: TargetSession


@dataclass(frozen=True)
class RequestRefused:
    """The draft of this request is not worth waiting for: the hub refused it, or a message that it could not read and
    that may have been it.
    """

    session: TargetSession
    epoch: int
    message: str


@dataclass(frozen=True)
class ProbeAnswered:
    """A probe came back.

    Attributes:
        round_trip_us: from sending it to receiving the answer, on the target's clock.
        hub_us: of that, the time on the hub; the rest is the link.
    """

    number: int
    round_trip_us: int
    hub_us: int


@dataclass(frozen=True)
class ProbeRefused:
    """The hub has no time for this probe."""

    number: int
    retry_after_s: float


@dataclass(frozen=True)
class SessionEnded:
    """The hub refused or ended a session; the target decodes on by itself.

    The session keeps its rows: the first `extend` or `request` after `retry_after_s` opens it anew.
    """

    session: TargetSession
    message: str
    retry_after_s: float


@dataclass(frozen=True)
class Refused:
    """The hub refused the connection. `final`: trying again will not help (version, fingerprints)."""

    code: str
    message: str
    final: bool
    retry_after_s: float


TargetEvent = (
    Welcomed
    | SentOn
    | HubReady
    | SessionOpened
    | DraftArrived
    | RequestRefused
    | ProbeAnswered
    | ProbeRefused
    | SessionEnded
    | Refused
)
