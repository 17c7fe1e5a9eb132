"""A draft head's graph against the same head under torch: the bundle holds both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from starsd_edge.heads.engine import HeadEngine, HeadRows, HeadStep
from starsd_edge.parity.compare import relative
from starsd_edge.parity.findings import Check, differs, ok

BOUNDS = {"fp32": 1e-3, "int8": 0.15}
"""By the weights of the graph; rows of the embedding are float16 on both sides."""
_ROWS, _LATER = 8, 5
_REMEDY = "make the bundle again with `starsd-edge export MODEL --draft-head HEAD`"


def compare_heads(graph: HeadEngine, head: HeadEngine, weights: str, seed: int = 0) -> Iterator[Check]:
    """Two passes, the second on the rows of the first.

    Args:
        graph: under ONNX Runtime.
        head: of the same spec, under torch.
        weights: of the graph, "fp32" or "int8".
    """
    spec, draw = graph.spec, np.random.default_rng(seed)
    ids = draw.integers(0, spec.vocab_size, _ROWS + _LATER)
    features = draw.standard_normal((_ROWS + _LATER, spec.hidden_size)).astype(np.float32)
    begun, expected = (_run(engine, ids[:_ROWS], features[:_ROWS], None) for engine in (graph, head))
    yield _compare("first rows", begun, expected, BOUNDS[weights])
    found = _run(graph, ids[_ROWS:], features[_ROWS:], begun)
    yield _compare("rows on them", found, _run(head, ids[_ROWS:], features[_ROWS:], expected), BOUNDS[weights])


def _run(
    engine: HeadEngine, ids: npt.NDArray[np.int64], features: npt.NDArray[np.float32], past: HeadStep | None
) -> HeadStep:
    """Rows of one sequence, each of which sees those before it."""
    none = engine.zeros(1, engine.spec.n_kv_heads, 0, engine.spec.head_dim)
    keys, values = (none, none) if past is None else (past.keys, past.values)
    rows, held = np.arange(len(ids)), int(keys.shape[2])
    return engine.forward(
        HeadRows(
            ids=ids,
            features=features,
            positions=rows + held,
            slots=rows[None],
            places=rows,
            keys=keys,
            values=values,
            lengths=np.array([held]),
            late_keys=none,
            late_values=none,
            seen=np.tri(len(ids), dtype=np.bool_)[None],
            wanted=rows,
        )
    )


def _compare(name: str, found: HeadStep, expected: HeadStep, bound: float) -> Check:
    """Candidates by their scores: which of two equal ones comes first is left open."""
    parts = ("keys", "values", "predicted", "scores")
    far = {part: relative(_numbers(found, part), _numbers(expected, part)) for part in parts}
    first = next((part for part in parts if not far[part] <= bound), None)
    if first is None:
        check = ok(name, f"within {max(far.values()):.1e}, {bound:.1e} allowed")
    else:
        check = differs(name, f"{first} differ by {far[first]:.1e}, {bound:.1e} allowed", _REMEDY)
    return replace(check, largest=max(far.values()), allowed=bound)


def _numbers(step: HeadStep, part: str) -> npt.NDArray[Any]:
    return np.asarray(getattr(step, part))
