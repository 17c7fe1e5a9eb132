"""When a connection counts as dead: by what arrives and by what leaves."""

from __future__ import annotations

import pytest

from starsd_edge.protocol.liveness import Liveness


def life(silent_s: float = 20, stuck_s: float = 10) -> Liveness:
    return Liveness(silent_s, stuck_s, now=0)


def first_word(
    liveness: Liveness, waiting: list[int], *, talks: bool = True, is_reading: bool = True
) -> tuple[int, str]:
    """When, and why, it is dead, looked at once a second with so many bytes waiting; the last number goes on."""
    for now in range(1, 1000):
        if talks:
            liveness.arrived(now)
        why = liveness.look(waiting[min(now, len(waiting)) - 1], is_reading, now)
        if why is not None:
            return now, why
    return 1000, ""


def test_whatever_arrives_is_life_and_silence_is_none() -> None:
    assert first_word(life(), [0]) == (1000, "")
    assert first_word(life(), [0], talks=False) == (21, "nothing came from it for 20 s")


def test_silence_while_nothing_is_read_says_nothing() -> None:
    assert first_word(life(), [0], talks=False, is_reading=False) == (1000, "")


def test_bytes_that_leave_slowly_are_life_for_as_long_as_they_take() -> None:
    """A quarter of a megabyte at 16 kbit/s, of which the kernel takes some every eight seconds."""
    assert first_word(life(), [max(0, (256 << 10) - 16_000 * (now // 8)) for now in range(300)]) == (1000, "")


@pytest.mark.parametrize("growth", [0, 6])
def test_what_only_grows_is_stuck_though_the_peer_talks(growth: int) -> None:
    """A peer that sends pings and reads nothing makes answers to them pile up."""
    stuck = first_word(life(), [0, *(1000 + growth * now for now in range(100))])
    assert stuck == (12, "it took nothing in for 10 s")


def test_a_message_that_went_out_between_two_looks_is_life() -> None:
    liveness = life()
    for now in range(1, 30):
        liveness.arrived(now)
        if now % 9 == 0:
            liveness.left(now)
        assert liveness.look(500, True, now) is None


def test_an_end_that_stood_still_itself_does_not_blame_the_other() -> None:
    liveness = life()
    assert liveness.look(500, True, 1) is None
    assert liveness.look(500, True, 100) is None
    assert [liveness.look(500, True, 100 + second) for second in range(1, 7)] == [None] * 6
    assert liveness.look(500, True, 109) == "it took nothing in for 10 s"
