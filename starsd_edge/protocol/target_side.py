"""The target's end of the wire as a state machine: frames and rows in, frames and events out.

One `TargetProtocol` lives as long as the target and survives reconnects: it keeps every session's rows (and features)
so that it can resume, resync or join late. Not thread-safe: the link guards it with a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from starsd_edge.protocol.codec import ProtocolError, decode_from_hub, kind_of, noise, printable
from starsd_edge.protocol.codes import (
    CODEC,
    FINAL,
    MALFORMED,
    MAX_OFFENCES,
    OUT_OF_ORDER,
    TOO_MANY_PROBES,
    UNKNOWN_SESSION,
    VERSION,
)
from starsd_edge.protocol.counters import WireCounters
from starsd_edge.protocol.features import CODECS, NO_FEATURES, row_bytes
from starsd_edge.protocol.messages import (
    MAX_TENSOR_BYTES,
    Close,
    Closed,
    Draft,
    Error,
    Hello,
    HubMessage,
    Opened,
    Probe,
    Probed,
    Ready,
    Report,
    Resync,
    Welcome,
)
from starsd_edge.protocol.target_events import (
    HubReady,
    ProbeAnswered,
    ProbeRefused,
    Refused,
    RequestRefused,
    SentOn,
    SessionEnded,
    SessionOpened,
    TargetEvent,
    Welcomed,
)
from starsd_edge.protocol.target_link import TargetLink, UpRate
from starsd_edge.protocol.target_session import DraftArrived, TargetSession

__all__ = [
    "DraftArrived",
    "HubReady",
    "ProbeAnswered",
    "ProbeRefused",
    "Refused",
    "RequestRefused",
    "SentOn",
    "SessionEnded",
    "SessionOpened",
    "TargetEvent",
    "TargetProtocol",
    "TargetSession",
    "Welcomed",
]

FAULTY_HUB_RETRY_S = 30.0
"""Seconds before a target connects again to a hub that sent too many faulty messages."""
MAX_RETRY_S = 600.0
"""Most seconds that a target waits, however long the hub's retry_after_ms is."""


class _Phase(Enum):
    DOWN = "no connection"
    GREETING = "HELLO is out"
    WELCOMED = "welcomed"
    SENT_ON = "on the way to a port of its own"
    REFUSED = "refused"


@dataclass(frozen=True)
class _Probing:
    """The probe that went out last, and when."""

    number: int
    want_bytes: int
    sent_at: float


class TargetProtocol:
    """The link's state and all its sessions."""

    def __init__(
        self,
        hello: Hello,
        clock: Callable[[], float],
        draft_window: int | None = None,
        up_rate: UpRate | None = None,
    ) -> None:
        """Args:
        clock: monotonic seconds.
        draft_window: show the hub only so many of the last rows of a text that it joins; None for all of it.
        up_rate: tells when rows may go out, and has to be told of marks (`arrived`); None: at once.

        Raises:
            ValueError: HELLO names a codec that is not spoken here, or features of which not one row fits a message; a
                window without rows.
        """
        if not CODECS.issuperset(hello.codecs):
            raise ValueError(f"no codecs of features: {hello.codecs}")
        if not all(0 < row_bytes(codec, hello.feature_width) <= MAX_TENSOR_BYTES for codec in hello.codecs):
            raise ValueError(f"features of width {hello.feature_width} do not fit {MAX_TENSOR_BYTES} bytes per message")
        if draft_window is not None and draft_window < 1:
            raise ValueError(f"a draft window holds at least one row, not {draft_window}")
        self._hello = hello
        self._link = TargetLink(hello, clock, draft_window, up_rate)
        self._phase = _Phase.DOWN
        self._at_own_port = False
        self._hub_id: str | None = None
        self._offences = 0
        self._sessions: dict[int, TargetSession] = {}
        """By number, in the order in which their rows go out next."""
        self._last_number = 0
        self._tags: dict[bytes, TargetSession] = {}
        """Sessions that are open on this connection, by tag."""
        self._closing: dict[bytes, None] = {}
        self._probing: _Probing | None = None
        self._probes = 0

    @property
    def counters(self) -> WireCounters:
        """What crossed the wire, all connections together."""
        return self._link.counters

    @property
    def clamped_rows(self) -> int:
        """Rows so far with a feature that was not finite: they go up as the nearest finite value."""
        return self._link.clamped_rows

    def connected(self, at_own_port: bool = False) -> None:
        """A WebSocket stands: HELLO goes out. `at_own_port`: it is where `SentOn` said."""
        self.disconnected()
        self._phase = _Phase.GREETING
        self._at_own_port = at_own_port
        self._offences = 0
        if self._link.up_rate is not None:
            self._link.up_rate.reset()
        self._link.post(self._hello)

    def disconnected(self) -> None:
        """The WebSocket is gone. Sessions and their rows stay."""
        self._stop(_Phase.DOWN)

    def receive(self, frame: bytes) -> list[TargetEvent]:
        """Take in one binary message from the hub. Never raises for anything a peer can send: what is malformed is
        dropped and counted.
        """
        if self._phase in {_Phase.DOWN, _Phase.SENT_ON, _Phase.REFUSED}:
            self._drop("no_connection")
            return []
        try:
            message = decode_from_hub(frame)
        except ProtocolError as error:
            self._link.counters.count_down("undecoded", len(frame))
            return self._offence(error)
        self._link.counters.count_down(kind_of(message), len(frame))
        try:
            return self._converse(message, len(frame))
        except ProtocolError as error:
            return self._offence(error)

    def frames(self) -> list[bytes]:
        """Drain the frames to be sent, in order."""
        outbox, self._link.outbox = self._link.outbox, []
        self._link.drains += 1
        for kind, frame in outbox:
            self._link.counters.count_up(kind, len(frame))
        return [frame for _, frame in outbox]

    def arrived(self, written: int) -> None:
        """The hub has the first `written` bytes of this connection: rows that waited for room go out."""
        if self._link.up_rate is not None:
            self._link.up_rate.arrived(written, self._link.clock())
        going = list(self._sessions.values())
        while going:
            going = [session for session in going if session.pump()]
            for session in going:  # whose turn comes last: no session waits for all the rows of another
                self._sessions[session.number] = self._sessions.pop(session.number)

    def open_session(self, prompt: Sequence[int], sampling_kind: str) -> TargetSession:
        """Begin the session of a text that begins with this prompt (at least its first token); OPEN goes out now or
        when welcomed. No row is known yet: those of the prompt are appended as they are computed.
        """
        self._last_number += 1
        session = TargetSession(self._last_number, self._link, prompt, sampling_kind)
        self._sessions[session.number] = session
        if self._phase is _Phase.WELCOMED:
            session.open()
        return session

    def close_session(self, session: TargetSession) -> None:
        """End it: CLOSE goes out if the hub knows it; late drafts for it are dropped. Harmless when repeated."""
        if self._sessions.pop(session.number, None) is None:
            return
        session.close()
        if session.tag is not None:
            self._close_tag(session.tag)

    def report(self, report: Report) -> None:
        """Tell the hub what only this target knows; nothing goes out while there is no hub that takes it."""
        if self._link.welcome is not None and self._link.welcome.reports:
            self._link.post(msgspec.structs.replace(report, clamped_rows=self._link.clamped_rows))

    def probe(self, payload_bytes: int, want_bytes: int) -> int | None:
        """Send so many bytes and ask for so many back; the number of the probe, None while there is no hub that takes
        it. An earlier one that is still unanswered is given up. What comes of it is a `ProbeAnswered` or
        `ProbeRefused`.
        """
        if self._link.welcome is None or not self._link.welcome.probes:
            return None
        self._probes += 1
        self._link.post(Probe(self._probes, noise(self._probes, payload_bytes), want_bytes))
        self._probing = _Probing(self._probes, want_bytes, self._link.clock())
        return self._probes

    def _converse(self, message: HubMessage, frame_bytes: int) -> list[TargetEvent]:
        if isinstance(message, Error):
            return self._error(message)
        if isinstance(message, Welcome) != (self._phase is _Phase.GREETING):
            raise ProtocolError(OUT_OF_ORDER, f"{kind_of(message)} has no place while {self._phase.value}")
        if isinstance(message, Draft):
            return self._draft(message, frame_bytes)
        if isinstance(message, Welcome):
            return self._welcome(message)
        if isinstance(message, Ready):
            return self._ready(message)
        if isinstance(message, Opened):
            return self._opened(message)
        if isinstance(message, Resync):
            return self._resync(message)
        if isinstance(message, Probed):
            return self._probed(message)
        return self._closed(message)

    def _welcome(self, welcome: Welcome) -> list[TargetEvent]:
        if welcome.version not in self._hello.versions:
            return self._refused(
                VERSION, f"the hub chose wire version {welcome.version}, which this target does not speak"
            )
        if welcome.feature_codec not in {NO_FEATURES, *self._hello.codecs}:
            return self._refused(
                CODEC, f"the hub wants {welcome.feature_codec} features, which this target does not send"
            )
        if welcome.port or welcome.ticket:
            return self._sent_on(welcome)
        restarted = self._hub_id not in {None, welcome.hub_id}
        self._hub_id = welcome.hub_id
        self._phase = _Phase.WELCOMED
        self._link.welcome = welcome
        if restarted:
            self._closing.clear()
        for tag in self._closing:
            self._link.post(Close(tag))
        for session in self._sessions.values():
            if restarted:
                session.forget()
            session.open()
        cleaned = msgspec.structs.replace(
            welcome,
            drafter=printable(welcome.drafter),
            drafter_fp=printable(welcome.drafter_fp),
            notice=printable(welcome.notice),
        )
        return [Welcomed(cleaned, restarted)]

    def _sent_on(self, welcome: Welcome) -> list[TargetEvent]:
        """Whether the hub has restarted is for the WELCOME to tell that comes there."""
        if not self._hello.dedicated or not (welcome.port and welcome.ticket):
            return self._refused(MALFORMED, "the hub names a port that this target cannot go to", FAULTY_HUB_RETRY_S)
        if self._at_own_port:
            return self._refused(MALFORMED, "the hub sends this target from port to port", FAULTY_HUB_RETRY_S)
        self._stop(_Phase.SENT_ON)
        return [SentOn(welcome.port, welcome.ticket)]

    def _ready(self, message: Ready) -> list[TargetEvent]:
        if self._link.ready or self._link.welcome is None or message.drafter != self._link.welcome.drafter:
            self._drop("ready")
            return []
        self._link.ready = True
        opened = [SessionOpened(session) for session in self._sessions.values() if session.is_open]
        return [HubReady(printable(message.drafter)), *opened]

    def _opened(self, message: Opened) -> list[TargetEvent]:
        number = self._link.refs.pop(message.ref, None)
        if number is None:
            self._drop("late")
            return []
        session = self._sessions.get(number)
        if session is None:  # the target has closed it meanwhile
            self._close_tag(message.tag)
            return []
        if message.tag in self._tags:
            return [
                *self._offence(ProtocolError(MALFORMED, "one tag names two sessions")),
                self._end(session, "the hub mixes up sessions"),
            ]
        try:
            session.opened(message)
        except ProtocolError as error:
            self._close_tag(message.tag)
            return [*self._offence(error), self._end(session, error.message)]
        self._tags[message.tag] = session
        return [SessionOpened(session)] if session.is_open else []

    def _draft(self, message: Draft, frame_bytes: int) -> list[TargetEvent]:
        session = self._tags.get(message.tag)
        arrived = session.take(message, frame_bytes) if session is not None else None
        if arrived is None:
            self._drop("late")
            return []
        return [arrived]

    def _resync(self, message: Resync) -> list[TargetEvent]:
        session = self._tags.get(message.tag)
        if session is None:
            self._drop("late")
            return []
        try:
            session.resync(message.from_row)
        except ProtocolError as error:
            if error.scope != "session":
                raise
            self._close_tag(message.tag)
            return [*self._offence(error), self._end(session, error.message)]
        return []

    def _closed(self, message: Closed) -> list[TargetEvent]:
        if message.tag not in self._closing:
            self._drop("late")
        self._closing.pop(message.tag, None)
        return []

    def _probed(self, message: Probed) -> list[TargetEvent]:
        probing = self._probing
        if probing is None or message.number != probing.number:
            self._drop("late")
            return []
        self._probing = None
        if len(message.payload) != probing.want_bytes:
            text = f"a probe brought {len(message.payload)} bytes back where {probing.want_bytes} were asked for"
            return [*self._offence(ProtocolError(MALFORMED, text)), ProbeRefused(message.number, 0.0)]
        round_trip_us = max(0, round((self._link.clock() - probing.sent_at) * 1e6))
        return [ProbeAnswered(message.number, round_trip_us, message.hub_us)]

    def _error(self, message: Error) -> list[TargetEvent]:
        retry_after_s = min(MAX_RETRY_S, message.retry_after_ms / 1000)
        if message.scope == "connection":
            return self._refused(message.code, message.message, retry_after_s)
        if message.code == TOO_MANY_PROBES and self._probing is not None:
            refused, self._probing = self._probing.number, None
            return [ProbeRefused(refused, retry_after_s)]
        if message.ref is not None:
            return self._open_refused(message, message.ref, retry_after_s)
        session = self._tags.get(message.tag) if message.tag is not None else None
        if session is not None and (message.scope == "session" or message.code == UNKNOWN_SESSION):
            return [self._end(session, message.message, retry_after_s)]
        self._drop("peer_error")
        return self._frame_refused(message, session) if message.scope == "frame" else []

    def _frame_refused(self, message: Error, session: TargetSession | None) -> list[TargetEvent]:
        """A hub that could not read a message cannot say whose it was, and it may have been anybody's request."""
        if message.tag is None:
            pending = [(each, each.pending) for each in self._sessions.values()]
        else:
            pending = [(session, message.epoch)] if session is not None and session.refused(message.epoch) else []
        text = printable(message.message)
        return [RequestRefused(session, epoch, text) for session, epoch in pending if epoch is not None]

    def _open_refused(self, message: Error, ref: int, retry_after_s: float) -> list[TargetEvent]:
        session = self._sessions.get(self._link.refs.pop(ref, 0))
        if session is None:
            self._drop("late")
            return []
        if session.tag is not None and message.code == UNKNOWN_SESSION:
            session.forget()
            session.open()
            return []
        return [self._end(session, message.message, retry_after_s)]

    def _end(self, session: TargetSession, message: str, retry_after_s: float = 0.0) -> SessionEnded:
        if session.tag is not None:
            self._tags.pop(session.tag, None)
        return SessionEnded(session, printable(message), session.end(retry_after_s))

    def _close_tag(self, tag: bytes) -> None:
        """CLOSE now, and again after a reconnect until CLOSED comes."""
        self._tags.pop(tag, None)
        self._closing[tag] = None
        if self._phase is _Phase.WELCOMED:
            self._link.post(Close(tag))

    def _offence(self, error: ProtocolError) -> list[TargetEvent]:
        self._drop(error.code)
        self._offences += 1
        if self._offences < MAX_OFFENCES:
            return []
        text = f"the hub sent {self._offences} faulty messages, the last: {error.message}"
        events = self._refused(error.code, text, FAULTY_HUB_RETRY_S)
        self._link.post(Error(error.code, text[:1024], "connection"))
        return events

    def _refused(self, code: str, message: str, retry_after_s: float = 0.0) -> list[TargetEvent]:
        self._stop(_Phase.REFUSED)
        return [Refused(printable(code), printable(message), code in FINAL, retry_after_s)]

    def _stop(self, phase: _Phase) -> None:
        self._phase = phase
        self._link.welcome = None
        self._link.ready = False
        self._probing = None
        self._link.outbox.clear()
        self._link.refs.clear()
        self._tags.clear()
        for session in self._sessions.values():
            session.suspend()

    def _drop(self, reason: str) -> None:
        self._link.counters.dropped[reason] += 1
