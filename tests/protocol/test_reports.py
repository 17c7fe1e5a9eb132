"""What targets tell of themselves, and what a hub sees of its drafts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from starsd_edge.protocol.codec import encode
from starsd_edge.protocol.codes import MALFORMED
from starsd_edge.protocol.counters import PathStep, walk
from starsd_edge.protocol.hub_side import QueueDraft
from starsd_edge.protocol.messages import Draft, DraftRequest, Error, HubMessage, Report
from starsd_edge.speculation.tree import DraftTree
from tests.support.wire import HubUnderTest, Peer, TargetUnderTest, a_welcome, only

REPORT = Report(10, 8, 1, 30, 400, 50, 300, 20, "late")


def a_draft(ids: Sequence[int], parents: Sequence[int]) -> Draft:
    return Draft(b"t" * 16, 1, 5, list(ids), list(parents), 0, 0, 0)


@pytest.mark.parametrize(
    ("emitted", "accepted", "offered"),
    [
        ([9], 0, 1),  # the first guess is wrong
        ([1, 9], 1, 2),
        ([1, 2, 9], 2, 3),
        ([1, 2, 3, 9], 3, 3),  # the whole tree came true: nothing was offered below
        ([4, 9], 1, 2),  # the second child of the root
        ([4, 5, 9], 2, 2),
        ([4], 1, 1),  # nothing more was said, so nothing below was tried
        ([], 0, 0),
    ],
)
def test_the_rows_that_follow_tell_what_of_a_tree_came_true(emitted: list[int], accepted: int, offered: int) -> None:
    tree = a_draft([1, 2, 3, 4, 5], [-1, 0, 1, -1, 3])
    steps = walk(tree, emitted)
    assert (sum(step.rank > 0 for step in steps), len(steps)) == (accepted, offered)


def test_a_walk_tells_how_many_were_offered_and_which_came_true() -> None:
    tree = a_draft([1, 2, 3, 4, 5], [-1, 0, 1, -1, 3])
    assert walk(tree, [4, 5, 6]) == [PathStep(2, 2), PathStep(1, 1)]
    assert walk(tree, [1, 9]) == [PathStep(2, 1), PathStep(1, 0)]


def ask(hub: HubUnderTest, peer: Peer, tag: bytes, epoch: int, rows: Sequence[int], new: int) -> list[HubMessage]:
    """A request whose last `new` rows are news."""
    first = len(rows) - new
    return peer.say(DraftRequest(tag, epoch, len(rows), first, list(rows[first:]), 8, 4, 1))


def test_a_hub_counts_what_its_drafts_were_worth_per_connection_and_together() -> None:
    hub = HubUnderTest()
    peer, other = hub.connect(), hub.connect(target="other")
    tag = peer.open()
    rows = [1, 2]
    for epoch, said in enumerate([[5, 6, 9], [9]], 1):  # after the first draft 5, 6 come true and 9 follows
        ask(hub, peer, tag, epoch, rows, new=2 if epoch == 1 else 3)
        hub.answer(peer, hub.done.pop(), DraftTree.chain([5, 6, 7]))  # type: ignore[arg-type]
        rows += said
    ask(hub, peer, tag, 3, rows, new=1)
    record = peer.connection.record
    assert (record.drafts, record.nodes, record.judged, record.accepted) == (2, 6, 2, 2)
    assert (record.level_trials, record.level_hits) == ([2, 1, 1], [1, 1, 0])
    assert list(record.waits_us) == [5, 5]
    assert hub.protocol.record == record
    assert other.connection.record.drafts == 0


def test_a_request_that_no_drafter_was_asked_for_is_no_draft_that_failed() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    tag = peer.open()
    ask(hub, peer, tag, 1, [1, 2], new=2)
    hub.answer(peer, hub.done.pop(), DraftTree.empty())  # type: ignore[arg-type]
    (turned_down,) = peer.say(DraftRequest(tag, 2, 3, 2, [3], 0, 0, 1))
    assert isinstance(turned_down, Draft)
    assert turned_down.ids == []
    ask(hub, peer, tag, 3, [1, 2, 3, 4], new=1)
    record = peer.connection.record
    assert (record.drafts, record.judged, record.accepted) == (1, 1, 0)


def test_a_draft_for_a_session_that_went_on_elsewhere_finds_its_connection() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    ask(hub, peer, peer.open(), 1, [1], new=1)
    queued = hub.done[-1]
    assert isinstance(queued, QueueDraft)
    assert hub.protocol.connection_of(queued.session) is peer.connection
    peer.lose()
    assert hub.protocol.connection_of(queued.session) is None
    assert hub.protocol.connection_of(99) is None


def test_a_report_is_kept_and_not_answered() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    assert peer.connection.report is None
    assert peer.say(REPORT) == []
    assert peer.connection.report == REPORT


@pytest.mark.parametrize("reason", ["Upper", "two words", "a" * 33, "new\nline", "bell\n"])
def test_a_reason_that_is_no_word_is_refused(reason: str) -> None:
    peer = HubUnderTest().connect()
    frame = encode(msgspec.structs.replace(REPORT, why_off=reason))
    assert only(Error, peer.say_frame(frame)).code == MALFORMED
    assert peer.connection.report is None


def test_a_target_reports_only_to_a_hub_that_wants_it() -> None:
    target = TargetUnderTest()
    target.protocol.report(REPORT)
    assert target.sent() == []
    target.connect(a_welcome(reports=False))
    target.protocol.report(REPORT)
    assert target.sent() == []
    target.connect(a_welcome(reports=True))
    target.protocol.report(REPORT)
    assert target.sent() == [REPORT]
