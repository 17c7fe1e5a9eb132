"""Both machines together: what a whole answer costs on the wire, and that it does not cost more as it grows."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from starsd_edge.protocol.codec import encode
from starsd_edge.protocol.hub_side import HubLimits, QueueDraft, Send
from starsd_edge.protocol.messages import Draft
from starsd_edge.protocol.target_side import DraftArrived, TargetEvent, TargetProtocol, TargetSession
from starsd_edge.speculation.tree import DraftShape, DraftTree
from tests.support.wire import WIDTH, Clock, HubUnderTest, a_hello

LONG = 1 << 17


class Star:
    """One target on one hub that guesses what it is told to."""

    def __init__(self, codec: str = "none") -> None:
        self.hub = HubUnderTest(codec=codec, limits=HubLimits(max_context=LONG))
        self.target = TargetProtocol(
            a_hello(codecs=[] if codec == "none" else [codec], max_context=LONG, vocab_size=1 << 17), Clock()
        )
        self.connection = self.hub.protocol.connect("alice")
        self.hub.protocol.ready("ngram")
        self.target.connected()
        self.session = self.target.open_session([70_000], "greedy")
        self.pump()

    def pump(self, answer: Callable[[QueueDraft], DraftTree] = lambda _: DraftTree.empty()) -> list[TargetEvent]:
        """Carry frames both ways until there are none; the target's events."""
        events: list[TargetEvent] = []
        while frames := self.target.frames():
            for frame in frames:
                actions = self.connection.receive(frame, self.hub.now, 0)
                for queued in [action for action in actions if isinstance(action, QueueDraft)]:
                    actions += self.hub.protocol.answer(
                        queued.session, queued.epoch, queued.base_len, answer(queued), 5, 7, self.hub.now
                    )
                for action in actions:
                    if isinstance(action, Send):
                        events += self.target.receive(action.frame)
        return events


def grow(session: TargetSession, rows: int, codec: str) -> None:
    """Rows with ids of one width on the wire."""
    features = None if codec == "none" else np.ones((rows, WIDTH), np.float16)
    session.append([70_000 + index % 1000 for index in range(rows)], features)


@pytest.mark.parametrize(("codec", "row_bytes"), [("none", 0), ("f2", 2 * WIDTH), ("i1", WIDTH + 2)])
def test_bytes_per_round_do_not_grow_with_the_sequence(codec: str, row_bytes: int) -> None:
    """Rounds of the same shape weigh the same from the first to the 100,000th row; only the numbers that name rows and
    epochs get wider: three of them up (epoch, base_len, first_row) and two down, from 1 byte to 5 at most each.
    """
    star = Star(codec)
    tree = DraftTree.chain([80_000 + index for index in range(5)])

    def round_bytes() -> tuple[int, int]:
        counters = star.target.counters
        before = counters.bytes_up.total(), counters.bytes_down.total()
        grow(star.session, 4, codec)
        star.session.request(DraftShape(8, 5))
        event = star.pump(lambda _: tree)[0]
        assert isinstance(event, DraftArrived)
        assert event.tree == tree
        return counters.bytes_up.total() - before[0], counters.bytes_down.total() - before[1]

    sizes = []
    for rows in (0, 1000, 20_000, 50_000, 0, 29_000):
        grow(star.session, rows, codec)
        star.session.extend()
        star.pump()
        sizes += [round_bytes() for _ in range(5)]
    assert star.session.rows == 100_000 + 6 * 5 * 4
    up, down = zip(*sizes, strict=True)
    assert max(up) - min(up) <= 3 * 4
    assert max(down) - min(down) <= 2 * 4
    assert len(set(sizes[10:])) <= 2
    assert 4 * row_bytes <= min(up) <= max(up) <= 4 * row_bytes + 4 * 5 + 64


def test_a_tree_of_sixty_nodes_goes_down_in_360_bytes_and_a_header() -> None:
    draft = Draft(b"t" * 16, 1, 2000, [100_000] * 60, [59] * 60, 100, 5000, 5100)
    assert len(encode(draft)) <= 360 + 48


def test_a_round_allocates_no_more_at_the_end_of_a_long_sequence_than_at_its_beginning() -> None:
    """No list or buffer of the whole sequence is made in a round; an amortised growth may fall into one of several."""
    star = Star("f2")

    def peak() -> int:
        peaks = []
        for _ in range(5):
            tracemalloc.start()
            grow(star.session, 2, "f2")
            star.session.request(DraftShape(8, 5))
            star.pump()
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        return min(peaks)

    short = peak()
    grow(star.session, 60_000, "f2")
    star.session.extend()
    star.pump()
    assert peak() < short + 20_000


def test_a_prompt_goes_up_before_its_first_chosen_token_and_the_request_brings_the_rest() -> None:
    star = Star()
    grow(star.session, 511, "none")
    star.session.extend()
    star.pump()
    assert star.hub.protocol.sessions()[0].rows == 511
    star.session.append([3])
    asked: list[QueueDraft] = []

    def answer(queued: QueueDraft) -> DraftTree:
        asked.append(queued)
        return DraftTree.chain([1])

    star.session.request(DraftShape(8, 5, 2))
    assert [type(event) for event in star.pump(answer)] == [DraftArrived]
    assert [(queued.base_len, queued.shape) for queued in asked] == [(512, DraftShape(8, 5, 2))]


def test_both_ends_count_the_same_frames_and_bytes() -> None:
    star = Star()
    grow(star.session, 50, "none")
    star.session.request(DraftShape(8, 5))
    star.pump()
    star.target.close_session(star.session)
    star.pump()
    assert star.hub.protocol.counters == star.target.counters
    assert set(star.target.counters.frames_down) == {"Welcome", "Ready", "Opened", "Draft", "Closed"}
