"""What the hub's state machine is told, and its actions: what the hub has to do, in this order, and what it may note.

Connections and sessions go by their numbers, which are unique while the hub lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from starsd_edge.protocol.counters import PathStep
from starsd_edge.protocol.messages import Report, Welcome
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape


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
    """Limits of one hub.

    Attributes:
        max_sessions_per_connection: most sessions at one connection.
        max_sessions: most sessions of all connections, those whose target is away included.
        max_nodes: most nodes of a draft tree, whatever a target asks for.
        max_depth: most levels of a draft tree, likewise.
        heartbeat_s: seconds between the hub's WebSocket pings.
        resume_grace_s: seconds that a session waits for its target to come back.
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

    connection: int
    frame: bytes


@dataclass(frozen=True)
class OpenSession:
    """The drafter begins a session.

    Attributes:
        drafter: kind of the drafter.
        first_row: index of the first row that will come.
        t_first: the token at position `first_row`.
    """

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

    The hub may choose a smaller shape for it. Then it queues what `HubProtocol.narrow` makes of this; where the shape
    has no room for a node, it queues nothing and calls `HubProtocol.turn_down`.

    Attributes:
        shape: the largest that the target can use.
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
    """Hand this back to `HubProtocol.answer_probe` at once."""

    connection: int
    number: int
    payload: bytes
    received_at: float


@dataclass(frozen=True)
class HangUp:
    """Close that connection with this WebSocket close code, after what was sent before."""

    connection: int
    code: int
    reason: str


@dataclass(frozen=True)
class FindPort:
    """This target is to have a port of its own: find one, and hand it with this to `HubProtocol.send_on` at once."""

    connection: int
    owner: str
    welcome: Welcome


@dataclass(frozen=True)
class SendOn:
    """The target goes on at this port of its own: close that connection, after what was sent before."""

    connection: int
    port: int


@dataclass(frozen=True)
class TargetJoined:
    """Notice: a target was welcomed. `target` is what it calls itself."""

    connection: int
    target: str
    drafter: str


@dataclass(frozen=True)
class SessionResumed:
    """Notice: a session goes on at this connection."""

    connection: int
    session: int


@dataclass(frozen=True)
class MessageRefused:
    """Notice: a message of this connection's target was refused. `code` is one of `codes`."""

    connection: int
    code: str


@dataclass(frozen=True)
class ReportReceived:
    """Notice: this connection's target has told its sums."""

    connection: int
    report: Report


@dataclass(frozen=True)
class DraftJudged:
    """Notice: what became of the last draft of a session, level by level; see `counters.walk`. Never without steps."""

    session: int
    steps: Sequence[PathStep]


Notice = TargetJoined | SessionResumed | MessageRefused | ReportReceived | DraftJudged
"""Actions that ask for nothing: what the hub may want to show, or to learn from."""
HubAction = (
    Send
    | OpenSession
    | AddRows
    | QueueDraft
    | Away
    | Back
    | DropSession
    | AnswerProbe
    | HangUp
    | FindPort
    | SendOn
    | Notice
)


@dataclass(frozen=True)
class SessionView:
    """A session for the monitor; never shows its tag."""

    session: int
    owner: str
    target: str
    drafter: str
    rows: int
    attached: bool
