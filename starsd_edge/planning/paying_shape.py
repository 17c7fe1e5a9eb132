"""How large a draft may be where only the time of verify passes is known: no hub, no link, no drafter yet."""

from __future__ import annotations

from collections.abc import Sequence

from starsd_edge.planning.survival import FIRST_RATIO, Guesses
from starsd_edge.speculation.tree import DraftShape

_RANKS = 4
"""Alternatives that are thought of at one place; what comes after them is hardly ever right."""


def usual_guesses(survival: float) -> Guesses:
    """Of a drafter that nobody knows yet, whose likeliest guess comes true this often at each level."""
    return Guesses((survival,), tuple(FIRST_RATIO**rank for rank in range(_RANKS)))


def paying_shape(seconds: Sequence[float], guesses: Guesses, limit: DraftShape) -> DraftShape:
    """The largest draft of which each guess is worth the time of its row: the tokens that it is expected to bring are
    more than plain decoding gives in that time. At least one guess, so that what a draft really gives is seen.

    Args:
        seconds: of passes over 1, 2 .. `limit.max_nodes + 1` rows, the first above 0.
    """
    best, most = DraftShape(1, 1), float("-inf")
    for depth in range(1, min(limit.max_depth, limit.max_nodes) + 1):
        accepted = guesses.accepted(limit.max_nodes, depth, limit.branching)
        for nodes in range(depth, len(accepted)):
            net = accepted[nodes] - (seconds[nodes] / seconds[0] - 1)
            if net > most:
                most = net
                best = DraftShape(nodes, depth, limit.branching if nodes > depth else 1)
    return best
