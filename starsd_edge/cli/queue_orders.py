"""Orders of a hub's queue, as users say them."""

from __future__ import annotations

from enum import Enum

from starsd_edge.planning import orders


class QueueOrder(str, Enum):
    """In which order waiting requests are drafted."""

    LATENCY = orders.LATENCY
    DRR = orders.DRR
    FIFO = orders.FIFO
    SRF = orders.SRF
