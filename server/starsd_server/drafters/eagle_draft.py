"""Trees for several sequences of an EAGLE head, a level of all of them in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import log

import numpy as np
import numpy.typing as npt

from starsd_edge.heads.engine import MOST_CANDIDATES, Floats, HeadEngine, HeadRows, HeadStep
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_server.drafters.dynamic_tree import Below, Growth, Node, grow_together
from starsd_server.drafters.eagle_lines import Past, PastBatch, RowSlots, alike
from starsd_server.drafters.eagle_session import EagleSession, candidates

MAX_DRAFT_ROWS = 256
"""Most rows of draft tokens below one root that a head computes for one draft."""


class TreeDrafter:
    """Grows the draft trees of several sessions together.

    Args:
        draft_ids: int64 [draft vocabulary], the target's id of each token of the head's vocabulary.
    """

    def __init__(self, engine: HeadEngine, draft_ids: npt.NDArray[np.int64], past_batch: PastBatch) -> None:
        self._engine = engine
        self._draft_ids = draft_ids
        self._past_batch = past_batch

    def draft(self, sessions: Sequence[EagleSession], shapes: Sequence[DraftShape]) -> list[DraftTree]:
        """One tree per session; the empty one before it has any row."""
        growths = [_growth(session, shape) for session, shape in zip(sessions, shapes, strict=True)]
        growing = [number for number, growth in enumerate(growths) if growth.open]
        # The deepest trees first: trees that are finished stand at the end and leave the pass there.
        growing.sort(key=lambda number: -shapes[number].max_depth)
        for numbers in alike(growing, lambda number: sessions[number].store.rows):
            together = [sessions[number] for number in numbers]
            past = self._past_batch.gather([session.store for session in together])
            rows = _DraftRows(self._engine, self._draft_ids, together, past)
            grow_together([growths[number] for number in numbers], rows.expand)
        return [growth.tree() for growth in growths]


def _growth(session: EagleSession, shape: DraftShape) -> Growth:
    width = 1 if shape.branching == 1 else min(MOST_CANDIDATES, max(1, round((2 * shape.max_nodes) ** 0.5)))
    shape = DraftShape(shape.max_nodes, min(shape.max_depth, MAX_DRAFT_ROWS // width), shape.branching)
    return Growth(shape, width, session.first, repeated(session.store.ids, shape.max_depth))


class _DraftRows:
    """The rows of draft tokens of several sequences, for one draft."""

    def __init__(
        self,
        engine: HeadEngine,
        draft_ids: npt.NDArray[np.int64],
        sessions: Sequence[EagleSession],
        past: Past,
    ) -> None:
        spec = engine.spec
        self._engine = engine
        self._draft_ids = draft_ids
        self._past = past
        self._starts = np.array([session.store.next_position for session in sessions], dtype=np.int64)
        self._columns: list[dict[int, int]] = [{} for _ in sessions]
        """For each sequence, the column of every node that was expanded, by the node's number."""
        self._features: list[dict[int, Floats]] = [{} for _ in sessions]
        """For each sequence, the feature after every node that was expanded, by the node's number."""
        self._last = [session.last for session in sessions]
        self._keys = self._values = engine.zeros(len(sessions), spec.n_kv_heads, 0, spec.head_dim)
        self._seen = np.zeros((len(sessions), 0, 0), dtype=np.bool_)
        """bool [B, G, G]: which columns the row in each column sees: its ancestors and itself."""
        self._level = 0

    def expand(self, nodes: Sequence[Sequence[Node]]) -> list[list[Below]]:
        """Candidates below the nodes of one level of each sequence."""
        active = max(line for line, mine in enumerate(nodes) if mine) + 1
        places = RowSlots.of([len(mine) for mine in nodes[:active]])
        seen = self._sight(nodes, places)
        step = self._run(nodes[:active], places, seen)
        self._keep(nodes[:active], places, seen, step)
        below = iter(candidates(step, self._draft_ids))
        return [list(islice(below, len(mine))) for mine in nodes]

    def _sight(self, nodes: Sequence[Sequence[Node]], places: RowSlots) -> npt.NDArray[np.bool_]:
        """bool [B, R, G + R]: which earlier columns and which rows of this pass each of its rows sees."""
        before, (lines, width) = self._seen.shape[1], places.slots.shape
        seen = np.zeros((lines, width, before + width), dtype=np.bool_)
        seen[:, np.arange(width), before + np.arange(width)] = True
        for line in range(lines):
            columns = self._columns[line]
            for place, node in enumerate(nodes[line]):
                parent = columns.get(node.parent)
                if parent is not None:
                    seen[line, place, :before] = self._seen[line, parent]
        return seen

    def _run(self, nodes: Sequence[Sequence[Node]], places: RowSlots, seen: npt.NDArray[np.bool_]) -> HeadStep:
        lines = len(nodes)
        features = [
            self._features[line].get(node.parent, self._last[line]) for line, mine in enumerate(nodes) for node in mine
        ]
        rows = HeadRows(
            ids=np.array([node.token for mine in nodes for node in mine], dtype=np.int64),
            features=np.stack(features),
            positions=self._starts[places.lines] + self._level,
            slots=places.slots,
            places=places.places,
            keys=self._past.keys[:lines],
            values=self._past.values[:lines],
            lengths=self._past.lengths[:lines],
            late_keys=self._keys[:lines],
            late_values=self._values[:lines],
            seen=seen,
            wanted=np.arange(len(features)),
        )
        return self._engine.forward(rows)

    def _keep(
        self, nodes: Sequence[Sequence[Node]], places: RowSlots, seen: npt.NDArray[np.bool_], step: HeadStep
    ) -> None:
        """Keep K, V, features and mask rows of this level for the next one."""
        lines, width = places.slots.shape
        before = self._seen.shape[1]
        spec = self._engine.spec
        keys = self._engine.zeros(lines, spec.n_kv_heads, before + width, spec.head_dim)
        values = self._engine.zeros(lines, spec.n_kv_heads, before + width, spec.head_dim)
        for buffer, old, new in ((keys, self._keys, step.keys), (values, self._values, step.values)):
            buffer[:, :, :before] = old[:lines]
            buffer[:, :, before:] = new
        self._keys, self._values = keys, values
        whole = np.zeros((lines, before + width, before + width), dtype=np.bool_)
        whole[:, :before, :before] = self._seen[:lines]
        whole[:, before:] = seen
        self._seen = whole
        for row, (line, place) in enumerate(zip(places.lines.tolist(), places.within.tolist(), strict=True)):
            number = nodes[line][place].number
            self._columns[line][number] = before + place
            self._features[line][number] = step.predicted[row]
        self._level += 1


_RATES = {2: (0.4, 0.5, 0.6, 0.7), 3: (0.5, 0.6, 0.7), 4: (0.7, 0.8)}
"""By the number of repeated tokens: the share of cases in which the next token is the same again, then the one after
it, and so on; the last share holds for all later tokens. Counted in 140 answers of the default model.
"""
_MOST = max(_RATES)
_LEAST = min(_RATES)


def repeated(ids: npt.NDArray[np.int32], depth: int) -> list[tuple[int, float]]:
    """Tokens that followed the last time the text stood where it stands now, and their log-probabilities; none where
    its end is new. They cost no pass of a head.

    A head of one layer seldom predicts a name or a phrase that was said before; the text itself does. How likely it is
    to go on as it did then depends on how many of the last tokens are the same.

    `NgramIndex` finds the same places for drafters that have no head. It keeps some hundred bytes a token and forgets
    none. Beside a head, whose rows are bounded and forgotten, a search of the ids that its rows hold takes
    microseconds.

    Args:
        ids: int32 [N], the text.
        depth: number of tokens wanted; past the end of the text it copies itself, as a repetition goes on.
    """
    length, end = _longest_match(ids)
    if length < _LEAST or depth < 1:
        return []
    after = end + 1
    following = ids[after + np.arange(depth) % (len(ids) - after)].tolist()
    rates = _RATES[length]
    return [(token, log(rates[min(place, len(rates) - 1)])) for place, token in enumerate(following)]


def _longest_match(ids: npt.NDArray[np.int32]) -> tuple[int, int]:
    """Number of tokens at the end of the text, up to `_MOST`, that stood in it before, and where the last such place
    ends.
    """
    length, end = 0, 0
    ends = np.flatnonzero(ids[:-1] == ids[-1:])
    while len(ends):
        length, end = length + 1, int(ends[-1])
        if length == _MOST:
            break
        ends = ends[ends >= length]
        ends = ends[ids[ends - length] == ids[-1 - length]]
    return length, end
