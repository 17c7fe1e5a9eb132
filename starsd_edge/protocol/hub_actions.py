"""What the hub's state machine is told, and what it tells the hub to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape

if TYPE_CHECKING:
    from starsd_edge.protocol.hub_connection import HubConnection


@dataclass(frozen=True)
class Offer:
    """What the hub offers a target whose HELLO it accepts.

    Attributes:
        drafter: kind of the drafter that fits.
        drafter_fp: its fingerprint.
        feature_codec: how the features that it wants travel, "none" when ids are enough; one that HELLO offers.
        notice: a line for the user, or "".
    """

    drafter: str
    drafter_fp: str
    feature_codec: str
    notice: str = ""


@dataclass(frozen=True)
class Refusal:
    """Why a HELLO is not accepted: becomes ERROR(scope = connection). `code` is one of `codes`."""

    code: str
    message: str
    retry_after_ms: int = 0


@dataclass(frozen=True)
class OwnPort:
    """Where a target goes on by itself, and the ticket that lets it in there. The ticket is never shown."""

    port: int
    ticket: str = field(repr=False)


@dataclass(frozen=True)
class HubLimits:
    """Caps of one hub.

    Attributes:
        max_context: most tokens of a session, root included, whatever the target's own limit: bounds the ids kept per
            session.
        max_waiting_bytes: most memory of features that wait for the drafter, all sessions of one key together.
    """

    max_sessions_per_connection: int = 16
    max_sessions: int = 1024
    max_nodes: int = 64
    max_depth: int = 16
    heartbeat_s: float = 10.0
    resume_grace_s: float = 30.0
    max_context: int = 1 << 17
    max_waiting_bytes: int = 256 << 20


@dataclass(frozen=True)
class Send:
    """Send this frame on that connection."""

    connection: HubConnection
    frame: bytes


@dataclass(frozen=True)
class OpenSession:
    """The drafter begins a session."""

    session: int
    drafter: str
    first_row: int
    t_first: int


@dataclass(frozen=True)
class AddRows:
    """True rows for the drafter, of a session of this key."""

    rows: NewRows
    owner: str


@dataclass(frozen=True)
class QueueDraft:
    """A tree is wanted; supersedes a queued request of the same session.

    Attributes:
        owner: the key that the session belongs to.
        returned_s: from sending the draft of the session's request before to receiving this one; None where that was
            no round.
        target_s: of it, what passed at the target's end by its own clock; 0 where it does not tell.
    """

    session: int
    epoch: int
    base_len: int
    shape: DraftShape
    received_at: float
    owner: str = ""
    returned_s: float | None = None
    target_s: float = 0.0


@dataclass(frozen=True)
class Away:
    """The connection of this session is gone, the session is not: drop its queued request, which nobody waits for."""

    session: int


@dataclass(frozen=True)
class Back:
    """This session has a connection again."""

    session: int


@dataclass(frozen=True)
class DropSession:
    """The session is gone: drop its queued work, free the drafter's state."""

    session: int


@dataclass(frozen=True)
class AnswerProbe:
    """Hand this back to `answer_probe` of its connection at once."""

    connection: HubConnection
    number: int
    payload: bytes
    received_at: float


@dataclass(frozen=True)
class HangUp:
    """Close that connection with this WebSocket close code, after what was sent before."""

    connection: HubConnection
    code: int
    reason: str


@dataclass(frozen=True)
class SendOn:
    """The target goes on at this port of its own: close that connection, after what was sent before."""

    connection: HubConnection
    port: int


HubAction = Send | OpenSession | AddRows | QueueDraft | Away | Back | DropSession | AnswerProbe | HangUp | SendOn


@dataclass(frozen=True)
class SessionView:
    """A session for the monitor; never shows its tag."""

    session: int
    owner: str
    target: str
    drafter: str
    rows: int
    attached: bool
