"""Measuring the time of a verify pass of T rows: the curve that decides how large a draft may be."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from starsd_edge.runtime.engine import Engine, causal_mask, commit_tokens

SIZES = (1, 2, 3, 5, 8, 16)
"""Numbers of rows T of the verify passes that are measured, the root included."""
COMMITTED = (16, 256, 1024)
"""Numbers of committed tokens that verify passes are measured on: as at the beginning of a short answer, in a usual one
and in a long one.
"""
_WARM_UP = 3
"""Passes of each size that are not counted: the first ones allocate memory."""


def sizes_up_to(max_tree: int) -> list[int]:
    """Numbers of rows to measure: 1, 2, 4 and so on below `max_tree`, and `max_tree` itself."""
    return [*(1 << power for power in range((max_tree - 1).bit_length())), max_tree]


def lengths_within(context: int, rows: int) -> list[int]:
    """The lengths of `COMMITTED` on top of which `rows` rows fit into the context; at least one length."""
    most = max(0, context - rows)
    return [length for length in COMMITTED if length <= most] or [most]


def measure_verify(
    engine: Engine,
    text: Sequence[int],
    committed: int,
    passes: int,
    sizes: Sequence[int] = SIZES,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, list[float]]:
    """Seconds of each of `passes` verify passes over a chain, by the number of rows; the sizes take turns.

    Args:
        text: at least `committed` + 1 tokens; the first `committed` are put into the KV, the chain is made of those
            after them, repeated as needed.
        sizes: those beyond the engine's largest tree are left out.
    """
    seq = engine.open(committed + 1)
    commit_tokens(engine, seq, text[:committed])
    chain = np.resize(np.asarray(text[committed:], dtype=np.int64), max(sizes))
    fitting = [size for size in sizes if size <= engine.spec.max_tree]
    seconds: dict[int, list[float]] = {size: [] for size in fitting}
    for number in range(_WARM_UP + passes):
        for size in fitting:
            positions = np.arange(committed, committed + size, dtype=np.int64)
            mask = causal_mask(size)
            began = clock()
            engine.forward(seq, chain[:size], positions, mask)
            if number >= _WARM_UP:
                seconds[size].append(clock() - began)
    return seconds
