"""The star's law in closed form: from the times of one round to tokens per second, gain and break-even.

Source: the system model of StarSD (arXiv 2601.21622), as operational bounds of a closed system of one server and N
clients (Lazowska et al. 1984, "Quantitative System Performance", chapter 5): deterministic times, one request of each
target outstanding. S is the hub's busy time for one draft, Z the return time that the hub sees (up-link, verify,
down-link), E the tokens of a round with the bonus token. Times are in seconds.

N targets at one hub alternate between service (S) and return (Z). For deterministic times

    T(N) = max(S + Z, N S)          one round of a target
    U(N) = min(1, N S / (S + Z))    the hub's busy share
    I(N) = max(0, Z - (N - 1) S)    the hub's idle time in each round

Real stars lie between these and the machine-repairman formula, which is exact for exponentially distributed times. A
link adds its round-trip time to a round, and the round's bytes at its rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

_DIGITS = 9
"""Decimal digits to which a ratio is rounded before its ceiling or floor is taken, so that 1 + 36 / 12 is 4 whatever
its last bit is.
"""

# What can hold the gain back most: the values that `limit` gives.
DRAFTER = "drafter"
RTT = "RTT"
BANDWIDTH = "bandwidth"
VERIFY = "verify pass"
OVERHEAD = "overhead"


@dataclass(frozen=True)
class RoundCost:
    """What one round of a target consists of while the hub has time for it.

    Attributes:
        draft_s: S, the hub's drafter.
        rtt_s: round-trip time of the network.
        transfer_s: the round's bytes at the link's goodput, both ways.
        overhead_s: what a message takes beside the network: event loops, thread switches.
        verify_s: the verify pass over the draft and its root.
        own_s: what the target does beside its model: choosing tokens, committing, text.
    """

    draft_s: float
    rtt_s: float
    transfer_s: float
    overhead_s: float
    verify_s: float
    own_s: float

    @property
    def total_s(self) -> float:
        """S + Z: the whole round."""
        return self.draft_s + self.return_s

    @property
    def return_s(self) -> float:
        """Z: from the hub's sending a draft to its receiving the next request."""
        return self.rtt_s + self.transfer_s + self.overhead_s + self.verify_s + self.own_s


def chain_tokens(acceptance: float, depth: float) -> float:
    """E of a chain of depth g whose every draft token is accepted with the same probability a, given that those before
    it were: (1 - a^(g+1)) / (1 - a).
    """
    if acceptance == 1:
        return depth + 1
    return (1 - math.pow(acceptance, depth + 1)) / (1 - acceptance)


def tokens_per_s(tokens: float, draft_s: float, return_s: float, targets: int = 1) -> float:
    """x(N) = E / max(S + Z, N S): tokens per second of each of N equal targets."""
    return tokens / max(draft_s + return_s, targets * draft_s)


def gain(tokens: float, plain_s: float, round_s: float) -> float:
    """E t_plain / T: how many times as fast as plain decoding, which takes `plain_s` for each token."""
    return tokens * plain_s / round_s


def break_even_rtt_s(tokens: float, plain_s: float, cost: RoundCost) -> float:
    """The RTT in seconds at which the gain is 1, all else unchanged: E t_plain - (T - RTT). Where it is below 0, no RTT
    is short enough.
    """
    return tokens * plain_s - (cost.total_s - cost.rtt_s)


def targets_without_idling(draft_s: float, return_s: float) -> int:
    """N_full = ceil(1 + Z / S): the least number of equal targets with which the hub is never idle."""
    return math.ceil(round(1 + return_s / draft_s, _DIGITS))


def most_targets(tokens: float, draft_s: float, plain_s: float) -> int:
    """N_break = floor(E t_plain / S): the greatest number of equal targets each of which is still no slower than by
    plain decoding once the hub is saturated.
    """
    return math.floor(round(tokens * plain_s / draft_s, _DIGITS))


def limit(cost: RoundCost, plain_verify_s: float) -> tuple[str, float]:
    """What holds the gain back most, and its seconds in each round. Of the verify pass only what it takes beyond a pass
    over one token counts: that one is there in plain decoding too.
    """
    shares = {
        DRAFTER: cost.draft_s,
        RTT: cost.rtt_s,
        BANDWIDTH: cost.transfer_s,
        VERIFY: cost.verify_s - plain_verify_s,
        OVERHEAD: cost.overhead_s,
    }
    return max(shares.items(), key=lambda share: share[1])


ROW_BYTES = 8
"""Bytes of a row without its feature: the id, and its part of the frame."""
REQUEST_BYTES = 72
"""Bytes of a draft request without rows: tag, epoch, shape, frame, and the headers below it."""
NODE_BYTES = 5
"""Bytes of a node of a draft tree: id and parent."""
DRAFT_BYTES = 88
"""Bytes of a DRAFT message without nodes."""


@dataclass(frozen=True)
class LinkCost:
    """The link between a target and its hub.

    Attributes:
        rtt_s: round-trip time of a small message, in seconds.
        up_bytes_per_s, down_bytes_per_s: goodput of large messages, in bytes per second.
    """

    rtt_s: float
    up_bytes_per_s: float
    down_bytes_per_s: float

    def seconds(self, up_bytes: float, down_bytes: float) -> float:
        """Seconds that the link adds to a round that moves these bytes."""
        return self.rtt_s + up_bytes / self.up_bytes_per_s + down_bytes / self.down_bytes_per_s


def bytes_up(tokens: float, feature_bytes: float) -> float:
    """Bytes to the hub in a round of `tokens` tokens, whose rows carry `feature_bytes` bytes of features each."""
    return REQUEST_BYTES + tokens * (ROW_BYTES + feature_bytes)


def bytes_down(nodes: float) -> float:
    """Bytes from the hub in a round: a draft of this many nodes."""
    return DRAFT_BYTES + nodes * NODE_BYTES


_STEPS = 200
"""Steps of the fixed-point iteration in `batched_round`, which is damped by one half so that it converges."""


def round_s(targets: int, draft_s: float, return_s: float) -> float:
    """T(N) = max(S + Z, N S): seconds of one round of a target among N."""
    return max(draft_s + return_s, targets * draft_s)


def utilisation(targets: int, draft_s: float, return_s: float) -> float:
    """U(N) = min(1, N S / (S + Z)): the hub's busy share."""
    return min(1.0, targets * draft_s / (draft_s + return_s))


def idle_s(targets: int, draft_s: float, return_s: float) -> float:
    """I(N) = max(0, Z - (N - 1) S): the hub's idle seconds in each round."""
    return max(0.0, return_s - (targets - 1) * draft_s)


def wait_s(targets: int, draft_s: float, return_s: float) -> float:
    """Seconds that each request waits before it is served: T(N) - (S + Z)."""
    return max(0.0, targets * draft_s - (draft_s + return_s))


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
