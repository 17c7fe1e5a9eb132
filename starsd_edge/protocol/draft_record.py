"""What became of the drafts of one connection, or of a whole hub, as the hub sees it.

A target never says what it accepted, but the rows of its next request are the tokens that it emitted, so walking them
through the last tree tells how much of it came true. Where a target used another draft meanwhile this is what would
have been accepted. All numbers are sums; who reads them takes differences.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from starsd_edge.protocol.messages import Draft

RECENT_WAITS = 128


@dataclass
class DraftRecord:
    """Sums, and the last few waits.

    Attributes:
        drafts: trees sent.
        nodes: their nodes.
        judged: trees whose continuation is known, empty ones too.
        accepted: nodes on the paths that came true.
        level_trials: trees of which level k + 1 was offered below a path of length k that came true.
        level_hits: of those, trees of which that level came true.
        waits_us: the last drafts' time in the queue, in microseconds.
    """

    drafts: int = 0
    nodes: int = 0
    judged: int = 0
    accepted: int = 0
    level_trials: list[int] = field(default_factory=list)
    level_hits: list[int] = field(default_factory=list)
    waits_us: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_WAITS))

    def drafted(self, nodes: int, queue_us: int) -> None:
        """A tree went out."""
        self.drafts += 1
        self.nodes += nodes
        self.waits_us.append(queue_us)

    def judge(self, accepted: int, offered: int) -> None:
        """What followed is known; see `follow`."""
        self.judged += 1
        self.accepted += accepted
        missing = offered - len(self.level_trials)
        self.level_trials.extend([0] * missing)
        self.level_hits.extend([0] * missing)
        for level in range(offered):
            self.level_trials[level] += 1
        for level in range(accepted):
            self.level_hits[level] += 1


def follow(draft: Draft, emitted: Sequence[int]) -> tuple[int, int]:
    """Walk the tokens emitted after the root down a tree: length of the path that they take, and the levels at which
    the tree offered something for them.

    Preorder puts every node behind its parent, so one pass finds the path.
    """
    accepted = offered = 0
    node = -1
    for index, (token, parent) in enumerate(zip(draft.ids, draft.parents, strict=True)):
        if parent != node or accepted == len(emitted):
            continue
        offered = accepted + 1
        if token == emitted[accepted]:
            node = index
            accepted += 1
    return accepted, offered
