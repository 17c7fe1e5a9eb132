"""A target that shows its hub the last rows of a text only."""

from __future__ import annotations

import pytest

from starsd_edge.protocol.messages import DraftRequest, Extend, Open, Opened, Resync
from starsd_edge.protocol.target_side import SessionEnded, TargetSession
from starsd_edge.speculation.tree import DraftShape
from tests.support.wire import TargetUnderTest, a_tensor, a_welcome, only, some_features

TAG = b"t" * 16
SHAPE = DraftShape(8, 4)
WINDOW = 5


def prompt_of(tokens: int) -> list[int]:
    """So many tokens; row i brings 100 + i."""
    return [7, *range(100, 99 + tokens)]


def prefill(session: TargetSession, start: int, stop: int) -> None:
    """Rows of the text, as one chunk of the prefill."""
    session.append(range(100 + start, 100 + stop), some_features(stop - start, start))
    session.extend()


def prefilled(rows: int) -> tuple[TargetUnderTest, TargetSession, Open]:
    """A prompt of so many tokens and the row of the first token said, and its OPEN, which is not answered yet."""
    target = TargetUnderTest(window=WINDOW)
    target.connect(a_welcome(feature_codec="f2"))
    session = target.protocol.open_session(prompt_of(rows), "greedy")
    opening = only(Open, target.sent())
    for start in range(0, rows, 4):
        prefill(session, start, min(rows, start + 4))
    assert session.request(SHAPE) is None
    assert target.sent() == []
    return target, session, opening


@pytest.mark.parametrize(
    ("rows", "first_row", "t_first"), [(1, 0, 7), (5, 0, 7), (6, 1, 100), (12, 7, 106), (4000, 3995, 4094)]
)
def test_a_session_begins_a_window_before_the_end_of_the_prompt(rows: int, first_row: int, t_first: int) -> None:
    target, session, opening = prefilled(rows)
    assert (opening.first_row, opening.t_first, opening.resume) == (first_row, t_first, None)
    target.hear(Opened(opening.ref, TAG, first_row))
    assert session.request(SHAPE) == 1
    message = only(DraftRequest, target.sent())
    assert (message.first_row, message.base_len) == (first_row, rows)
    assert message.ids == list(range(100 + first_row, 100 + rows))
    assert message.features == a_tensor(some_features(rows - first_row, first_row))


def test_rows_of_the_window_go_up_while_the_prompt_is_prefilled() -> None:
    target = TargetUnderTest(window=WINDOW)
    target.connect(a_welcome(feature_codec="f2"))
    session = target.protocol.open_session(prompt_of(12), "greedy")
    target.hear(Opened(only(Open, target.sent()).ref, TAG, 7))
    sent = []
    for start in range(0, 11, 2):
        prefill(session, start, min(11, start + 2))
        assert (session.rows >= 7) or session.request(SHAPE) is None, "nothing to ask before the window"
        sent += [message for message in target.sent() if isinstance(message, Extend)]
    assert [(message.first_row, message.ids) for message in sent] == [(7, [107]), (8, [108, 109]), (10, [110])]
    assert sent[1].features == a_tensor(some_features(2, 8))
    session.append([900], some_features(1, 11))
    assert session.request(SHAPE) == 1
    asked = only(DraftRequest, target.sent())
    assert (asked.first_row, asked.base_len, asked.ids) == (11, 12, [900])


def test_a_session_that_breaks_off_before_the_window_is_resumed_there() -> None:
    target = TargetUnderTest(window=WINDOW)
    target.connect(a_welcome(feature_codec="f2"))
    session = target.protocol.open_session(prompt_of(12), "greedy")
    target.hear(Opened(only(Open, target.sent()).ref, TAG, 7))
    prefill(session, 0, 3)
    target.protocol.disconnected()
    target.connect(a_welcome(feature_codec="f2"))
    again = only(Open, target.sent())
    assert (again.first_row, again.t_first, again.resume) == (7, 106, TAG)
    target.hear(Opened(again.ref, TAG, 7))
    prefill(session, 3, 9)
    assert only(Extend, target.sent()).ids == [107, 108]


def test_what_comes_after_the_beginning_is_all_sent() -> None:
    target, session, opening = prefilled(12)
    session.append(range(112, 132), some_features(20, 12))
    target.hear(Opened(opening.ref, TAG, 7))
    session.extend()
    message = only(Extend, target.sent())
    assert (message.first_row, len(message.ids)) == (7, 25)


def test_a_resume_names_the_beginning_that_it_had() -> None:
    target, session, opening = prefilled(12)
    target.hear(Opened(opening.ref, TAG, 7))
    session.extend()
    session.append(range(112, 132), some_features(20, 12))
    target.protocol.disconnected()
    target.connect(a_welcome(feature_codec="f2"))
    again = only(Open, target.sent())
    assert (again.first_row, again.t_first, again.resume) == (7, 106, TAG)
    target.hear(Opened(again.ref, TAG, 12))
    session.extend()
    assert only(Extend, target.sent()).first_row == 12


def test_a_new_hub_is_shown_the_window_before_the_present_end() -> None:
    target, session, opening = prefilled(12)
    target.hear(Opened(opening.ref, TAG, 7))
    session.append(range(112, 132), some_features(20, 12))
    target.protocol.disconnected()
    target.connect(a_welcome(hub_id="other", feature_codec="f2"))
    again = only(Open, target.sent())
    assert (again.first_row, again.t_first, again.resume) == (27, 126, None)


def test_a_hub_that_asks_for_rows_before_the_beginning_is_not_answered() -> None:
    target, session, opening = prefilled(12)
    target.hear(Opened(opening.ref, TAG, 7))
    session.extend()
    target.protocol.frames()
    assert target.hear(Resync(TAG, 6)) == []
    assert target.sent() == []
    target.hear(Resync(TAG, 7))
    assert only(Extend, target.sent()).first_row == 7


@pytest.mark.parametrize("rows_held", [0, 6, 8])
def test_a_hub_that_opens_another_session_than_was_asked_for_loses_it(rows_held: int) -> None:
    target, _, opening = prefilled(12)
    only(SessionEnded, target.hear(Opened(opening.ref, TAG, rows_held)))


def test_a_window_without_rows_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        TargetUnderTest(window=0)
