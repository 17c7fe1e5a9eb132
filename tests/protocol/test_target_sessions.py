"""Sessions at the target: rows that go up, come again, and outlive connections and hubs."""

from __future__ import annotations

import numpy as np
import pytest

from starsd_edge.protocol.codec import decode_from_target
from starsd_edge.protocol.messages import (
    MAX_FRAME_BYTES,
    MAX_ROWS,
    MAX_TENSOR_BYTES,
    Close,
    Closed,
    Draft,
    DraftRequest,
    Error,
    Extend,
    Open,
    Opened,
    Ready,
    Report,
    Resync,
)
from starsd_edge.protocol.target_side import (
    DraftArrived,
    RequestRefused,
    SessionEnded,
    SessionOpened,
    TargetSession,
)
from starsd_edge.speculation.tree import DraftShape
from tests.support.wire import WIDTH, TargetUnderTest, a_tensor, a_welcome, only, some_features

TAG = b"t" * 16
SHAPE = DraftShape(8, 4)


def with_features(width: int = WIDTH, codec: str = "f2") -> tuple[TargetUnderTest, TargetSession]:
    target = TargetUnderTest(feature_width=width, codecs=["f2", "i1"])
    target.connect(a_welcome(feature_codec=codec))
    return target, target.open(TAG)


def plain(rows: int = 0) -> tuple[TargetUnderTest, TargetSession]:
    """A session without features that sent rows 0..rows-1, ids as their index."""
    target = TargetUnderTest(codecs=[])
    target.connect()
    session = target.open(TAG)
    session.append(range(rows))
    session.extend()
    target.protocol.frames()
    return target, session


def rows_of(messages: list[object]) -> list[int]:
    """The ids in these messages, one after the other; each has to begin where the last ended."""
    ids: list[int] = []
    for message in messages:
        assert isinstance(message, Extend | DraftRequest)
        assert message.first_row == len(ids)
        assert len(message.ids) <= MAX_ROWS
        ids += message.ids
    return ids


def test_open_goes_out_when_welcomed() -> None:
    target = TargetUnderTest()
    session = target.protocol.open_session([9], "sampled")
    assert not session.is_open
    target.connect(ready=False)
    opening = only(Open, target.sent())
    assert (opening.first_row, opening.t_first, opening.sampling_kind, opening.resume) == (0, 9, "sampled", None)
    assert not session.is_open
    assert session.request(SHAPE) is None


def test_rows_are_kept_until_the_session_is_open_and_sent_once() -> None:
    target = TargetUnderTest(codecs=[])
    target.connect()
    session = target.protocol.open_session([7], "greedy")
    opening = only(Open, target.sent())
    session.append([1, 2])
    session.extend()
    assert target.sent() == []
    target.hear(Opened(opening.ref, TAG, 0))
    session.append([3])
    session.extend()
    session.extend()
    assert target.sent() == [Extend(TAG, 0, [1, 2, 3])]
    assert session.rows == 3
    session.append([4])
    assert session.request(SHAPE) == 1
    assert target.sent() == [DraftRequest(TAG, 1, 4, 3, [4], 8, 4, 1)]


def test_features_travel_only_if_welcome_wants_them() -> None:
    target, session = with_features()
    features = some_features(3)
    session.append([1, 2, 3], features)
    session.extend()
    message = only(Extend, target.sent())
    assert message.features is not None
    assert message.features.shape == [3, WIDTH]
    assert bytes(message.features.data) == features.tobytes()
    target.protocol.disconnected()
    target.connect(a_welcome(hub_id="other"))
    target.hear(Opened(only(Open, target.sent()).ref, TAG, 0))
    session.extend()
    assert only(Extend, target.sent()).features is None


@pytest.mark.parametrize("codec", ["f2", "i1"])
def test_features_survive_until_a_hub_that_wants_them_comes(codec: str) -> None:
    target = TargetUnderTest(codecs=["f2", "i1"])
    session = target.protocol.open_session([7], "greedy")
    features = some_features(700)
    for start in range(0, 700, 7):
        session.append(range(start, start + 7), features[start : start + 7])
    target.connect(a_welcome(feature_codec=codec))
    target.hear(Opened(only(Open, target.sent()).ref, TAG, 0))
    session.extend()
    message = only(Extend, target.sent())
    assert message.features == a_tensor(features, codec)


def test_a_hub_that_wants_another_codec_gets_the_kept_features_in_it() -> None:
    target, session = with_features(codec="i1")
    features = some_features(5)
    session.append(range(5), features)
    session.extend()
    assert only(Extend, target.sent()).features == a_tensor(features, "i1")
    target.hear(Resync(TAG, 2))
    assert only(Extend, target.sent()).features == a_tensor(features[2:], "i1")
    target.protocol.disconnected()
    target.connect(a_welcome(hub_id="other", feature_codec="f2"))
    target.hear(Opened(only(Open, target.sent()).ref, TAG, 0))
    session.extend()
    assert only(Extend, target.sent()).features == a_tensor(features, "f2")


def test_features_that_are_not_finite_are_bent_to_finite_ones() -> None:
    target, session = with_features()
    features = some_features(2)
    features[0, :3] = [np.nan, np.inf, -np.inf]
    session.append([1, 2], features)
    session.extend()
    message = only(Extend, target.sent())
    assert message.features is not None
    sent = np.frombuffer(message.features.data, "<f2").reshape(2, WIDTH)
    assert sent[0, :3].tolist() == [0, 65504, -65504]
    assert np.array_equal(sent[1], features[1])
    assert np.isnan(features[0, 0])


@pytest.mark.parametrize("features", [None, some_features(1), some_features(2, width=4)])
def test_rows_without_the_promised_features_are_a_mistake_of_the_caller(features: object) -> None:
    _, session = with_features()
    with pytest.raises(ValueError, match=r"features of shape \(2, 8\)"):
        session.append([1, 2], features)  # type: ignore[arg-type]
    assert session.rows == 0


@pytest.mark.parametrize("rows", [127, 128, 129, 512, 2048])
@pytest.mark.parametrize("width", [4096, 576])
@pytest.mark.parametrize("codec", ["f2", "i1"])
def test_long_prompts_go_up_in_chunks_within_the_caps(rows: int, width: int, codec: str) -> None:
    target, session = with_features(width, codec)
    session.append([index % 1000 for index in range(rows)], np.ones((rows, width), np.float16))
    assert session.request(SHAPE) == 1
    frames = target.protocol.frames()
    assert max(map(len, frames)) <= MAX_TENSOR_BYTES + 8 * MAX_ROWS < MAX_FRAME_BYTES
    messages = [decode_from_target(frame) for frame in frames]
    assert [type(message) for message in messages] == [Extend] * (len(messages) - 1) + [DraftRequest]
    assert rows_of(list(messages)) == [index % 1000 for index in range(rows)]
    for message in messages:
        assert isinstance(message, Extend | DraftRequest)
        assert message.features is not None
        assert message.features.shape == [len(message.ids), width]
        assert message.features.data.nbytes <= MAX_TENSOR_BYTES


def test_ids_alone_are_chunked_by_rows() -> None:
    target, session = plain()
    session.append([1] * 3000)
    session.extend()
    messages = target.sent()
    assert [len(message.ids) for message in messages if isinstance(message, Extend)] == [1024, 1024, 952]
    assert rows_of(list(messages)) == [1] * 3000


def test_nothing_is_asked_on_a_new_connection_before_the_session_is_resumed() -> None:
    target, session = plain(rows=3)
    target.protocol.disconnected()
    target.connect()
    assert not session.is_open
    assert session.request(SHAPE) is None
    session.extend()
    assert only(Open, target.sent()).resume == TAG


def test_an_opened_of_the_last_connection_is_dropped() -> None:
    target = TargetUnderTest(codecs=[])
    target.connect()
    session = target.protocol.open_session([7], "greedy")
    old = only(Open, target.sent())
    target.connect()
    new = only(Open, target.sent())
    assert target.hear(Opened(old.ref, b"o" * 16, 0)) == []
    assert target.hear(Opened(new.ref, TAG, 0)) == [SessionOpened(session)]


def test_after_a_reconnect_to_the_same_hub_only_missing_rows_go_up() -> None:
    target, session = plain(rows=5)
    target.protocol.disconnected()
    assert not session.is_open
    session.append([5, 6])
    assert session.request(SHAPE) is None
    target.connect()
    opening = only(Open, target.sent())
    assert opening.resume == TAG
    assert target.hear(Opened(opening.ref, TAG, 4)) == [SessionOpened(session)]
    assert session.request(SHAPE) == 1
    assert target.sent() == [DraftRequest(TAG, 1, 7, 4, [4, 5, 6], 8, 4, 1)]


def test_another_hub_instance_gets_every_row_anew() -> None:
    target, session = plain(rows=5)
    target.protocol.disconnected()
    target.connect(a_welcome(hub_id="hub-2"))
    opening = only(Open, target.sent())
    assert opening.resume is None
    target.hear(Opened(opening.ref, b"u" * 16, 0))
    assert session.request(SHAPE) is not None
    assert rows_of(list(target.sent())) == [0, 1, 2, 3, 4]


def test_an_expired_session_is_opened_anew_at_once() -> None:
    target, session = plain(rows=3)
    target.protocol.disconnected()
    target.connect()
    opening = only(Open, target.sent())
    assert target.hear(Error("unknown_session", "gone", "session", TAG, ref=opening.ref)) == []
    again = only(Open, target.sent())
    assert again.resume is None
    assert again.ref != opening.ref
    target.hear(Opened(again.ref, b"u" * 16, 0))
    session.extend()
    assert target.sent() == [Extend(b"u" * 16, 0, [0, 1, 2])]


def test_a_hub_that_never_opens_is_not_asked_in_a_loop() -> None:
    target = TargetUnderTest()
    session = target.protocol.open_session([7], "greedy")
    target.connect()
    opening = only(Open, target.sent())
    ended = only(SessionEnded, target.hear(Error("unknown_session", "no", "session", ref=opening.ref)))
    assert ended.session is session
    assert target.sent() == []


def test_a_session_that_the_hub_ended_opens_anew_when_its_pause_is_over() -> None:
    target, session = plain(rows=3)
    ended = only(SessionEnded, target.hear(Error("drafter_failed", "oom\n", "session", TAG, 1, 2000)))
    assert (ended.session, ended.retry_after_s) == (session, 2.0)
    assert ended.message.isprintable()
    assert not session.is_open
    target.clock.now += 1.9
    assert session.request(SHAPE) is None
    session.extend()
    assert target.sent() == []
    target.clock.now += 0.2
    assert session.request(SHAPE) is None
    assert session.request(SHAPE) is None
    opening = only(Open, target.sent())
    assert opening.resume is None
    target.hear(Opened(opening.ref, b"u" * 16, 0))
    assert session.request(SHAPE) is not None
    assert rows_of(list(target.sent())) == [0, 1, 2]


def test_sessions_that_keep_failing_are_tried_ever_less_often() -> None:
    target, session = plain()
    waits = []
    for turn in range(10):
        tag = bytes([turn]) * 16
        waits.append(only(SessionEnded, target.hear(Error("x", "y", "session", session.tag))).retry_after_s)
        target.clock.now += waits[-1]
        session.extend()
        target.hear(Opened(only(Open, target.sent()).ref, tag, 0))
    assert waits == sorted(waits)
    assert waits[0] < 1
    assert waits[-1] == 30
    epoch = session.request(SHAPE)
    assert epoch is not None
    only(DraftArrived, target.hear(Draft(session.tag or b"", epoch, 0, [], [], 0, 0, 0)))
    assert only(SessionEnded, target.hear(Error("x", "y", "session", session.tag))).retry_after_s == waits[0]


def test_a_hub_that_lost_an_open_session_ends_it() -> None:
    target, session = plain(rows=3)
    ended = only(SessionEnded, target.hear(Error("unknown_session", "no such session", "frame", TAG)))
    assert ended.session is session
    assert target.hear(Error("unknown_session", "no such session", "frame", TAG)) == []


def test_a_refused_frame_or_a_foreign_tag_changes_nothing() -> None:
    target, session = plain(rows=3)
    assert target.hear(Error("base_len", "no", "frame", TAG, 1), Error("x", "y", "session", b"?" * 16)) == []
    assert target.hear(Error("x", "y", "session"), Error("x", "y", "session", ref=99)) == []
    assert session.is_open


def test_a_refused_request_is_told_once_and_the_session_goes_on() -> None:
    target, session = plain(rows=3)
    assert session.request(DraftShape(4, 4)) == 1
    assert session.request(DraftShape(4, 4)) == 2
    refusal = Error("base_len", "no\n", "frame", TAG, 2)
    told = only(RequestRefused, target.hear(refusal))
    assert (told.session, told.epoch) == (session, 2)
    assert told.message.isprintable()
    assert target.hear(refusal) == []
    assert target.hear(Draft(TAG, 2, 3, [], [], 0, 0, 0)) == []
    assert only(DraftArrived, target.hear(Draft(TAG, 1, 3, [5], [-1], 0, 0, 0))).epoch == 1
    assert session.is_open


def test_a_frame_that_the_hub_could_not_read_may_have_been_any_request() -> None:
    target, session = plain(rows=3)
    idle = target.open(b"u" * 16)
    session.request(DraftShape(4, 4))
    told = only(RequestRefused, target.hear(Error("malformed", "not a message", "frame")))
    assert (told.session, told.epoch) == (session, 1)
    assert only(DraftArrived, target.hear(Draft(TAG, 1, 3, [5], [-1], 0, 0, 0))).epoch == 1  # it was another
    assert target.hear(Error("malformed", "not a message", "frame")) == []
    assert idle.is_open


def test_a_full_hub_is_asked_again_after_the_pause_it_names() -> None:
    target = TargetUnderTest(codecs=[])
    target.connect()
    session = target.protocol.open_session([7], "greedy")
    opening = only(Open, target.sent())
    ended = only(
        SessionEnded, target.hear(Error("too_many_sessions", "full", "session", retry_after_ms=5000, ref=opening.ref))
    )
    assert (ended.session, ended.retry_after_s) == (session, 5.0)
    target.clock.now += 5
    session.extend()
    assert only(Open, target.sent()).ref != opening.ref


def test_a_resume_refused_for_want_of_room_waits_too() -> None:
    target, session = plain(rows=3)
    target.protocol.disconnected()
    target.connect()
    opening = only(Open, target.sent())
    refusal = Error("too_many_sessions", "full", "session", TAG, retry_after_ms=5000, ref=opening.ref)
    assert only(SessionEnded, target.hear(refusal)).session is session
    session.extend()
    assert target.sent() == []


def test_no_hub_can_ask_for_a_pause_without_end() -> None:
    target, _ = plain()
    ended = only(SessionEnded, target.hear(Error("x", "y", "session", TAG, retry_after_ms=(1 << 31) - 1)))
    assert ended.retry_after_s == 600


def test_resync_sends_the_rows_again_and_the_request_behind_the_gap() -> None:
    target, session = plain(rows=3)
    session.append([3, 4])
    epoch = session.request(SHAPE)
    session.append([5])
    session.extend()
    target.protocol.frames()
    assert target.hear(Resync(TAG, 1)) == []
    assert target.sent() == [
        DraftRequest(TAG, 1, 5, 1, [1, 2, 3, 4], 8, 4, 1),
        Extend(TAG, 5, [5]),
    ]
    assert only(DraftArrived, target.hear(Draft(TAG, 1, 5, [], [], 0, 0, 0))).epoch == epoch
    assert target.hear(Resync(TAG, 2)) == []
    assert target.sent() == [Extend(TAG, 2, [2, 3, 4, 5])]


def test_a_request_before_the_gap_is_not_repeated() -> None:
    target, session = plain(rows=3)
    session.request(SHAPE)
    session.append([3, 4, 5])
    session.extend()
    target.protocol.frames()
    assert target.hear(Resync(TAG, 4)) == []
    assert target.sent() == [Extend(TAG, 4, [4, 5])]


def test_resync_keeps_the_chunks_within_the_caps() -> None:
    target, session = plain(rows=3000)
    session.request(SHAPE)
    target.protocol.frames()
    target.hear(Resync(TAG, 0))
    messages = target.sent()
    assert [type(message) for message in messages] == [Extend, Extend, DraftRequest]
    assert rows_of(list(messages)) == list(range(3000))


def test_a_hub_that_asks_for_rows_again_and_again_cannot_fill_memory_or_link() -> None:
    target, session = plain(rows=3000)
    for _ in range(100):
        assert target.hear(Resync(TAG, 0)) == []
    assert len(target.protocol.frames()) == 3
    events = []
    for _ in range(20):
        events += target.hear(Resync(TAG, 0))
        target.protocol.frames()
    assert isinstance(events[0], SessionEnded)
    assert not session.is_open
    assert target.protocol.counters.frames_up["Extend"] <= 3 * 10


def test_resync_from_rows_never_sent_is_malformed() -> None:
    target, session = plain(rows=3)
    assert target.hear(Resync(TAG, 4), Resync(b"?" * 16, 0)) == []
    assert target.sent() == []
    assert session.is_open
    assert target.protocol.counters.dropped["malformed"] == 1


def test_a_hub_that_claims_rows_it_was_never_sent_is_not_believed() -> None:
    target = TargetUnderTest(codecs=[])
    target.connect()
    session = target.protocol.open_session([7], "greedy")
    session.append([1, 2, 3])
    opening = only(Open, target.sent())
    ended = only(SessionEnded, target.hear(Opened(opening.ref, TAG, 1)))
    assert ended.session is session
    assert not session.is_open
    assert target.sent() == [Close(TAG)]


def test_resumed_under_another_tag_is_not_believed() -> None:
    target, session = plain(rows=3)
    target.protocol.disconnected()
    target.connect()
    only(SessionEnded, target.hear(Opened(only(Open, target.sent()).ref, b"u" * 16, 2)))
    assert not session.is_open


def test_one_tag_for_two_sessions_is_not_believed() -> None:
    target, first = plain(rows=1)
    second = target.protocol.open_session([8], "greedy")
    ended = only(SessionEnded, target.hear(Opened(only(Open, target.sent()).ref, TAG, 0)))
    assert ended.session is second
    assert first.is_open
    assert not second.is_open


def test_opened_again_is_dropped() -> None:
    target = TargetUnderTest(codecs=[])
    target.connect()
    session = target.protocol.open_session([7], "greedy")
    opening = only(Open, target.sent())
    session.append([1])
    assert len(target.hear(Opened(opening.ref, TAG, 0))) == 1
    session.extend()
    target.protocol.frames()
    assert target.hear(Opened(opening.ref, TAG, 0), Opened(77, b"u" * 16, 0)) == []
    session.extend()
    assert target.sent() == []


def test_close_goes_out_once_and_what_comes_late_is_dropped() -> None:
    target, session = plain(rows=3)
    session.request(SHAPE)
    target.protocol.frames()
    target.protocol.close_session(session)
    target.protocol.close_session(session)
    assert target.sent() == [Close(TAG)]
    assert not session.is_open
    assert session.request(SHAPE) is None
    assert target.hear(Draft(TAG, 1, 3, [], [], 0, 0, 0), Resync(TAG, 0), Error("x", "y", "session", TAG)) == []
    assert target.hear(Closed(TAG, 3), Closed(TAG, 3)) == []
    assert target.sent() == []


def test_a_session_closed_before_it_was_opened_is_closed_when_it_is() -> None:
    target = TargetUnderTest()
    target.connect()
    session = target.protocol.open_session([7], "greedy")
    opening = only(Open, target.sent())
    target.protocol.close_session(session)
    assert target.sent() == []
    assert target.hear(Opened(opening.ref, TAG, 0)) == []
    assert target.sent() == [Close(TAG)]


def test_a_session_closed_before_it_was_refused_is_forgotten() -> None:
    target = TargetUnderTest()
    target.connect()
    session = target.protocol.open_session([7], "greedy")
    opening = only(Open, target.sent())
    target.protocol.close_session(session)
    assert target.hear(Error("too_many_sessions", "full", "session", ref=opening.ref)) == []
    target.clock.now += 100
    session.extend()
    assert target.sent() == []


def test_a_session_never_sent_is_closed_without_a_word() -> None:
    target = TargetUnderTest()
    target.protocol.close_session(target.protocol.open_session([7], "greedy"))
    target.connect()
    assert target.sent() == []


def test_a_close_that_the_hub_has_not_confirmed_is_repeated_to_the_same_hub_only() -> None:
    target, session = plain(rows=3)
    target.protocol.disconnected()
    target.protocol.close_session(session)
    target.connect()
    assert target.sent() == [Close(TAG)]
    target.protocol.disconnected()
    target.connect(a_welcome(hub_id="hub-2"))
    assert target.sent() == []


def test_a_close_that_the_hub_has_confirmed_is_not_repeated() -> None:
    target, session = plain(rows=3)
    target.protocol.close_session(session)
    target.protocol.frames()
    target.hear(Closed(TAG, 3))
    target.connect()
    assert target.sent() == []


def test_sessions_of_one_connection_do_not_mix() -> None:
    target = TargetUnderTest(codecs=[])
    target.connect()
    first, second = target.open(b"1" * 16), target.open(b"2" * 16)
    first.append([1])
    second.append([2, 3])
    assert (first.request(SHAPE), second.request(SHAPE)) == (1, 1)
    assert target.sent() == [
        DraftRequest(b"1" * 16, 1, 1, 0, [1], 8, 4, 1),
        DraftRequest(b"2" * 16, 1, 2, 0, [2, 3], 8, 4, 1),
    ]
    assert only(DraftArrived, target.hear(Draft(b"2" * 16, 1, 2, [5], [-1], 0, 0, 0))).session is second


def test_ready_alone_does_not_open_what_the_hub_has_not_opened() -> None:
    target = TargetUnderTest()
    target.connect(ready=False)
    session = target.protocol.open_session([7], "greedy")
    assert [type(event).__name__ for event in target.hear(Ready("ngram"))] == ["HubReady"]
    assert not session.is_open


@pytest.mark.parametrize(("codec", "told"), [("f2", 2), ("i1", 2), ("none", 0)])
def test_rows_with_features_that_are_not_finite_are_counted(codec: str, told: int) -> None:
    """In all of a target's reports, and in the drafts of the session where its features travel."""
    target = TargetUnderTest(codecs=["f2", "i1"])
    target.connect(a_welcome(feature_codec=codec, reports=True))
    session = target.open(TAG)
    features = some_features(4)
    features[0, :3] = [np.nan, np.inf, -np.inf]
    features[2, 7] = np.inf
    session.append([1, 2, 3, 4], features)
    session.append([5], some_features(1))
    session.request(SHAPE)
    request = only(DraftRequest, target.sent())
    arrived = only(DraftArrived, target.hear(Draft(TAG, request.epoch, request.base_len, [1], [-1], 0, 0, 0)))
    assert arrived.clamped_rows == told
    target.protocol.report(Report(1, 1, 0, 2, 30, 0, 20, 5))
    assert only(Report, target.sent()).clamped_rows == 2
