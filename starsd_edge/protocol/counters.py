"""What crossed the wire, counted: data first, formats elsewhere."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from starsd_edge.protocol.messages import Draft
from starsd_edge.speculation.tree import ROOT


@dataclass
class WireCounters:
    """Frames and bytes per message kind, as one end saw them. "up" is target to hub, whichever end counts.

    Attributes:
        dropped: frames that this end did not act on, per reason (a code, or why the message was of no use any more).
    """

    frames_up: Counter[str] = field(default_factory=Counter)
    frames_down: Counter[str] = field(default_factory=Counter)
    bytes_up: Counter[str] = field(default_factory=Counter)
    bytes_down: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)

    def count_up(self, kind: str, size: int) -> None:
        """A frame of `size` bytes went from the target to the hub."""
        self.frames_up[kind] += 1
        self.bytes_up[kind] += size

    def count_down(self, kind: str, size: int) -> None:
        """A frame of `size` bytes went from the hub to the target."""
        self.frames_down[kind] += 1
        self.bytes_down[kind] += size


RECENT_WAITS = 128
"""Number of last drafts whose time in the queue is kept."""


@dataclass
class DraftRecord:
    """Acceptance of the drafts of one connection, or of a whole hub, as the hub sees it.

    A target never says what it accepted. But the rows of its next request are the tokens that it emitted, so walking
    them through the last tree shows how much of it was accepted. Where a target used another draft meanwhile, this is
    what would have been accepted. All numbers are sums; a reader takes differences.

    Attributes:
        drafts: number of trees sent.
        nodes: number of nodes in these trees.
        judged: trees whose continuation is known, empty ones too.
        accepted: nodes on accepted paths.
        level_trials: by level k, trees that offered a node of level k + 1 below an accepted path of length k.
        level_hits: by level k, trees in which such a node was accepted.
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

    def judge(self, steps: Sequence[PathStep]) -> None:
        """Count a draft of which `walk` has told what became of it."""
        offered, accepted = len(steps), sum(step.rank > 0 for step in steps)
        self.judged += 1
        self.accepted += accepted
        missing = offered - len(self.level_trials)
        self.level_trials.extend([0] * missing)
        self.level_hits.extend([0] * missing)
        for level in range(offered):
            self.level_trials[level] += 1
        for level in range(accepted):
            self.level_hits[level] += 1


@dataclass(frozen=True)
class PathStep:
    """What a draft tree offered at one level, below the nodes that were accepted before.

    Attributes:
        offered: number of children that the tree had there, at least 1.
        rank: place of the accepted child among them, from 1; 0 where none was accepted.
    """

    offered: int
    rank: int


def walk(draft: Draft, emitted: Sequence[int]) -> list[PathStep]:
    """Walk down a tree along the tokens emitted after its root: what it offered for each of them. The walk ends where
    the tree offers nothing, where no child is the emitted token, or with the last token.
    """
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(draft.parents):
        children.setdefault(parent, []).append(node)
    steps: list[PathStep] = []
    node = ROOT
    for token in emitted:
        offered = children.get(node)
        if offered is None:
            break
        rank = next((rank for rank, child in enumerate(offered, 1) if draft.ids[child] == token), 0)
        steps.append(PathStep(len(offered), rank))
        if not rank:
            break
        node = offered[rank - 1]
    return steps
