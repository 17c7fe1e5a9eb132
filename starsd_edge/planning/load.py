"""N targets at one hub, in closed form: what they share, and what they wait for.

One server and N customers, each of which alternates between service (S) and return (Z). For deterministic times

    T(N) = max(S + Z, N S)          one round of a target
    U(N) = min(1, N S / (S + Z))    the hub's busy share
    I(N) = max(0, Z - (N - 1) S)    the hub's idle time in each round

(Lazowska et al. 1984, "Quantitative System Performance", chapter 5); for exponential ones the machine-repairman formula
is exact. Real stars lie between the two. Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_STEPS = 200


def round_s(targets: int, draft_s: float, return_s: float) -> float:
    """T(N)."""
    return max(draft_s + return_s, targets * draft_s)


def utilisation(targets: int, draft_s: float, return_s: float) -> float:
    """U(N)."""
    return min(1.0, targets * draft_s / (draft_s + return_s))


def idle_s(targets: int, draft_s: float, return_s: float) -> float:
    """I(N)."""
    return max(0.0, return_s - (targets - 1) * draft_s)


def wait_s(targets: int, draft_s: float, return_s: float) -> float:
    """How long each request waits before it is served: what the hub is short of."""
    return max(0.0, targets * draft_s - (draft_s + return_s))


def exponential_utilisation(targets: int, draft_s: float, return_s: float) -> float:
    """U(N) where S and Z are exponentially distributed: 1 - 1 / sum over k of N! / (N - k)! (S / Z)^k."""
    term = total = 1.0
    for busy in range(targets):
        term *= (targets - busy) * draft_s / return_s
        total += term
    return 1 - 1 / total


def most_rounds_per_s(draft_s: Sequence[float], return_s: Sequence[float]) -> float:
    """Rounds per second that no order exceeds, for unequal targets served one by one. Where the hub is saturated its
    targets are taken to be served equally often.
    """
    alone = sum(1 / (draft + back) for draft, back in zip(draft_s, return_s, strict=True))
    return min(alone, len(draft_s) / sum(draft_s))


def batched_round(
    targets: int, draft_s: Callable[[float], float], return_s: float, max_batch: int
) -> tuple[float, float]:
    """One round of N equal targets whose waiting requests are drafted together: its seconds, and the mean batch.

    Below the knee of single drafts they hardly meet, so T = S(1) + Z. Above, a request finds on average half a pass in
    progress, so T = Z + 1.5 S(b) with b = N S(b) / T (a fixed point, within a few per cent of simulation), until a
    batch is full: then T = N S(B) / B.

    Args:
        draft_s: S(b).
    """
    single = draft_s(1.0)
    if targets * single <= single + return_s or max_batch == 1:
        return round_s(targets, single, return_s), 1.0
    batch = 1.0
    most = float(min(targets, max_batch))
    for _ in range(_STEPS):
        each = draft_s(batch)
        batch = 0.5 * batch + 0.5 * min(most, max(1.0, targets * each / (return_s + 1.5 * each)))
    each = draft_s(batch)
    return max(return_s + 1.5 * each, targets * each / batch), batch
