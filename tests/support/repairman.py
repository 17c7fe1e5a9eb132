"""The machine-repairman model: a star whose times are exponentially distributed, in closed form."""

from __future__ import annotations


def exponential_utilisation(targets: int, draft_s: float, return_s: float) -> float:
    """U(N) where S and Z are exponentially distributed: 1 - 1 / sum over k of N! / (N - k)! (S / Z)^k."""
    term = total = 1.0
    for busy in range(targets):
        term *= (targets - busy) * draft_s / return_s
        total += term
    return 1 - 1 / total
