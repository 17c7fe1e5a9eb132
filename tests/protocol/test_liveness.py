"""When a connection counts as dead: by what arrives and by what leaves."""

from __future__ import annotations

import pytest

from starsd_edge.protocol.liveness import Liveness


def life() -> Liveness:
    return Liveness(silent_s=20, stuck_s=10, now=100)


def test_whatever_arrives_is_life() -> None:
    liveness = life()
    for now in range(100, 1000, 19):
        liveness.arrived(now)
        assert liveness.look(0, True, now + 18) is None
    assert liveness.look(0, True, now + 20.5) == "nothing came from it for 20 s"


def test_bytes_that_leave_slowly_are_life_for_as_long_as_they_take() -> None:
    """A quarter of a megabyte at 16 kbit/s, seen once in nine seconds."""
    liveness = life()
    now, waiting = 100, 256 << 10
    while waiting > 0:
        now, waiting = now + 9, waiting - 9 * 2000
        liveness.arrived(now)
        assert liveness.look(max(0, waiting), True, now) is None
    assert now > 200


@pytest.mark.parametrize("growth", [0, 6])
def test_what_only_grows_is_stuck_though_the_peer_talks(growth: int) -> None:
    """A peer that sends pings and reads nothing makes answers to them pile up."""
    liveness = life()
    liveness.look(1000, True, 100)
    for tick in range(10):
        liveness.arrived(101 + tick)
        assert liveness.look(1000 + growth * tick, True, 100 + tick) is None
    assert liveness.look(2000, True, 110.5) == "it took nothing in for 10 s"


def test_silence_while_nothing_is_read_says_nothing() -> None:
    liveness = life()
    assert liveness.look(0, False, 300) is None
    assert liveness.look(0, True, 319) is None
    assert liveness.look(0, True, 321) == "nothing came from it for 20 s"


def test_a_message_that_went_out_between_two_looks_is_life() -> None:
    liveness = life()
    liveness.look(500, True, 100)
    liveness.arrived(115)
    liveness.left(109)
    assert liveness.look(500, True, 115) is None
    assert liveness.look(500, True, 120) is not None


def test_nothing_that_waits_is_not_stuck() -> None:
    liveness = life()
    for now in range(100, 200, 10):
        liveness.arrived(now)
        assert liveness.look(0, True, now) is None
