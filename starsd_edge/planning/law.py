"""The star's law in closed form: from the times of one round to tokens per second, gain and break-even.

Source: the system model of StarSD (arXiv 2601.21622), as operational bounds of a closed system of one server and N
clients (Lazowska et al. 1984, "Quantitative System Performance", chapter 5): deterministic times, one request of each
target outstanding. S is the hub's busy time for one draft, Z the return time that the hub sees (up-link, verify,
down-link), E the tokens of a round with the bonus token. Times are in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_DIGITS = 9
"""Of a ratio that is rounded up or down: 1 + 36 / 12 is 4, whatever the last bit says."""

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
    """E of a chain of this depth whose every guess is accepted with the same probability, given that those before it
    were: (1 - a^(g+1)) / (1 - a).
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
    """The RTT at which the gain is 1, all else as it is: E t_plain - (T - RTT). Where it is below
    0, no RTT is short enough.
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
