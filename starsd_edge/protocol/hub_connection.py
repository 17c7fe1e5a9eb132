"""One target's connection at the hub: from HELLO on, message by message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from starsd_edge.protocol.codec import (
    PROBE_INTERVAL_S,
    ProtocolError,
    check_ids,
    decode_from_target,
    encode,
    kind_of,
    noise,
    printable,
)
from starsd_edge.protocol.codes import (
    BASE_LEN,
    CLOSE_CODES,
    CLOSE_POLICY,
    MALFORMED,
    MAX_OFFENCES,
    OFFENCES,
    OUT_OF_ORDER,
    QUOTA,
    TOO_MANY_PROBES,
    TOO_MANY_SESSIONS,
    UNKNOWN_SESSION,
)
from starsd_edge.protocol.counters import DraftRecord, WireCounters, walk
from starsd_edge.protocol.features import read_features
from starsd_edge.protocol.hub_actions import (
    AddRows,
    AnswerProbe,
    Away,
    Back,
    DraftJudged,
    FindPort,
    HangUp,
    HubAction,
    HubLimits,
    MessageRefused,
    Offer,
    OpenSession,
    OwnPort,
    QueueDraft,
    Refusal,
    ReportReceived,
    Send,
    SendOn,
    SessionResumed,
    TargetJoined,
)
from starsd_edge.protocol.hub_handshake import Terms, shake_hands
from starsd_edge.protocol.hub_sessions import HubSession, Pending, SessionTable
from starsd_edge.protocol.messages import (
    Close,
    Closed,
    DraftRequest,
    Error,
    Extend,
    Hello,
    HubMessage,
    Open,
    Opened,
    Probe,
    Probed,
    Ready,
    Report,
    Resync,
    TargetMessage,
    Welcome,
)
from starsd_edge.speculation.tree import DraftShape

MAX_CLOSE_REASON_BYTES = 123
"""What a WebSocket close frame has room for."""
RETRY_MS = 5_000
"""Milliseconds after which a target may open a session again that was refused, or ended, for want of room."""


@dataclass
class HubState:
    """What all connections of one hub share."""

    hub_id: str
    offer: Callable[[Hello], Offer | Refusal]
    limits: HubLimits
    table: SessionTable
    has_own_ports: bool
    warm: set[str] = field(default_factory=set)
    connections: dict[int, HubConnection] = field(default_factory=dict)
    """By number, until they are lost."""
    counters: WireCounters = field(default_factory=WireCounters)
    record: DraftRecord = field(default_factory=DraftRecord)


class HubConnection:
    """One target's connection.

    Attributes:
        number: its number, unique while the hub lives; what actions know it by.
        owner: the authenticated key.
        terms: what HELLO settled, None before it.
        record: what became of its drafts.
        report: the last that its target sent, None before the first.
    """

    def __init__(self, hub: HubState, number: int, owner: str, at_own_port: bool) -> None:
        self.number = number
        self.owner = owner
        self.terms: Terms | None = None
        self.record = DraftRecord()
        self.report: Report | None = None
        self._hub = hub
        self._sends_on = hub.has_own_ports and not at_own_port
        self._over = False
        self._offences = 0
        self._probed_at: float | None = None

    @property
    def is_welcomed(self) -> bool:
        """Whether its target was welcomed and the conversation is not over."""
        return self.terms is not None and not self._over

    def receive(self, frame: bytes, now: float, waiting_bytes: int) -> list[HubAction]:
        """Take in one binary WebSocket message. Never raises for anything a peer can send.

        Args:
            now: seconds on the hub's monotonic clock.
            waiting_bytes: memory of the features that this key has sent and that no drafter has taken yet.
        """
        if self._over:
            return []
        try:
            message = decode_from_target(frame)
        except ProtocolError as error:
            self._hub.counters.count_up("undecoded", len(frame))
            return self._refuse(error) if self.terms else self.give_up(error.code, error.message)
        self._hub.counters.count_up(kind_of(message), len(frame))
        if isinstance(message, Hello):
            return self._hello(message)
        if self.terms is None:
            return self._no_hello(message)
        return self._converse(message, self.terms, now, waiting_bytes)

    def lost(self, now: float) -> list[HubAction]:
        """The connection is gone; its sessions wait for a resume until the grace ends, and nobody for its requests."""
        actions = self._end()
        self._hub.table.lose(self.number, now)
        self._hub.connections.pop(self.number, None)
        return actions

    def send(self, message: HubMessage) -> Send:
        """The action that sends this message here."""
        frame = encode(message)
        self._hub.counters.count_down(kind_of(message), len(frame))
        return Send(self.number, frame)

    def answer_probe(self, probe: AnswerProbe, now: float, is_behind: bool) -> list[HubAction]:
        """PROBED, or a refusal where frames for this target still wait to be sent: one probe is on its way at a time.

        Args:
            now: as in `receive`.
            is_behind: whether frames wait.
        """
        if is_behind:
            return self._refuse_probe("the answer to the last is still on its way")
        hub_us = max(0, round((now - probe.received_at) * 1e6))
        return [self.send(Probed(probe.number, probe.payload, hub_us))]

    def give_up(self, code: str, message: str, retry_after_ms: int = 0) -> list[HubAction]:
        """ERROR(scope = connection) and the end of this connection.

        Args:
            retry_after_ms: asked of the target; 0 leaves it to the target.
        """
        actions = self._end()
        self._hub.counters.dropped[code] += 1
        text = printable(message)[:1024]
        reason = text.encode()[:MAX_CLOSE_REASON_BYTES].decode(errors="ignore")
        return [
            *actions,
            self.send(Error(code[:256], text, "connection", retry_after_ms=retry_after_ms)),
            HangUp(self.number, CLOSE_CODES.get(code, CLOSE_POLICY), reason),
        ]

    def send_on(self, welcome: Welcome, place: OwnPort | Refusal) -> list[HubAction]:
        """WELCOME with the port where the conversation goes on, after which nothing that comes here counts any more;
        or the end of this connection where no port was found.
        """
        if isinstance(place, Refusal):
            return self.give_up(place.code, place.message, place.retry_after_ms)
        self._end()
        there = msgspec.structs.replace(welcome, port=place.port, ticket=place.ticket)
        return [self.send(there), SendOn(self.number, place.port)]

    def _hello(self, hello: Hello) -> list[HubAction]:
        if self.terms is not None:
            return self.give_up(OUT_OF_ORDER, "a second HELLO; open a new connection to begin anew")
        settled = shake_hands(hello, self._hub.hub_id, self._hub.offer, self._hub.limits)
        if isinstance(settled, Refusal):
            return self.give_up(settled.code, settled.message, settled.retry_after_ms)
        terms, welcome = settled
        if hello.dedicated and self._sends_on:
            return [FindPort(self.number, self.owner, welcome)]
        self.terms = terms
        actions: list[HubAction] = [self.send(welcome)]
        if terms.drafter in self._hub.warm:
            actions.append(self.send(Ready(terms.drafter)))
        return [*actions, TargetJoined(self.number, terms.target, terms.drafter)]

    def _no_hello(self, message: TargetMessage) -> list[HubAction]:
        text = "HELLO has to be the first message of a connection"
        if not isinstance(message, Error):
            return self.give_up(OUT_OF_ORDER, text)
        self._end()  # an ERROR is never answered with one
        self._hub.counters.dropped[OUT_OF_ORDER] += 1
        return [HangUp(self.number, CLOSE_POLICY, text)]

    def _converse(self, message: TargetMessage, terms: Terms, now: float, waiting_bytes: int) -> list[HubAction]:
        if isinstance(message, Open):
            try:
                return self._open(message, terms, now)
            except ProtocolError as error:
                return self._refuse(error, tag=message.resume, ref=message.ref)
        if isinstance(message, Close):
            return self._close(message)
        if isinstance(message, Error):
            return self._peer_error(message)
        if isinstance(message, Report):
            self.report = message
            return [ReportReceived(self.number, message)]
        if isinstance(message, Probe):
            return self._probe(message, now)
        if isinstance(message, Extend | DraftRequest):
            epoch = message.epoch if isinstance(message, DraftRequest) else 0
            session = self._session(message.tag)
            if session is None:
                return self._refuse(
                    ProtocolError(UNKNOWN_SESSION, "no such session; open it anew"), tag=message.tag, epoch=epoch
                )
            try:
                return self._rows(session, message, now, waiting_bytes)
            except ProtocolError as error:
                return self._refuse(error, tag=message.tag, epoch=epoch)
        raise AssertionError(f"unhandled {kind_of(message)}")

    def _probe(self, message: Probe, now: float) -> list[HubAction]:
        if self._probed_at is not None and now - self._probed_at < PROBE_INTERVAL_S:
            return self._refuse_probe(f"the hub takes one in {PROBE_INTERVAL_S * 1e3:.0f} ms")
        self._probed_at = now
        return [AnswerProbe(self.number, message.number, noise(message.number, message.want_bytes), now)]

    def _refuse_probe(self, why: str) -> list[HubAction]:
        retry_after_ms = round(PROBE_INTERVAL_S * 1e3)
        return self._refuse(ProtocolError(TOO_MANY_PROBES, f"too many probes: {why}", retry_after_ms=retry_after_ms))

    def _open(self, message: Open, terms: Terms, now: float) -> list[HubAction]:
        if message.resume is not None:
            return self._resume(message, message.resume, terms, now)
        check_ids([message.t_first], terms.vocab_size)
        if message.drafter_kind not in {"", terms.drafter}:
            raise ProtocolError(
                MALFORMED, f"drafter {message.drafter_kind} was not offered, {terms.drafter} was", "session"
            )
        if message.first_row >= terms.max_context:
            raise ProtocolError(
                MALFORMED, f"row {message.first_row} lies beyond a context of {terms.max_context} tokens", "session"
            )
        opened = next((held for held in self._hub.table.at(self.number) if held.ref == message.ref), None)
        if opened is not None:
            if (opened.first_row, opened.t_first) != (message.first_row, message.t_first):
                raise ProtocolError(OUT_OF_ORDER, f"ref {message.ref} already names another session", "session")
            return [self.send(Opened(message.ref, opened.tag, opened.rows))]
        actions = self._make_room()
        session = self._hub.table.create(self.owner, terms, message.first_row, message.t_first)
        self._hub.table.attach(session, self.number, message.ref)
        return [
            *actions,
            OpenSession(session.key, terms.drafter, session.first_row, session.t_first),
            self.send(Opened(message.ref, session.tag, session.rows)),
        ]

    def _make_room(self) -> list[HubAction]:
        self._check_own_room()
        limits, table = self._hub.limits, self._hub.table
        if len(table) < limits.max_sessions:
            return []
        away = table.longest_away()
        if away is None:
            raise _full("the hub", limits.max_sessions)
        return [table.remove(away)]

    def _check_own_room(self) -> None:
        limit = self._hub.limits.max_sessions_per_connection
        if len(self._hub.table.at(self.number)) >= limit:
            raise _full("this connection", limit)

    def _resume(self, message: Open, tag: bytes, terms: Terms, now: float) -> list[HubAction]:
        session = self._hub.table.owned(tag, self.owner)
        if session is None or session.terms != terms or self._expired(session, now):
            raise ProtocolError(UNKNOWN_SESSION, "no such session to resume; open it anew", "session")
        if (session.first_row, session.t_first) != (message.first_row, message.t_first):
            raise ProtocolError(UNKNOWN_SESSION, "the session to resume began otherwise; open it anew", "session")
        actions: list[HubAction] = []
        if session.connection != self.number:
            self._check_own_room()
            if session.connection is not None:
                actions += _leave_behind(session)
            actions.append(Back(session.key))
        self._hub.table.attach(session, self.number, message.ref)
        opened = self.send(Opened(message.ref, session.tag, session.rows))
        return [*actions, opened, SessionResumed(self.number, session.key)]

    def _expired(self, session: HubSession, now: float) -> bool:
        return session.connection is None and now - session.away_since > self._hub.limits.resume_grace_s

    def _rows(
        self, session: HubSession, message: Extend | DraftRequest, now: float, waiting_bytes: int
    ) -> list[HubAction]:
        terms = session.terms
        check_ids(message.ids, terms.vocab_size)
        features = read_features(message.features, len(message.ids), terms.feature_width, terms.feature_codec)
        if message.first_row > session.rows:
            session.interrupt()
            return [self.send(Resync(session.tag, session.rows))] if session.wants_resync(now) else []
        if features is not None:
            self._check_room_for(waiting_bytes + features.nbytes)
        new = session.take_rows(message.first_row, message.ids, features)
        actions: list[HubAction] = [] if new is None else [AddRows(new, self.owner)]
        if isinstance(message, DraftRequest):
            actions += self._request(session, message, now)
        else:
            session.interrupt()
        return actions

    def _check_room_for(self, feature_bytes: int) -> None:
        limit = self._hub.limits.max_waiting_bytes
        if feature_bytes > limit:
            raise ProtocolError(
                QUOTA,
                f"features that wait for the drafter take all of the {limit >> 20} MiB that one key may fill",
                "session",
                RETRY_MS,
            )

    def _request(self, session: HubSession, message: DraftRequest, now: float) -> list[HubAction]:
        if message.epoch < session.epoch:
            self._hub.counters.dropped["superseded"] += 1
            return []
        if message.epoch == session.epoch and not session.is_void:
            if session.answered is None:
                self._hub.counters.dropped["repeated"] += 1
                return []
            # Its times were spent on the request before: of this one nothing was.
            return [self.send(msgspec.structs.replace(session.answered, queue_us=0, service_us=0, hub_us=0))]
        if message.base_len != session.rows:
            text = f"base_len is {message.base_len}, but with the rows of this request the session has {session.rows}"
            return self._refuse(ProtocolError(BASE_LEN, text), tag=message.tag, epoch=message.epoch)
        asked = DraftShape(message.max_nodes, message.max_depth, message.branching)
        judged = self._judge(session)
        shape = session.terms.clamp(asked, message.base_len)
        returned_s = session.returned(now)
        session.add_request(message.epoch, Pending(message.base_len, shape, now))
        if shape.is_empty:
            return [*judged, self.send(session.turn_down(message.epoch, message.base_len))]
        target_s = message.target_us / 1e6
        queued = QueueDraft(session.key, message.epoch, message.base_len, shape, now, self.owner, returned_s, target_s)
        return [*judged, queued]

    def _judge(self, session: HubSession) -> list[DraftJudged]:
        """The rows since the last tree tell how much of it was accepted."""
        draft = session.answered
        if draft is None or session.turned_down:
            return []
        steps = walk(draft, session.rows_from(draft.base_len, len(draft.ids)))
        for record in (self.record, self._hub.record):
            record.judge(steps)
        return [DraftJudged(session.key, steps)] if steps else []

    def _close(self, message: Close) -> list[HubAction]:
        session = self._hub.table.owned(message.tag, self.owner)
        if session is None:
            return [self.send(Closed(message.tag, 0))]
        return [self._hub.table.remove(session), self.send(Closed(message.tag, session.rows_kept))]

    def _peer_error(self, message: Error) -> list[HubAction]:
        """An ERROR is never answered with one."""
        if message.scope == "connection":
            return [*self._end(), HangUp(self.number, CLOSE_POLICY, "the target gave this connection up")]
        session = self._session(message.tag) if message.tag is not None else None
        if message.scope == "session" and session is not None:
            return [self._hub.table.remove(session)]
        self._hub.counters.dropped["peer_error"] += 1
        return []

    def _session(self, tag: bytes) -> HubSession | None:
        """The session of that tag if it is at this connection."""
        session = self._hub.table.owned(tag, self.owner)
        return session if session is not None and session.connection == self.number else None

    def _refuse(
        self, error: ProtocolError, tag: bytes | None = None, epoch: int = 0, ref: int | None = None
    ) -> list[HubAction]:
        """ERROR for one frame or session; a session that it names ends. Too many offences end the connection."""
        self._hub.counters.dropped[error.code] += 1
        self._offences += error.code in OFFENCES
        actions: list[HubAction] = []
        session = self._session(tag) if tag is not None and ref is None else None
        if error.scope == "session" and session is not None:
            actions.append(self._hub.table.remove(session))
        actions.append(
            self.send(
                Error(error.code, printable(error.message)[:1024], error.scope, tag, epoch, error.retry_after_ms, ref)
            )
        )
        if self._offences >= MAX_OFFENCES:
            actions += self.give_up(
                error.code, f"{self._offences} faulty messages on one connection, the last: {error.message}"
            )
        return [*actions, MessageRefused(self.number, error.code)]

    def _end(self) -> list[HubAction]:
        """Nothing that comes here counts any more, and nobody waits here for what was asked."""
        if self._over:
            return []
        self._over = True
        return [action for session in self._hub.table.at(self.number) for action in _leave_behind(session)]


def _full(whose: str, limit: int) -> ProtocolError:
    return ProtocolError(TOO_MANY_SESSIONS, f"{whose} holds {limit} sessions, all it may", "session", RETRY_MS)


def _leave_behind(session: HubSession) -> list[HubAction]:
    """What was asked on a connection goes with it."""
    session.void()
    return [Away(session.key)]
