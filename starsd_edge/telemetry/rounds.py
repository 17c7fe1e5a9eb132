"""What the rounds of an answer did, as data: drafted, accepted, emitted, sent and waited for.

Two averages are in use in the field and easily confused, so both are always kept: `accepted_per_round` counts accepted
draft tokens only, `tokens_per_round` also the bonus token that the target itself adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Origins of a round's draft: what drafted it.
HUB = "hub"
NGRAM = "ngram"
GRAMMAR = "grammar"
NONE = "none"


@dataclass(frozen=True)
class Round:
    """One draft and one verification.

    Attributes:
        origin: what drafted: `HUB`, `NGRAM` or `GRAMMAR` (the target itself) or `NONE` (no draft, a plain step).
        drafted: nodes of the tree that was verified.
        accepted: nodes on the accepted path, also those behind the end of the answer.
        levels_offered: levels at which acceptance was tried: `accepted`, and one more when the last accepted node had
            children.
        emitted: tokens the answer gained.
        late: the tree had missed its own round and was rebased.
        bytes_up: payload of the draft request sent in this round.
        bytes_down: payload of the drafts that came since the last round, used or not.
        round_s: the whole round in seconds, from taking the draft to the text delivered.
        verify_s: seconds of the round in the target's forward pass.
        wait_s: seconds of the round spent waiting for the hub's draft.
        draft_s: seconds that the hub's drafter took for the draft used; on the hub's machine, partly in parallel with
            this round.
        why_off: why there was no draft, or none of the hub: one of the reasons in `starsd_edge.protocol.codes`; empty
            where the draft was the one that was wanted.
    """

    origin: str = NONE
    drafted: int = 0
    accepted: int = 0
    levels_offered: int = 0
    emitted: int = 0
    late: bool = False
    bytes_up: int = 0
    bytes_down: int = 0
    round_s: float = 0.0
    verify_s: float = 0.0
    wait_s: float = 0.0
    draft_s: float = 0.0
    why_off: str = ""


@dataclass
class RoundStats:
    """Sums over the rounds of one answer or of many. The first token of an answer comes from the prefill and belongs to
    no round.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    late: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    round_s: float = 0.0
    verify_s: float = 0.0
    wait_s: float = 0.0
    plain_s: float = 0.0
    """Seconds of the rounds without a draft."""
    by_origin: dict[str, int] = field(default_factory=dict)
    """Number of rounds by the origin of their draft: `HUB`, `NGRAM`, `GRAMMAR` or `NONE`."""
    why_off: dict[str, int] = field(default_factory=dict)
    """Rounds without a draft (of the hub, where there is one) by the reason for it."""
    level_trials: list[int] = field(default_factory=list)
    """Rounds in which level k + 1 was offered below an accepted path of length k."""
    level_hits: list[int] = field(default_factory=list)
    """Rounds in which a node of level k + 1 was accepted, of those that `level_trials` counts."""

    def add(self, done: Round) -> None:
        """Count one round."""
        self.rounds += 1
        self.drafted += done.drafted
        self.accepted += done.accepted
        self.emitted += done.emitted
        self.late += done.late
        self.bytes_up += done.bytes_up
        self.bytes_down += done.bytes_down
        self.round_s += done.round_s
        self.verify_s += done.verify_s
        self.wait_s += done.wait_s
        self.plain_s += done.round_s if done.origin == NONE else 0.0
        _count(self.by_origin, {done.origin: 1})
        if done.why_off:
            _count(self.why_off, {done.why_off: 1})
        self._count_levels([1] * done.levels_offered, [1] * done.accepted)

    def merge(self, other: RoundStats) -> None:
        """Add the sums of another answer."""
        self.rounds += other.rounds
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.emitted += other.emitted
        self.late += other.late
        self.bytes_up += other.bytes_up
        self.bytes_down += other.bytes_down
        self.round_s += other.round_s
        self.verify_s += other.verify_s
        self.wait_s += other.wait_s
        self.plain_s += other.plain_s
        _count(self.by_origin, other.by_origin)
        _count(self.why_off, other.why_off)
        self._count_levels(other.level_trials, other.level_hits)

    def _count_levels(self, trials: list[int], hits: list[int]) -> None:
        missing = max(len(trials), len(hits)) - len(self.level_trials)
        self.level_trials.extend([0] * missing)
        self.level_hits.extend([0] * missing)
        for level, count in enumerate(trials):
            self.level_trials[level] += count
        for level, count in enumerate(hits):
            self.level_hits[level] += count

    @property
    def plain_tokens_per_s(self) -> float | None:
        """Tokens per second in rounds without a draft, each of which gives one; None where there was none."""
        return self.by_origin.get(NONE, 0) / self.plain_s if self.plain_s > 0 else None

    @property
    def accepted_per_round(self) -> float:
        """Accepted draft tokens per round, without the bonus token."""
        return _ratio(self.accepted, self.rounds)

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens per round, with the bonus token."""
        return _ratio(self.emitted, self.rounds)

    @property
    def drafted_rounds(self) -> int:
        """Rounds that verified a draft."""
        return self.rounds - self.by_origin.get(NONE, 0)

    @property
    def draft_share(self) -> float:
        """Share of the rounds that verified a draft."""
        return _ratio(self.drafted_rounds, self.rounds)

    @property
    def survival(self) -> list[float]:
        """By level: share of rounds whose accepted path reached it, among those that reached the level above and were
        offered a child there.
        """
        return [_ratio(hits, trials) for hits, trials in zip(self.level_hits, self.level_trials, strict=True)]

    @property
    def bytes_up_per_round(self) -> float:
        """Bytes to the hub per round: rows and the request."""
        return _ratio(self.bytes_up, self.rounds)

    @property
    def bytes_down_per_round(self) -> float:
        """Bytes from the hub per round: all drafts, used or not."""
        return _ratio(self.bytes_down, self.rounds)


def _count(sums: dict[str, int], more: Mapping[str, int]) -> None:
    for name, rounds in more.items():
        sums[name] = sums.get(name, 0) + rounds


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
