"""When the hub is tried again."""

from __future__ import annotations

import random

from starsd_jetson.hub_endings import Backoff


def delays(backoff: Backoff, count: int) -> list[float]:
    return [backoff.next_delay_s() for _ in range(count)]


def test_ceiling_doubles_from_a_fifth_of_a_second_to_five_seconds() -> None:
    assert delays(Backoff(lambda: 1.0), 7) == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_delays_are_spread_over_everything_below_the_ceiling() -> None:
    firsts = [Backoff(random.Random(seed).random).next_delay_s() for seed in range(200)]
    assert min(firsts) < 0.02
    assert max(firsts) > 0.18
    assert all(0 <= delay <= 0.2 for delay in firsts)


def test_only_good_service_resets_it() -> None:
    backoff = Backoff(lambda: 1.0)
    delays(backoff, 6)
    backoff.served(0.5)
    assert delays(backoff, 1) == [5.0]
    backoff.served(60)
    assert delays(backoff, 2) == [0.2, 0.4]


def test_hub_that_welcomes_and_hangs_up_is_not_hammered() -> None:
    """A thousand reconnects in a second were seen of a client that took every handshake for service."""
    uniform = random.Random(1).random
    backoff = Backoff(uniform)
    now = tries = 0.0
    while now < 60:
        backoff.served(0.001)
        now += 0.001 + backoff.next_delay_s()
        tries += 1
    assert tries < 60


def test_wish_of_the_hub_is_kept() -> None:
    assert Backoff(lambda: 0.5).next_delay_s(at_least_s=30) == 30.1
