"""Probes measure what a link carries: bytes that mean nothing, sent up and asked back."""

from __future__ import annotations

import numpy as np

PROBE_INTERVAL_S = 0.05
"""A hub takes no more than one PROBE of a connection in this time: a check must not crowd out those who decode."""


def noise(number: int, size: int) -> bytes:
    """`size` bytes that no compression on the way makes fewer, the same for the same number."""
    return np.random.default_rng(number).bytes(size)
