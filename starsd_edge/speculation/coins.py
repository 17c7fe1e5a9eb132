"""Keyed coins: the random number that decides a token depends on the request and the token's position alone.

A counter-based generator needs no state to be carried, rolled back or agreed upon: whoever asks for the coin of a
position gets the same number, after a rejected draft, a reconnect or a restart.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Philox

_UNIT = 2.0**-53


def coin(seed: int, choice_index: int, position: int) -> float:
    """A uniform number in [0, 1), a multiple of 2**-53.

    Args:
        seed: 64-bit key of the request.
        choice_index: 64-bit second half of the key, one per answer of a request.
        position: absolute position of the token to be chosen.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), Philox4x64-10.
    """
    # Arrays, because numpy reads a list of integers beyond 63 bits as floats and so loses the key.
    key = np.array([seed, choice_index], dtype=np.uint64)
    counter = np.array([position, 0, 0, 0], dtype=np.uint64)
    return int(Philox(key=key, counter=counter).random_raw() >> 11) * _UNIT
