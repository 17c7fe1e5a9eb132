"""Rows over a modelled link of any rate, in made-up time: heartbeats do not wait behind them, and resuming gets on."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

import numpy as np
import pytest

from starsd_edge.protocol.codec import encode
from starsd_edge.protocol.hub_side import AddRows, QueueDraft
from starsd_edge.protocol.target_link import AHEAD_S, FIRST_RATE, UpRate
from starsd_edge.protocol.target_side import DraftArrived, TargetEvent, TargetProtocol
from starsd_edge.speculation.tree import DraftShape, DraftTree
from tests.support.wire import HubUnderTest, Peer, a_hello

KBIT = 1000 / 8
SHAPE = DraftShape(4, 4, 1)
MARK_BYTES = 14


class Line:
    """A target and a hub with a line of this rate and delay between them; marks travel in the stream as frames do."""

    def __init__(self, bytes_per_s: float, delay_s: float, width: int, lives_s: float | None = None) -> None:
        self.now = 0.0
        self.bytes_per_s = bytes_per_s
        self.delay_s = delay_s
        self.lives_s = lives_s
        self.up_rate = UpRate()
        hello = a_hello(codecs=["f2"], feature_width=width, max_context=4096)
        self.target = TargetProtocol(hello, lambda: self.now, None, self.up_rate)
        self.hub = HubUnderTest(codec="f2")
        self.hub.protocol.ready("ngram")
        self.sent = self.connections = 0
        self.longest_wait_s = 0.0
        """Behind what was on the line already, of anything put on it."""
        self.drafts: list[DraftArrived] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._peer: Peer | None = None
        self._written = 0
        self._up_free_at = 0.0
        self.connect()

    def connect(self) -> None:
        self.connections += 1
        if self._peer is not None:
            self._peer.lose()
        self.target.disconnected()
        self._peer = self.hub.connect_silently()
        self._written, self._up_free_at = 0, self.now
        self.target.connected()
        self.flush()
        if self.lives_s is not None:
            self.at(self.now + self.lives_s, self.connect)

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._order), what))

    def flush(self) -> None:
        for frame in self.target.frames():
            self._written += len(frame)
            self._put(len(frame), self._at_hub(frame))
            self._mark()
        self._mark()

    def _mark(self) -> None:
        if self.up_rate.mark(self._written, self.now):
            self._put(MARK_BYTES, self._at_hub(None, self._written))

    def run(self, done: Callable[[], bool], limit_s: float) -> float:
        while not done():
            self.now, _, what = heapq.heappop(self._due)
            self.hub.now = self.now
            assert self.now < limit_s, "it takes longer than that"
            what()
        return self.now

    def _put(self, size: int, arrives: Callable[[], None]) -> None:
        self.longest_wait_s = max(self.longest_wait_s, self._up_free_at - self.now)
        self._up_free_at = max(self._up_free_at, self.now) + size / self.bytes_per_s
        self.sent += size
        self.at(self._up_free_at + self.delay_s, arrives)

    def _at_hub(self, frame: bytes | None, written: int = 0) -> Callable[[], None]:
        peer = self._peer
        assert peer is not None

        def arrive() -> None:
            if peer is not self._peer:
                return
            if frame is None:
                self.at(self.now + self.delay_s, lambda: self._at_target(peer, lambda: self.target.arrived(written)))
                return
            for message in peer.say_frame(frame):
                self._reply(peer, encode(message))
            for queued in [action for action in self.hub.done if isinstance(action, QueueDraft)]:
                self.hub.done.remove(queued)
                for message in self.hub.answer(peer, queued, DraftTree.chain([1])):
                    self._reply(peer, encode(message))

        return arrive

    def _reply(self, peer: Peer, frame: bytes) -> None:
        self.at(self.now + self.delay_s, lambda: self._at_target(peer, lambda: self._take(self.target.receive(frame))))

    def _take(self, events: list[TargetEvent]) -> None:
        self.drafts += [event for event in events if isinstance(event, DraftArrived)]

    def _at_target(self, peer: Peer, do: Callable[[], None]) -> None:
        if peer is self._peer:
            do()
            self.flush()


def rows_at_hub(line: Line) -> int:
    return sum(len(action.rows.ids) for action in line.hub.done if isinstance(action, AddRows))


def prompt_over(line: Line, rows: int, width: int) -> None:
    """A prompt's rows and a request, asked for again every two seconds as a target does that gets no answer."""
    session = line.target.open_session([7] * (rows + 1), "greedy")
    session.append([7] * rows, np.ones((rows, width), dtype=np.float16))

    def ask() -> None:
        if not line.drafts:
            session.request(SHAPE)
            line.flush()
            line.at(line.now + 2.0, ask)

    line.at(0.0, ask)


@pytest.mark.parametrize("delay_s", [0.005, 0.3, 1.5])
@pytest.mark.parametrize("kbit", [16, 100, 400, 10_000, 1_000_000])
def test_a_prompt_arrives_at_the_rate_of_the_link_and_heartbeats_do_not_wait_for_it(
    kbit: float, delay_s: float
) -> None:
    rows, width = 200, 256
    line = Line(kbit * KBIT, delay_s, width)
    prompt_over(line, rows, width)
    took_s = line.run(lambda: bool(line.drafts), 600)
    assert rows_at_hub(line) == rows
    payload = rows * width * 2
    assert line.sent < 1.1 * payload + 3000
    # Two seconds for the first question, and a few ways there and back until the rate is known.
    assert took_s < 1.15 * payload / (kbit * KBIT) + 2.0 + 24 * delay_s
    first_s = 2 * FIRST_RATE / (kbit * KBIT)
    assert line.longest_wait_s < 1.5 * max(AHEAD_S, min(first_s, payload / (kbit * KBIT)))


def test_once_the_rate_is_known_nothing_waits_for_more_than_what_is_sent_ahead() -> None:
    line = Line(16 * KBIT, 0.05, 256)
    prompt_over(line, 300, 256)
    line.run(lambda: rows_at_hub(line) > 150, 600)
    line.longest_wait_s = 0.0
    line.run(lambda: bool(line.drafts), 600)
    assert line.longest_wait_s < 1.3 * AHEAD_S


@pytest.mark.parametrize("width", [256, 4096])
@pytest.mark.parametrize("lives_s", [15, 20, 45])
def test_a_link_that_breaks_again_and_again_gets_on_at_16_kbit(lives_s: float, width: int) -> None:
    rows = 150_000 // (2 * width)
    line = Line(16 * KBIT, 0.05, width, lives_s)
    prompt_over(line, rows, width)
    took_s = line.run(lambda: bool(line.drafts), 900)
    assert line.connections == 1 + took_s // lives_s > 1
    assert rows_at_hub(line) == rows
    assert line.sent < 2.2 * rows * 2 * width


def test_two_sessions_share_a_slow_link() -> None:
    line = Line(16 * KBIT, 0.05, 256)
    sessions = [line.target.open_session([7] * 101, "greedy") for _ in range(2)]
    for session in sessions:
        session.append([7] * 100, np.ones((100, 256), dtype=np.float16))
    line.flush()
    line.run(lambda: all(session.is_open for session in sessions), 60)
    for session in sessions:
        session.extend()
    line.flush()
    line.run(lambda: rows_at_hub(line) > 100, 600)
    of_each = [0, 0]
    for action in line.hub.done:
        if isinstance(action, AddRows):
            of_each[action.rows.session - 1] += len(action.rows.ids)
    assert min(of_each) > 20


def test_the_rows_of_a_session_that_is_closed_stay_where_they_are() -> None:
    line = Line(16 * KBIT, 0.05, 256)
    session = line.target.open_session([7] * 1001, "greedy")
    session.append([7] * 1000, np.ones((1000, 256), dtype=np.float16))
    line.flush()
    line.run(lambda: session.is_open, 60)
    session.extend()
    line.flush()
    line.target.close_session(session)
    line.flush()
    line.run(lambda: not line.hub.protocol.sessions(), 60)
    assert line.sent < 50_000


def test_a_request_that_waits_for_its_rows_is_superseded_by_the_next() -> None:
    line = Line(16 * KBIT, 0.05, 256)
    prompt_over(line, 200, 256)
    line.run(lambda: bool(line.drafts), 600)
    assert len(line.drafts) == 1
    assert line.drafts[0].epoch > 20
    assert line.drafts[0].round_trip_us < 10_000_000
    assert line.hub.protocol.counters.frames_up["DraftRequest"] <= 2
