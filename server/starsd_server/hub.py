"""The hub: one protocol machine, one queue, one drafting thread and one front door, put together.

Everything but drafting happens on the event loop: frames go through the protocol machine, its actions to a peer's
`Q_out` or to `Q_in`; the drafting thread's outcomes come back onto the loop the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from http import HTTPStatus

import msgspec

from starsd_edge import __version__
from starsd_edge.errors import StarsdError
from starsd_edge.listening import explain
from starsd_edge.protocol.codes import CLOSE_NORMAL
from starsd_edge.protocol.hub_side import (
    AnswerProbe,
    Away,
    DraftJudged,
    DropSession,
    FindPort,
    HangUp,
    HubAction,
    HubConnection,
    HubProtocol,
    MessageRefused,
    QueueDraft,
    ReportReceived,
    Send,
    SendOn,
    SessionResumed,
    TargetJoined,
)
from starsd_edge.protocol.messages import TAG_BYTES
from starsd_edge.scheduling.scheduler import POLICIES, Scheduler
from starsd_edge.telemetry.feed import DEGRADED, FAILED, JOINED, LEFT, RECOVERED, REFUSED, RESUMED, TURNED_AWAY, WARM
from starsd_edge.telemetry.hub_facts import HubFacts
from starsd_server.draft_queue import Absorb, Batch, DraftQueue, QueuedAction, WorkQueue
from starsd_server.draft_size import ShapeControllers, share
from starsd_server.drafter_pool import Broken, Done, Drafted, DrafterPool, DraftFailed, Outcome, Warm
from starsd_server.drafters.contract import DrafterRegistry
from starsd_server.facts import EventLog, RecentTimes, RecentUse, TargetNames, drafter_facts, judgement, target_facts
from starsd_server.feed import MonitorFeed
from starsd_server.front_door import FrontDoor, Page
from starsd_server.measurements import Latencies, PassRecord
from starsd_server.metrics import CONTENT_TYPE, HubMetrics
from starsd_server.offers import Offers
from starsd_server.page import star_page
from starsd_server.peer import LiveConnection, Peer
from starsd_server.settings import HubSettings
from starsd_server.worker import DraftWorker, Handover

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""Seconds that a drafter in pure Python may hold the interpreter while the event loop waits for it (Python's default is
5 ms).
"""
_TICK_S = 1.0
"""Seconds between two rounds of periodic work: expired sessions, link times, time sums."""
SHARE_S = 0.25
"""Seconds between two choices of draft shapes."""
MOST_SHARING = 0.02
"""Largest share of the time that choosing draft shapes may take; above it the choices become less frequent."""
_LAST_DRAFT_S = 5.0
"""Seconds to wait for the draft in progress when the hub closes."""

ConnectionAction = (
    HangUp | FindPort | SendOn | AnswerProbe | ReportReceived | TargetJoined | SessionResumed | MessageRefused
)
"""Actions that concern one connection, without Send."""


class Hub:
    """One draft server. All methods belong to the event loop."""

    def __init__(
        self,
        registry: DrafterRegistry,
        settings: HubSettings,
        clock: Callable[[], float],
        offers: Offers | None = None,
    ) -> None:
        """Args:
        clock: monotonic seconds, thread-safe.
        offers: bundles to hand to targets; None offers none.
        """
        self.broken = asyncio.Event()
        """Set when the drafting thread, or the one that hands over what it did, has ended by a fault."""
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._started_at = clock()
        self._hub_id = secrets.token_hex(8)
        self._drafters = registry.drafters
        self._door = FrontDoor(settings.door, settings.limits.heartbeat_s, self, clock)
        self._offers = offers
        self._own_ports = len(settings.door.own_ports or ())
        self._drafting = settings.drafting
        self._pass_record = PassRecord([drafter.kind for drafter in self._drafters], settings.drafting.max_batch)
        self._latencies = Latencies()
        scheduler = Scheduler(
            POLICIES[settings.drafting.policy](),
            {key.owner: key.terms for key in settings.door.all_keys},
            predict=self._pass_record.predict,
            expect=self._latencies.expected_return_s,
        )
        self._queue = WorkQueue(DraftQueue(scheduler, settings.drafting.max_batch), clock)
        self._shapes = ShapeControllers(clock, settings.drafting.shape)
        self._drafter_pool = DrafterPool(self._drafters, clock)
        self._protocol = HubProtocol(
            self._hub_id,
            lambda hello: registry.offer(hello, lambda kind: self._drafter_pool.health[kind].broken or None),
            settings.limits,
            lambda: secrets.token_bytes(TAG_BYTES),
            has_own_ports=self._own_ports > 0,
        )
        self._handover = Handover(self._deliver, self._died)
        self._worker = DraftWorker(self._drafter_pool, self._queue, self._handover.put, self._died, clock)
        self._connections: dict[Peer, HubConnection] = {}
        self._peers: dict[int, Peer] = {}
        """By the number of their connection in the protocol machine."""
        self._times = RecentTimes()
        self._use = RecentUse()
        self._metrics = HubMetrics(self.facts)
        self._events = EventLog(lambda: clock() - self._started_at)
        self._feed = MonitorFeed(self.facts, self._events.recent)
        self._names = TargetNames()
        self._turned_away = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, sock: socket.socket) -> None:
        """Listen on a bound socket and begin to draft.

        Raises:
            UsageError: another process listens there, or on all the ports that targets may be sent on to.
        """
        try:
            await self._door.open(sock)
        except OSError as error:
            host, port = sock.getsockname()[:2]
            raise explain(host, port, error) from None
        self._handover.start()
        self._worker.start()
        self._tasks = [asyncio.create_task(self._tick()), asyncio.create_task(self._share_out())]

    async def stop(self) -> None:
        """Part from all targets and end the drafting thread."""
        for task in self._tasks:
            task.cancel()
        await self._door.close()
        if not self._worker.stop(_LAST_DRAFT_S):
            log.warning("the draft in progress did not end within %g s", _LAST_DRAFT_S)
        self._handover.stop()

    # ConnectionHandler: what the front door calls.

    def connected(self, peer: Peer) -> None:
        """See `ConnectionHandler`."""
        connection = self._protocol.connect(peer.owner, peer.at_own_port)
        self._connections[peer] = connection
        self._peers[connection.number] = peer

    def received(self, peer: Peer, frame: bytes) -> None:
        """See `ConnectionHandler`."""
        waiting_bytes = self._queue.waiting_bytes(peer.owner)
        self._carry_out(self._connections[peer].receive(frame, self._clock(), waiting_bytes))

    def disconnected(self, peer: Peer) -> None:
        """See `ConnectionHandler`."""
        name = self._name_of(self._connections[peer])
        connection = self._connections.pop(peer)
        del self._peers[connection.number]
        self._latencies.forget_target(connection)
        self._carry_out(connection.lost(self._clock()))
        if connection.terms is not None:
            self._events.add(LEFT, name)

    async def watched(self, connection: LiveConnection) -> None:
        """See `ConnectionHandler`."""
        await self._feed.serve(connection)

    @property
    def offers_bundles(self) -> bool:
        """See `ConnectionHandler`."""
        return self._offers is not None

    async def fetching(self, connection: LiveConnection) -> None:
        """See `ConnectionHandler`."""
        if self._offers is not None:
            await self._offers.serve(connection)

    def public_page(self, path: str) -> Page | None:
        """See `ConnectionHandler`."""
        if path == "/":
            return star_page()
        if path == "/healthz":
            return _health(self._worker.is_alive, "ok", "the drafting thread has ended")
        if path == "/readyz":
            return _health(self.is_ready, "ready", "the drafter is not warm, or keeps failing: see /status")
        return None

    def private_page(self, path: str) -> Page | None:
        """See `ConnectionHandler`."""
        if path == "/status":
            facts = msgspec.json.format(msgspec.json.encode(self.facts()), indent=2)
            return Page(HTTPStatus.OK, facts.decode(), "application/json")
        if path == "/metrics":
            return Page(HTTPStatus.OK, self._metrics.text(), CONTENT_TYPE)
        return None

    # Actions of the protocol machine, outcomes of the drafting thread.

    def _carry_out(self, actions: Sequence[HubAction]) -> None:
        for action in actions:
            if isinstance(action, Send):
                peer = self._peers.get(action.connection)
                if peer is not None:
                    peer.send(action.frame)
            elif isinstance(action, QueueDraft):
                self._queue_draft(action)
            elif isinstance(action, DraftJudged):
                self._shapes.judged(action.session, action.steps)
            elif isinstance(action, QueuedAction):
                self._note_end(action)
                self._queue.put(action)
            else:
                peer = self._peers.get(action.connection)
                if peer is not None:
                    self._carry_out_at(peer, action)

    def _carry_out_at(self, peer: Peer, action: ConnectionAction) -> None:
        """Do, or note, what concerns one connection."""
        connection = self._connections[peer]
        if isinstance(action, HangUp):
            log.info("hanging up on %s: %s", peer.address, action.reason)
            self._events.add(REFUSED, self._name_of(connection), action.reason)
            peer.hang_up(action.code, action.reason)
        elif isinstance(action, FindPort):
            self._carry_out(self._protocol.send_on(action, self._door.own_port(action.owner)))
        elif isinstance(action, SendOn):
            log.info("sending %s on to port %d", peer.address, action.port)
            peer.hang_up(CLOSE_NORMAL, f"go on at port {action.port}")
        elif isinstance(action, AnswerProbe):
            self._carry_out(self._protocol.answer_probe(action, self._clock(), peer.is_behind))
        elif isinstance(action, ReportReceived):
            self._latencies.of_target(connection).reported(action.report.rounds, action.report.verify_us)
        elif isinstance(action, TargetJoined):
            self._note_arrival(peer, self._name_of(connection), action)
        elif isinstance(action, SessionResumed):
            self._events.add(RESUMED, self._name_of(connection))
        else:
            self._events.add(REFUSED, self._name_of(connection), action.code)

    def _note_arrival(self, peer: Peer, name: str, joined: TargetJoined) -> None:
        log.info("target %r at %s on port %d: %s", name, peer.address, peer.port, joined.drafter)
        if name != joined.target:
            log.warning("more than one target has called itself %r: give each its own --name", joined.target)
        self._events.add(JOINED, name, joined.drafter)

    def _queue_draft(self, asked: QueueDraft) -> None:
        """Choose the shape of a draft, and queue the request unless that is empty."""
        connection = self._protocol.connection_of(asked.session)
        if connection is None:
            return
        shape = self._shapes.choose(asked.session, connection, asked.base_len, asked.shape)
        if shape.is_empty:
            self._carry_out(self._protocol.turn_down(asked))
            return
        self._shapes.returned(asked.session, asked.returned_s)
        path = self._latencies.of_target(connection).path
        was_degraded = path.degraded
        self._latencies.observe(asked, connection)
        if path.degraded != was_degraded:
            self._events.add(DEGRADED if path.degraded else RECOVERED, self._name_of(connection), path.told)
        self._queue.put(self._protocol.narrow(asked, shape))

    def _note_end(self, action: QueuedAction) -> None:
        if isinstance(action, DropSession):
            self._latencies.forget_session(action.session)
            self._shapes.forget(action.session)
        elif isinstance(action, Away):
            self._shapes.left(action.session)

    def _deliver(self, done: Done) -> None:
        """On the handover's thread: tell the loop what was done, which may have ended before the last draft did."""
        if done.outcomes or isinstance(done.work, Absorb):
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._take_in, done)

    def _died(self) -> None:
        """On the thread that ends."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.broken.set)

    def _take_in(self, done: Done) -> None:
        if isinstance(done.work, Absorb | Batch):
            self._pass_record.note_unused(done, lambda session: self._protocol.connection_of(session) is not None)
        for outcome in done.outcomes:
            self._pass_on(outcome)
        if isinstance(done.work, Absorb | Batch):
            self._queue.spent(done.work, done.service_s)
            self._pass_record.take_in(done)

    def _pass_on(self, outcome: Outcome) -> None:
        if isinstance(outcome, Warm):
            log.info("drafter %s is warm", outcome.drafter)
            self._events.add(WARM, text=outcome.drafter)
            self._carry_out(self._protocol.ready(outcome.drafter))
        elif isinstance(outcome, Broken):
            self._events.add(FAILED, text=f"{outcome.drafter}: {outcome.why}")
            self._carry_out(self._protocol.broken(outcome.drafter, outcome.why))
        elif isinstance(outcome, Drafted):
            self._times.add(outcome.queue_us, outcome.service_us)
            self._metrics.drafted(outcome.queue_us, outcome.service_us)
            self._shapes.drafted(outcome.session, len(outcome.tree))
            self._carry_out(
                self._protocol.answer(
                    outcome.session,
                    outcome.epoch,
                    outcome.base_len,
                    outcome.tree,
                    outcome.queue_us,
                    outcome.service_us,
                    self._clock(),
                )
            )
        else:
            self._note_failure(outcome)
            self._carry_out(self._protocol.failed(outcome.session, outcome.epoch, outcome.message))

    def _note_failure(self, failure: DraftFailed) -> None:
        connection = self._protocol.connection_of(failure.session)
        self._events.add(FAILED, "" if connection is None else self._name_of(connection), failure.message)

    async def _tick(self) -> None:
        """Once a second: end sessions that were away for too long, read link times, sum up the thread's time."""
        while True:
            await asyncio.sleep(_TICK_S)
            self._carry_out(self._protocol.expire(self._clock()))
            self._door.expire()
            for peer in self._connections:
                peer.sample_rtt()
            self._use.add(self._worker.time_use())
            self._note_turned_away()

    async def _share_out(self) -> None:
        """Choose the draft shapes anew every `SHARE_S` seconds, on another thread; less often where that takes long."""
        pause_s = SHARE_S
        while True:
            await asyncio.sleep(pause_s)
            began = self._clock()
            try:
                await self._choose_shapes()
            except Exception:  # targets go on with the shapes that they have
                log.exception("a fault of the hub's own while choosing draft shapes")
            pause_s = max(SHARE_S, (self._clock() - began) / MOST_SHARING)

    async def _choose_shapes(self) -> None:
        demands = self._shapes.demands()
        if demands:
            costs = self._pass_record.known_costs()
            self._shapes.take(await asyncio.to_thread(share, demands, costs, self._drafting.max_batch))

    def _note_turned_away(self) -> None:
        """At most one event a second, however many connections are turned away."""
        count = self._door.auth_failures + self._door.turned_away
        if count > self._turned_away:
            self._events.add(TURNED_AWAY, text=f"{count - self._turned_away} connections")
            self._turned_away = count

    # Facts.

    @property
    def is_ready(self) -> bool:
        """Whether every drafter is warm and works."""
        return self._worker.is_alive and all(
            health.warm and not health.failing for health in self._drafter_pool.health.values()
        )

    def facts(self) -> HubFacts:
        """What is true now."""
        sessions = self._protocol.sessions()
        counters = self._protocol.counters
        use = self._worker.time_use()
        now = self._clock()
        held = Counter(self._protocol.connection_of(session.session) for session in sessions)
        names = self._shown_names()
        return HubFacts(
            hub_id=self._hub_id,
            version=__version__,
            uptime_s=round(now - self._started_at, 3),
            ready=self.is_ready,
            drafters=[
                drafter_facts(drafter, self._drafter_pool.health[drafter.kind], self._pass_record.service(drafter.kind))
                for drafter in self._drafters
            ],
            targets=[
                target_facts(
                    names[connection],
                    peer,
                    connection,
                    held[connection],
                    self._latencies.of_target(connection),
                    self._shapes.facts(connection),
                    now,
                )
                for peer, connection in self._connections.items()
            ],
            sessions=len(sessions),
            sessions_away=sum(not session.attached for session in sessions),
            queue=self._queue.depth,
            time=use,
            busy_ratio=self._use.busy_ratio(use),
            draft_times=self._times.summary(),
            bytes_up=counters.bytes_up.total(),
            bytes_down=counters.bytes_down.total(),
            dropped=dict(counters.dropped),
            auth_failures=self._door.auth_failures,
            turned_away=self._door.turned_away,
            drafted=judgement(self._protocol.record),
            own_ports=self._own_ports,
            own_ports_taken=self._door.own_ports_taken,
            policy=self._drafting.policy,
            policy_in_use=self._queue.policy,
            batches=self._pass_record.batches(),
            unused_s=self._pass_record.unused_s,
            bundle_bytes=0 if self._offers is None else self._offers.bytes_sent,
        )

    def _shown_names(self) -> dict[HubConnection, str]:
        """Names of all connected targets. Targets that were told goodbye come last: a newer connection may be the same
        target, which keeps its name.
        """
        there = sorted(self._connections, key=lambda peer: peer.leaving)
        terms = [self._connections[peer].terms for peer in there]
        said = [("" if each is None else each.target, peer.host) for each, peer in zip(terms, there, strict=True)]
        return dict(zip((self._connections[peer] for peer in there), self._names.shown(said), strict=True))

    def _name_of(self, connection: HubConnection) -> str:
        return "" if connection.terms is None else self._shown_names().get(connection, connection.terms.target)


def _health(good: bool, yes: str, no: str) -> Page:
    return Page(HTTPStatus.OK, f"{yes}\n") if good else Page(HTTPStatus.SERVICE_UNAVAILABLE, f"{no}\n")


async def serve_hub(
    registry: DrafterRegistry,
    settings: HubSettings,
    sock: socket.socket,
    announce: Callable[[], None],
    offers: Offers | None = None,
) -> None:
    """Run a hub on a bound socket until SIGINT or SIGTERM.

    Args:
        announce: called once targets can connect.
        offers: bundles to hand to targets; None offers none.

    Raises:
        UsageError: another process listens there.
        StarsdError: one of the hub's threads ended by a fault.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    loop = asyncio.get_running_loop()
    told_to_stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told_to_stop.set)
    hub = Hub(registry, settings, time.monotonic, offers)
    await hub.start(sock)
    try:
        announce()
        await _first(told_to_stop, hub.broken)
    finally:
        await hub.stop()
    if hub.broken.is_set():
        raise StarsdError("a thread of the hub ended by a fault of its own, which the log shows: start the hub again")


async def _first(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
