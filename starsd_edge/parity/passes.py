"""The passes that show what a model computes, run on any engine: prefill, far positions, one token, a chain, a tree,
and what follows.

A reference needs to know of each row only the tokens that it stands on, its *path*: it owes nothing to how an engine
batches, masks or keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from starsd_edge.errors import EngineError
from starsd_edge.runtime.engine import Engine, EngineSpec, Step, TopTwo, causal_mask, commit_tokens, run_chain
from starsd_edge.runtime.engine import Sequence as KvSequence
from starsd_edge.speculation.tree import ROOT, DraftTree

PREFIX = 24
"""Committed tokens under the passes that have some."""
CHAIN = 8
LONG = 96
"""Tokens of one chunk, more than a verify pass takes: engines have other kernels for it."""
BITWISE_PREFIXES = (0, PREFIX, 150)
NEEDED_CONTEXT = PREFIX + CHAIN + 1
IDS = max(BITWISE_PREFIXES) + CHAIN
"""Tokens that the passes are made of."""
FAR_TOKENS = 16
_FAR_LEEWAY = 4.0
"""No model was trained on tokens with gaps between them, and what rounding does to them grows: 3.4e-2 was seen in the
int4 graph of the default model, whose other passes have 4e-3.
"""
_MOST_LEEWAY = 0.1
"""Rotations for another length give differences far above this."""
_CHUNKS = (7, 1, 16)
_PARENTS = (ROOT, 0, 1, 0, ROOT, 4, 4)
"""Seven nodes with branches at the root and below: 0(1(2) 3) 4(5 6)."""
_KEPT = (0, 5, 7)
"""Rows of the tree's pass that are committed: the root and a path that does not stand together."""

Rows = Sequence[npt.NDArray[Any]]


@dataclass(frozen=True)
class Values:
    """What one pass gave, or what is expected of it.

    Attributes:
        logits: [R, V].
        features: [T, F]; None where there are none to compare.
        keys, values: per layer [T, H_kv, D]; None where an engine does not show them.
        is_top_right: whether the two highest logits that an engine names by itself are those of its logits.
    """

    logits: npt.NDArray[Any]
    features: npt.NDArray[Any] | None
    keys: Rows | None
    values: Rows | None
    is_top_right: bool = True


@dataclass(frozen=True)
class Observation:
    """One pass.

    Attributes:
        case: its kind.
        paths: of each of its T rows, the tokens that it stands on, itself the last.
        rows: those with logits.
        positions: of the tokens of its longest path; () where they are counted from 0.
        leeway: what rounding does may be so many times as large as in other passes.
    """

    case: str
    paths: tuple[tuple[int, ...], ...]
    rows: tuple[int, ...]
    values: Values
    positions: tuple[int, ...] = ()
    leeway: float = 1.0

    def allowed(self, bound: float) -> float:
        """The relative difference that is allowed in this pass where others may have `bound`. Coarse bounds stay: what
        is wrong must not pass.
        """
        return max(bound, min(self.leeway * bound, _MOST_LEEWAY))

    @property
    def longest(self) -> int:
        """Tokens that its deepest row has room for before it, itself too; with the case, the name of a pass."""
        return 1 + self.positions[-1] if self.positions else max(map(len, self.paths))


@runtime_checkable
class ShowsRows(Protocol):
    """A sequence that lets the K and V of its last pass be looked at before they are committed."""

    @property
    def new_keys(self) -> Rows:
        """Per layer [T, H_kv, D]."""

    @property
    def new_values(self) -> Rows:
        """Per layer [T, H_kv, D]."""


def random_ids(vocab_size: int) -> list[int]:
    """The tokens that the passes are made of."""
    return [int(token) for token in np.random.default_rng(0).integers(0, vocab_size, IDS)]


def longest_paths(ids: Sequence[int]) -> list[tuple[int, ...]]:
    """Paths of which every path of every pass is a beginning, for those who read them before there is an engine."""
    tree, (past, root) = _sample_tree(ids), (tuple(ids[:PREFIX]), ids[PREFIX])
    nodes = [(*past, root, *_path(tree, node)) for node in range(len(tree))]
    return [tuple(ids[:LONG]), (*nodes[_KEPT[-1] - 1], ids[0]), *nodes]


def far_positions(max_context: int) -> tuple[int, ...]:
    """Where the tokens of the pass over the whole context stand: from its first place to its last, evenly apart.

    RoPE scalings change what is far. A pass over as many tokens as that would take minutes; a token's rotation depends
    on its position alone, so a few tokens with gaps between them show the same.
    """
    return tuple(int(place) for place in np.linspace(0, max_context - 1, FAR_TOKENS))


def why_too_small(spec: EngineSpec) -> str:
    """Why an engine cannot run the passes; "" where it can."""
    if spec.max_context >= NEEDED_CONTEXT and spec.max_tree >= PREFIX and spec.max_chunk >= PREFIX:
        return ""
    return (
        f"it takes {spec.max_context} tokens, trees of {spec.max_tree} rows and chunks of {spec.max_chunk}: the "
        f"comparison needs {NEEDED_CONTEXT}, {PREFIX} and {PREFIX}"
    )


def run_passes(engine: Engine, ids: Sequence[int]) -> Iterator[Observation]:
    """Run every pass; the long one only where the engine's context holds it.

    Args:
        ids: `IDS` tokens.

    Raises:
        EngineError: the engine refuses, or takes too little for these passes.
    """
    too_small = why_too_small(engine.spec)
    if too_small:
        raise EngineError(too_small)
    prompt = list(ids[:PREFIX])
    yield _causal("prefill", engine, engine.open(PREFIX), [], prompt)
    yield from _chunked(engine, prompt)
    if min(engine.spec.max_context, engine.spec.max_chunk) >= LONG:
        yield _causal("long chunk", engine, engine.open(LONG), [], ids[:LONG], (LONG - 1,))
    yield _far(engine, ids[:FAR_TOKENS])
    seq = engine.open(NEEDED_CONTEXT)
    yield _causal("one token on nothing", engine, seq, [], ids[:1])
    commit_tokens(engine, seq, prompt)
    yield _causal("one token", engine, seq, prompt, ids[PREFIX : PREFIX + 1])
    yield _causal("chain", engine, seq, prompt, ids[PREFIX : PREFIX + CHAIN])
    yield from _tree(engine, seq, ids)


def first_inexact(engine: Engine, ids: Sequence[int]) -> tuple[int, int] | None:
    """Whether one-token steps and a chain verified at once agree bit for bit, which makes speculation exact.

    Returns:
        Committed tokens and the row of the first difference, None where there is none.
    """
    room = engine.spec.max_context - CHAIN
    for past in (prefix for prefix in BITWISE_PREFIXES if prefix <= room):
        row = _first_inexact_row(engine, ids, past)
        if row is not None:
            return past, row
    return None


def _causal(
    case: str,
    engine: Engine,
    seq: KvSequence,
    past: Sequence[int],
    ids: Sequence[int],
    rows: tuple[int, ...] | None = None,
) -> Observation:
    step = run_chain(engine, seq, ids, rows)
    whole = (*past, *ids)
    paths = tuple(whole[: len(past) + row + 1] for row in range(len(ids)))
    return Observation(case, paths, rows or tuple(range(len(ids))), _seen(step, seq))


def _far(engine: Engine, ids: Sequence[int]) -> Observation:
    """A chain over the whole context, with gaps."""
    seq, positions = engine.open(FAR_TOKENS), far_positions(engine.spec.max_context)
    step = engine.forward(seq, np.asarray(ids, np.int64), np.asarray(positions, np.int64), causal_mask(FAR_TOKENS))
    paths = tuple(tuple(ids[: row + 1]) for row in range(FAR_TOKENS))
    return Observation("far positions", paths, tuple(range(FAR_TOKENS)), _seen(step, seq), positions, _FAR_LEEWAY)


def _chunked(engine: Engine, prompt: Sequence[int]) -> Iterator[Observation]:
    """As a decode loop reads a prompt: logits of the last row alone."""
    seq = engine.open(PREFIX)
    for size in _CHUNKS:
        start = seq.length
        chunk = prompt[start : start + size]
        yield _causal("chunked prefill", engine, seq, prompt[:start], chunk, (size - 1,))
        engine.commit(seq, range(size))


def _tree(engine: Engine, seq: KvSequence, ids: Sequence[int]) -> Iterator[Observation]:
    """A tree, and a token on a path of it that is committed."""
    tree, (past, root) = _sample_tree(ids), (tuple(ids[:PREFIX]), ids[PREFIX])
    step = engine.forward(seq, tree.verify_tokens(root), tree.verify_positions(PREFIX), tree.verify_mask())
    paths = tuple((*past, root, *_path(tree, node)) for node in range(ROOT, len(tree)))
    yield Observation("tree", paths, tuple(range(len(paths))), _seen(step, seq))
    engine.commit(seq, list(_KEPT))
    yield _causal("after a branch", engine, seq, paths[_KEPT[-1]], ids[:1])


def _sample_tree(ids: Sequence[int]) -> DraftTree:
    return DraftTree(np.asarray(ids[PREFIX + 1 : PREFIX + CHAIN], np.int64), np.array(_PARENTS, np.int32))


def _path(tree: DraftTree, node: int) -> list[int]:
    path: list[int] = []
    while node != ROOT:
        path.append(int(tree.tokens[node]))
        node = int(tree.parents[node])
    return path[::-1]


def _seen(step: Step, seq: KvSequence) -> Values:
    # Copies: some engines give views of memory that the next pass writes into.
    logits, features = np.array(step.logits), np.array(step.features) if step.features.size else None
    is_top_right = step.top is None or _is_top(step.top, logits)
    if not isinstance(seq, ShowsRows):
        return Values(logits, features, None, None, is_top_right)
    keys, values = ([np.array(rows) for rows in kind] for kind in (seq.new_keys, seq.new_values))
    return Values(logits, features, keys, values, is_top_right)


def _is_top(top: TopTwo, logits: npt.NDArray[Any]) -> bool:
    """Among equal logits any may be named."""
    if top.ids.min() < 0 or top.ids.max() >= logits.shape[1] or (top.ids[:, 0] == top.ids[:, 1]).any():
        return False
    highest = np.partition(logits, (-2, -1), axis=1)[:, :-3:-1]
    named = np.take_along_axis(logits, top.ids, axis=1)
    return np.array_equal(named, highest) and np.array_equal(named, top.logits)


def _first_inexact_row(engine: Engine, ids: Sequence[int], past: int) -> int | None:
    chain, steps = engine.open(past + CHAIN), engine.open(past + CHAIN)
    commit_tokens(engine, chain, ids[:past])
    commit_tokens(engine, steps, ids[:past])
    together = _seen(run_chain(engine, chain, ids[past : past + CHAIN]), chain)
    for row in range(CHAIN):
        alone = _seen(run_chain(engine, steps, ids[past + row : past + row + 1]), steps)
        pairs = zip(_all_arrays(alone), _all_arrays(together), strict=True)
        if not all(np.array_equal(one[0], many[row]) for one, many in pairs):
            return row
        engine.commit(steps, [0])
    return None


def _all_arrays(values: Values) -> list[npt.NDArray[Any]]:
    features = [] if values.features is None else [values.features]
    return [values.logits, *features, *(values.keys or ()), *(values.values or ())]
