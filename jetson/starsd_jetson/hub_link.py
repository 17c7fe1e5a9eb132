"""The link to the hub: a WebSocket client on a thread of its own around `TargetProtocol`, which does no I/O.

Decoding waits for it only in `DraftChannel.wait`. It reconnects by itself for as long as it runs, whatever
ended the connections before. A refusal that somebody has to mend (a wrong token, a model that does not fit) it says
once, and asks again once a minute. A hub may send it on to a port of its own; however that connection ends, the way
back leads through the hub's main port. One lock guards the state machine; the event loop holds it only to take in or
hand out frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from websockets.exceptions import ConnectionClosed

from starsd_edge.protocol.messages import Hello, Report, Welcome
from starsd_edge.protocol.target_link import UpRate
from starsd_edge.protocol.target_side import (
    DraftArrived,
    ProbeAnswered,
    ProbeRefused,
    Refused,
    RequestRefused,
    SentOn,
    SessionEnded,
    SessionOpened,
    TargetEvent,
    TargetProtocol,
    TargetSession,
    Welcomed,
)
from starsd_edge.telemetry.hub_opening import CLOSE_TIMEOUT_S
from starsd_edge.telemetry.rtt import RttEstimator, TcpRtt
from starsd_edge.telemetry.summary import LinkFigures
from starsd_jetson.hub_address import HubAddress
from starsd_jetson.hub_channel import HubChannel, LinkProbe
from starsd_jetson.hub_endings import Backoff, Ending, HubError, unreachable
from starsd_jetson.hub_socket import HubSocket

log = logging.getLogger(__name__)

WELCOME_TIMEOUT_S = 5.0
"""Seconds from HELLO to WELCOME after which the connection is given up: what listens there may be no hub."""
REFUSED_S = 60.0
"""Seconds before a hub that refuses is asked again: a person has to change something first, here or there."""
_THREAD_TIMEOUT_S = 2 * CLOSE_TIMEOUT_S + 1.0
"""Seconds that `stop` waits for the link's thread: two closing handshakes in bounded time, and a second to spare."""
_RECENT_LINK_TIMES = 256
"""Number of last drafts whose time outside the hub is kept for the figures."""


class HubLink:
    """A target's connection to its hub, kept up by a thread of its own from `start` to `stop`; a context manager.

    Args:
        address: where the hub is, and the token for it.
        hello: the HELLO message of this target.
        notify: takes one line for the user whenever the link's state changes; called from the link's thread. Parts of a
            line may be the hub's words.
        clock: monotonic seconds.
        uniform: a random number in [0, 1), for the jitter.
        draft_window: number of last rows of a text that the hub is sent when a session joins; None sends all of them.
    """

    def __init__(
        self,
        address: HubAddress,
        hello: Hello,
        notify: Callable[[str], None],
        clock: Callable[[], float],
        uniform: Callable[[], float],
        draft_window: int | None = None,
    ) -> None:
        self._address = address
        self._notify = notify
        self._clock = clock
        self._backoff = Backoff(uniform)
        self._changed = threading.Condition()
        self._up_rate = UpRate()
        self._protocol = TargetProtocol(hello, clock, draft_window, self._up_rate)
        self._channels: dict[TargetSession, HubChannel] = {}
        self._outbox: deque[bytes] = deque()
        self._thread = threading.Thread(target=self._run, name="hub-link", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        self._stop_asked = False
        self._welcomed_at: float | None = None
        self._failure: str | None = None
        self._told: Ending | None = None
        self._ending: Ending | None = None
        self._sent_on: HubAddress | None = None
        self._socket: HubSocket | None = None
        self._tcp: TcpRtt | None = None
        self._link_times = RttEstimator()
        self._recent_link_s: deque[float] = deque(maxlen=_RECENT_LINK_TIMES)
        self._listener: Callable[[], None] = lambda: None
        self._probe = LinkProbe(self._protocol, self._changed, self._flush)
        self._welcome: Welcome | None = None
        self._connections = 0

    def __enter__(self) -> HubLink:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to connect, in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Part from the hub and end the thread; a hub that does not take part in it is cut off. Idempotent."""
        with self._changed:
            self._stop_asked = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_THREAD_TIMEOUT_S)

    def wait_for_hub(self, timeout_s: float) -> None:
        """Wait until the hub has welcomed this target.

        Raises:
            HubError: the first attempt failed, the hub refused, or it did neither in time.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._connections or self._failure is not None, timeout_s)
            if not self._connections:
                raise HubError(self._failure or unreachable(self._address, f"no answer within {timeout_s:g} s"))

    def open_channel(self, prompt: Sequence[int], sampling_kind: str) -> HubChannel:
        """Begin a session, whether or not the hub is there: it joins as soon as it can."""
        with self._changed:
            session = self._protocol.open_session(prompt, sampling_kind)
            channel = HubChannel(session, self._protocol, self._changed, self._flush, self._forget)
            self._channels[session] = channel
            self._flush()
            return channel

    def listen(self, listener: Callable[[], None]) -> None:
        """Have this called, from the link's thread, whenever a frame came or the connection ended: it must not block.
        The last listener counts.
        """
        with self._changed:
            self._listener = listener

    def report(self, report: Report) -> None:
        """Tell the hub's monitor how this target fares, if there is a hub that wants to know."""
        with self._changed:
            self._protocol.report(report)
            self._flush()

    def probe(self, payload_bytes: int, want_bytes: int, timeout_s: float) -> ProbeAnswered | None:
        """Measure the link with one probe. Blocks; for one thread at a time.

        Args:
            payload_bytes: bytes to send to the hub.
            want_bytes: bytes to have sent back.
            timeout_s: seconds to wait for the answer.

        Returns:
            The answer; None where the hub takes no probes, refuses this one or does not answer in time.
        """
        return self._probe.measure(payload_bytes, want_bytes, timeout_s)

    @property
    def welcome(self) -> Welcome | None:
        """What the hub said when it last accepted this target; None before."""
        with self._changed:
            return self._welcome

    @property
    def figures(self) -> LinkFigures:
        """What the link has seen so far."""
        with self._changed:
            self._read_tcp()
            drafter = "" if self._welcome is None else self._welcome.drafter
            recent, is_up = tuple(self._recent_link_s), self._welcomed_at is not None
            return LinkFigures(
                drafter,
                self._tcp,
                self._link_times.smoothed_s,
                self._connections,
                recent,
                is_up,
                self._protocol.clamped_rows,
            )

    # The decode thread and the link's thread, with the lock held.

    def _flush(self) -> int:
        frames = self._protocol.frames()
        if (frames or self._up_rate.is_full) and self._socket is not None and self._loop is not None:
            self._outbox.extend(frames)
            self._loop.call_soon_threadsafe(self._wake.set)
        return sum(map(len, frames))

    def _forget(self, session: TargetSession) -> None:
        self._channels.pop(session, None)

    def _read_tcp(self) -> None:
        if self._socket is not None:
            self._tcp = self._socket.rtt() or self._tcp

    # The link's thread.

    def _run(self) -> None:
        asyncio.run(self._stay_connected())

    async def _stay_connected(self) -> None:
        with self._changed:
            self._loop = asyncio.get_running_loop()
            if self._stop_asked:
                self._stopping.set()
        try:
            while not self._stopping.is_set():
                ending = await self._attempt()
                if self._stopping.is_set():
                    return
                self._tell(ending)
                at_least_s = REFUSED_S if ending.is_lasting else ending.retry_after_s
                await self._pause(self._backoff.next_delay_s(at_least_s))
        finally:
            with self._changed:
                self._loop = None

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _attempt(self) -> Ending:
        """From the first packet to the end, by way of a port of its own where the hub sends this target on."""
        try:
            ending = await self._connect(self._address)
            sent_on, self._sent_on = self._sent_on, None
            if sent_on is None or self._stopping.is_set():
                return ending
            return await self._connect(sent_on)
        except Exception as error:  # it costs this connection; decoding does not depend on it
            log_fault("a fault of our own on the link to the hub", error)
            return Ending("the link to the hub broke by a fault of its own")

    async def _connect(self, address: HubAddress) -> Ending:
        """One connection."""
        self._sent_on = None
        opening = asyncio.ensure_future(HubSocket.open(address))
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not opening.done():
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            return Ending("stopped")
        sock = opening.result()
        if isinstance(sock, Ending):
            return sock
        try:
            return await self._serve(sock, address)
        finally:
            await sock.close()

    async def _serve(self, sock: HubSocket, address: HubAddress) -> Ending:
        """Talk until the connection ends, the hub refuses or the link is stopped."""
        self._ending = None
        welcome_limit = asyncio.get_running_loop().call_later(WELCOME_TIMEOUT_S, self._no_welcome, sock, address)
        tasks: list[asyncio.Future[object]] = []
        try:
            self._connected(sock, address)
            parts = (self._read(sock), self._write(sock), self._stopping.wait(), sock.watch())
            tasks += [asyncio.ensure_future(part) for part in parts]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set():
                with contextlib.suppress(ConnectionClosed):
                    await sock.send_last(self._outbox)
        finally:
            welcome_limit.cancel()
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            self._disconnected()
        _raise_faults(outcomes)
        return self._ending or Ending(f"the connection to the hub {address.url} was lost")

    async def _read(self, sock: HubSocket) -> None:
        """Take in frames; nothing is computed here, or pongs would stop."""
        while self._ending is None:
            frame = await sock.receive()
            if isinstance(frame, bytes):
                with self._changed:
                    events = self._protocol.receive(frame)
                    notices = [line for line in map(self._on_event, events) if line]
                    self._flush()
                    self._listener()
                for line in notices:
                    self._say(line)

    async def _write(self, sock: HubSocket) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while True:
                await sock.send_next(self._outbox)
                written = sock.written
                with self._changed:
                    is_due = self._up_rate.mark(written, self._clock())
                if is_due:
                    await sock.mark(partial(self._arrived, sock, written))
                if not self._outbox:
                    break

    def _arrived(self, sock: HubSocket, written: int) -> None:
        """The hub has the first `written` bytes of this connection."""
        with self._changed:
            if self._socket is sock:
                self._protocol.arrived(written)
                self._flush()

    def _connected(self, sock: HubSocket, address: HubAddress) -> None:
        with self._changed:
            self._socket = sock
            self._protocol.connected(at_own_port=address.ticket is not None)
            self._flush()

    def _disconnected(self) -> None:
        with self._changed:
            self._read_tcp()
            self._socket = None
            self._protocol.disconnected()
            self._outbox.clear()
            self._probe.on_void()
            for channel in self._channels.values():
                channel.on_void()
            self._listener()
            if self._welcomed_at is not None:
                self._backoff.served(self._clock() - self._welcomed_at)
                self._welcomed_at = None

    def _no_welcome(self, sock: HubSocket, address: HubAddress) -> None:
        if self._welcomed_at is None:
            self._ending = Ending(unreachable(address, f"no WELCOME within {WELCOME_TIMEOUT_S:g} s"))
            sock.cut()

    def _on_event(self, event: TargetEvent) -> str | None:
        """Hand an event to whom it concerns; a line for the user if it is worth one. Called with the lock held."""
        if isinstance(event, DraftArrived):
            link_s = max(0, event.round_trip_us - event.hub_us) / 1e6
            self._link_times.add(link_s)
            self._recent_link_s.append(link_s)
            self._read_tcp()
            if event.session in self._channels:
                self._channels[event.session].on_draft(event)
        elif isinstance(event, RequestRefused):
            if event.session in self._channels:
                self._channels[event.session].on_refused(event.epoch)
        elif isinstance(event, (SessionOpened, SessionEnded)):
            if event.session in self._channels:
                self._channels[event.session].on_void()
            if isinstance(event, SessionEnded):
                return f"the hub ended the session: {event.message}; decoding goes on without it"
        elif isinstance(event, ProbeAnswered | ProbeRefused):
            self._probe.on_outcome(event)
        elif isinstance(event, Welcomed):
            return self._on_welcome(event)
        elif isinstance(event, SentOn):
            self._sent_on = self._address.at_own_port(event.port, event.ticket)
            self._ending = Ending(f"the hub sent this target on to port {event.port}")
        elif isinstance(event, Refused):
            reason = f"the hub {self._address.url} refuses this target: {event.message}"
            self._ending = Ending(reason, event.final, event.retry_after_s)
        return None

    def _on_welcome(self, event: Welcomed) -> str | None:
        back = self._connections > 0
        self._welcomed_at = self._clock()
        self._connections += 1
        self._welcome = event.welcome
        drafter = event.welcome.drafter
        self._told = None
        self._changed.notify_all()
        notice = f" ({event.welcome.notice})" if event.welcome.notice else ""
        if not back:
            return f"the hub {self._address.url} drafts with {drafter}{notice}"
        return f"the hub is back{' after a restart' if event.restarted else ''} and drafts with {drafter}{notice}"

    def _tell(self, ending: Ending) -> None:
        """Say why the hub is away, once until it is back; also when it is there by now and refuses."""
        again = "and asks it again every minute" if ending.is_lasting else "until it is there"
        with self._changed:
            self._failure = ending.reason
            self._changed.notify_all()
        if self._told is None or (ending.is_lasting and ending != self._told):
            self._told = ending
            self._say(f"{ending.reason}; decoding goes on without it {again}")

    def _say(self, line: str) -> None:
        try:
            self._notify(line)
        except Exception as error:  # it costs this line
            log_fault("a fault of our own while telling of the link", error)


def log_fault(what: str, error: Exception) -> None:
    """Log one line for users; the traceback only at the debug level."""
    log.error("%s: %s: %s", what, type(error).__name__, error, exc_info=log.isEnabledFor(logging.DEBUG))


def _raise_faults(outcomes: Sequence[object]) -> None:
    """A closed connection and a cancelled task are expected ends; anything else is a fault of ours and must be seen."""
    for outcome in outcomes:
        if isinstance(outcome, Exception) and not isinstance(outcome, ConnectionClosed):
            raise outcome
