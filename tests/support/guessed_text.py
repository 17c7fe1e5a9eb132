"""A text and a drafter that is sure of some of it: it knows how likely each guess is, and guesses as well as that."""

from __future__ import annotations

import heapq
from collections import defaultdict
from itertools import count

import numpy as np

from starsd_edge.speculation.tree import ROOT, DraftShape, DraftTree

_PERIOD = 4096
_SPREAD = 0.5
"""How much a drafter differs from token to token in how sure it is: small is all or nothing."""
_OTHERS = (0.35, 0.2, 0.1)
"""What the guesses after the likeliest get of what that leaves."""
_WRONG = 500_000


class GuessedText:
    """Token `at(p)` stands at position p, without end.

    Args:
        acceptance: how often the likeliest guess is right, on average.
    """

    def __init__(self, seed: int, acceptance: float) -> None:
        rng = np.random.default_rng(seed)
        self._sure = rng.beta(acceptance / _SPREAD, (1 - acceptance) / _SPREAD, _PERIOD).tolist()
        self._luck = rng.random(_PERIOD).tolist()

    @staticmethod
    def at(position: int) -> int:
        """The token there."""
        return 1000 + position

    def tree(self, root: int, shape: DraftShape, *, right: bool = True) -> DraftTree:
        """The likeliest nodes below the token at position `root`.

        Args:
            right: else all of its guesses are wrong, however sure it is.
        """
        order = count()
        nodes: list[tuple[int, int]] = []  # token, parent
        heap: list[tuple[float, int, int, int, bool, int]] = []  # -value, order, parent, level, on the text, token

        def offer(parent: int, level: int, value: float, on_text: bool) -> None:
            place = root + level
            sure = self._sure[place % _PERIOD if on_text else (31 * place + 7 * parent + 13) % _PERIOD]
            luck, below = self._luck[place % _PERIOD], 0.0
            for rank, share in enumerate((sure, *((1 - sure) * other for other in _OTHERS))):
                if rank == shape.branching:
                    break
                hit = right and on_text and below <= luck < below + share
                below += share
                token = self.at(place) if hit else _WRONG + 10 * level + rank
                heapq.heappush(heap, (-value * share, next(order), parent, level, hit, token))

        offer(ROOT, 1, 1.0, True)
        while heap and len(nodes) < shape.max_nodes:
            value, _, parent, level, on_text, token = heapq.heappop(heap)
            nodes.append((token, parent))
            if level < shape.max_depth:
                offer(len(nodes) - 1, level + 1, -value, on_text)
        return _in_preorder(nodes)


def _in_preorder(nodes: list[tuple[int, int]]) -> DraftTree:
    children = defaultdict(list)
    for node, (_, parent) in enumerate(nodes):
        children[parent].append(node)
    tokens: list[int] = []
    parents: list[int] = []
    ahead = [(node, ROOT) for node in reversed(children[ROOT])]
    while ahead:
        node, parent = ahead.pop()
        place = len(tokens)
        tokens.append(nodes[node][0])
        parents.append(parent)
        ahead += [(child, place) for child in reversed(children[node])]
    return DraftTree(np.asarray(tokens, dtype=np.int64), np.asarray(parents, dtype=np.int32))
