"""The keyed coin: every implementation of a target must toss the same one."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from starsd_edge.speculation.sampling import coin

GOLDEN = [
    ((0, 0, 0), 0.011546754286331562),
    ((0, 0, 1), 0.5023796042735054),
    ((1, 0, 0), 0.3035680343067586),
    ((0, 1, 0), 0.8133540609793564),
    ((42, 0, 100), 0.03985356751609792),
    ((2**64 - 1, 0, 7), 0.6865660636114761),
    ((2**63, 3, 2**40), 0.4376057660979986),
    ((12345678901234567890, 2**64 - 1, 8191), 0.3976896361670862),
]


def philox4x64(key: tuple[int, int], counter: tuple[int, int, int, int]) -> int:
    """First word of Philox4x64-10, from its paper (Salmon et al. 2011, section 3.3), in plain integers."""
    word = 2**64
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c0, word)
        high1, low1 = divmod(0xCA5A826395121157 * c2, word)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) % word, (k1 + 0xBB67AE8584CAA73B) % word
    return c0


@pytest.mark.parametrize(("arguments", "expected"), GOLDEN)
def test_golden_values(arguments: tuple[int, int, int], expected: float) -> None:
    assert coin(*arguments) == expected


@pytest.mark.parametrize(("arguments", "expected"), GOLDEN)
def test_is_philox_at_the_next_counter(arguments: tuple[int, int, int], expected: float) -> None:
    seed, choice_index, position = arguments
    # numpy counts up before it draws.
    assert (philox4x64((seed, choice_index), (position + 1, 0, 0, 0)) >> 11) * 2.0**-53 == expected


def test_differs_by_seed_choice_and_position() -> None:
    coins = {coin(s, c, p) for s in range(10) for c in range(10) for p in range(10)}
    assert len(coins) == 1000


def test_uniform_over_positions_and_over_seeds() -> None:
    for values in ([coin(7, 0, p) for p in range(20_000)], [coin(s, 0, 7) for s in range(20_000)]):
        counts, _ = np.histogram(values, bins=64, range=(0, 1))
        assert stats.chisquare(counts).pvalue > 1e-3
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03
