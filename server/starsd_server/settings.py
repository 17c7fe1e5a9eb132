"""Settings of one hub, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field

from starsd_edge.errors import UsageError
from starsd_edge.protocol.hub_side import HubLimits
from starsd_edge.scheduling.scheduler import DEFAULT_POLICY, POLICIES
from starsd_edge.speculation.tree import DraftShape
from starsd_server.draft_queue import MAX_BATCH
from starsd_server.gate import HubKey


@dataclass(frozen=True)
class DoorSettings:
    """What the front door allows.

    Attributes:
        token: bearer token that targets must show; None, without other keys, lets everybody in, for loopback only.
        keys: others that they may show, with terms of their own.
        max_connections: targets connected at once.
        max_monitors: monitors connected at once, beside the targets.
        max_fetching: clients that fetch bundles at once, beside these.
        max_sockets: TCP connections at once, those that have not said anything yet included.
        open_timeout_s: most seconds from TCP connection to WebSocket; ends connections that send nothing.
        hello_timeout_s: most seconds from WebSocket to the first message; ends WebSockets that send nothing.
        send_timeout_s: most seconds in which nothing of the data that waits for a peer is sent; guards against a peer
            that stopped reading.
        close_timeout_s: most seconds for the closing handshake; guards against such a peer when the hub closes.
        own_ports: ports that targets are sent on to, one for each; None leaves all targets at the main port.
        max_waiting_frames: frames for one peer that it has not taken yet (`Q_out`), while which nothing more is read
            from it.
    """

    token: str | None = field(default=None, repr=False)
    keys: tuple[HubKey, ...] = ()
    max_connections: int = 256
    max_monitors: int = 8
    max_fetching: int = 4
    max_sockets: int = 512
    open_timeout_s: float = 5.0
    hello_timeout_s: float = 3.0
    send_timeout_s: float = 20.0
    close_timeout_s: float = 2.0
    max_waiting_frames: int = 64
    own_ports: range | None = None

    @property
    def all_keys(self) -> tuple[HubKey, ...]:
        """All keys that targets may show; if there is none, every target is let in."""
        return self.keys if self.token is None else (HubKey(self.token), *self.keys)


@dataclass(frozen=True)
class DraftingSettings:
    """How the drafter is shared.

    Attributes:
        policy: the order of requests, one of `POLICIES`.
        max_batch: sessions drafted for in one pass.
        shape: shape of all drafts, within what targets ask for; None chooses one for each target by its gain and the
            load.

    Raises:
        UsageError: a value that cannot work.
    """

    policy: str = DEFAULT_POLICY
    max_batch: int = MAX_BATCH
    shape: DraftShape | None = None

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UsageError(f"there is no policy {self.policy!r}: --policy takes {', '.join(POLICIES)}")
        if self.max_batch < 1:
            raise UsageError(f"a pass drafts for at least one session, not {self.max_batch}: mend --max-batch")


@dataclass(frozen=True)
class HubSettings:
    """Everything a hub can be told.

    Raises:
        UsageError: a value that cannot work.
    """

    door: DoorSettings = field(default_factory=DoorSettings)
    limits: HubLimits = field(default_factory=HubLimits)
    drafting: DraftingSettings = field(default_factory=DraftingSettings)

    def __post_init__(self) -> None:
        if self.limits.max_sessions < 1:
            raise UsageError(
                f"a hub needs room for at least one session, not {self.limits.max_sessions}: mend --max-sessions"
            )
