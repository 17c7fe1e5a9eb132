"""The parity gate: no bundle leaves the exporter before its graph said what the stock model says.

Two kinds of checks. Against transformers: logits, features and new KV of every kind of pass stay within a bound.
Against
itself: one-token steps and a chain verified at once agree bit for bit, which is what makes speculation exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from starsd_edge.errors import StarsdError
from starsd_edge.runtime.engine import Step, causal_mask
from starsd_edge.runtime.onnx_engine import OnnxEngine, OnnxSequence
from starsd_edge.runtime.onnx_inplace import InplaceSequence, OnnxInplaceEngine
from starsd_edge.speculation.tree import ROOT, DraftTree
from starsd_export.reference import Reference

PREFIX = 24
"""Committed tokens under the passes that have some."""
CHAIN = 8
_CHUNKS = (7, 1, 16)
_BITWISE_PREFIXES = (0, PREFIX, 150)
# Root mean square of the difference over that of the stock model's values. fp16 KV: two sums that differ in the last
# bit of float32 may round to neighbouring fp16 values (seen: 9e-4). int8: the quantisation of weights and activations
# itself (seen: 0.19); unrelated tensors differ by 1.4.
BOUNDS = {("fp32", "float32"): 1e-4, ("fp32", "float16"): 5e-3, ("int8", "float32"): 0.4, ("int8", "float16"): 0.4}

GraphEngine = OnnxEngine | OnnxInplaceEngine
"""An exported graph on ONNX Runtime, whichever its KV strategy."""
GraphSequence = OnnxSequence | InplaceSequence
RunStock = Callable[[Sequence[int]], Reference]
"""The stock model over a whole prefix."""


class ParityError(StarsdError):
    """The graph does not compute what the model computes."""


@dataclass(frozen=True)
class Difference:
    """How far one tensor of one pass is from the stock model's: root mean square, relative to its values."""

    case: str
    tensor: str
    relative: float


def check_parity(
    engine: GraphEngine, stock: RunStock, bound: float, seed: int = 0, *, bitwise: bool = True
) -> dict[str, float]:
    """Run every check.

    Args:
        engine: the exported graph.
        stock: the model it was made from.
        bound: largest `Difference.relative` allowed.
        seed: of the random prompts.
        bitwise: whether one-token steps and a chain have to agree bit for bit.

    Returns:
        The largest difference by case, for the manifest.

    Raises:
        ParityError: says where the graph differs and by how much.
    """
    ids = np.random.default_rng(seed).integers(0, engine.spec.vocab_size, max(_BITWISE_PREFIXES) + CHAIN).tolist()
    found: dict[str, float] = {}
    for difference in _against_stock(engine, stock, ids):
        if not difference.relative <= bound:  # a NaN is beyond every bound
            raise ParityError(
                f"the exported graph differs from transformers in {difference.tensor} of {difference.case}: "
                f"{difference.relative:.1e} relative, {bound:.0e} allowed; nothing was written"
            )
        found[difference.case] = max(found.get(difference.case, 0.0), difference.relative)
    for past in _BITWISE_PREFIXES if bitwise else ():
        _check_bitwise(engine, ids, past)
    return found


def _against_stock(engine: GraphEngine, stock: RunStock, ids: Sequence[int]) -> Iterator[Difference]:
    whole = stock(ids[: PREFIX + CHAIN])
    prompt = ids[:PREFIX]
    seq = engine.open(PREFIX + CHAIN)
    yield from _compare("prefill", seq, _forward(engine, seq, prompt), [whole.row(i) for i in range(PREFIX)])
    yield from _chunked(engine, prompt, whole)
    yield from _compare("one token on nothing", seq, _forward(engine, seq, ids[:1]), [whole.row(0)])
    _prefill(engine, seq, prompt)
    step = _forward(engine, seq, ids[PREFIX : PREFIX + 1])
    yield from _compare("one token", seq, step, [whole.row(PREFIX)])
    step = _forward(engine, seq, ids[PREFIX : PREFIX + CHAIN])
    yield from _compare("chain", seq, step, [whole.row(PREFIX + i) for i in range(CHAIN)])
    yield from _tree(engine, seq, stock, ids)


def _chunked(engine: GraphEngine, prompt: Sequence[int], whole: Reference) -> Iterator[Difference]:
    seq = engine.open(PREFIX)
    for size in _CHUNKS:
        start = seq.length
        step = _forward(engine, seq, prompt[start : start + size])
        rows = [whole.row(start + i) for i in range(size)]
        yield from _compare("chunked prefill", seq, step, rows)
        engine.commit(seq, range(size))


def _tree(engine: GraphEngine, seq: GraphSequence, stock: RunStock, ids: Sequence[int]) -> Iterator[Difference]:
    """Every node against the stock model over the node's own path, which knows nothing of trees."""
    tree = sample_tree(ids[PREFIX + 1 : PREFIX + CHAIN])
    root = ids[PREFIX]
    step = engine.forward(seq, tree.verify_tokens(root), tree.verify_positions(PREFIX), tree.verify_mask())
    paths = [_path(tree, node) for node in range(ROOT, len(tree))]
    rows = [stock([*ids[:PREFIX], root, *path]).row(PREFIX + len(path)) for path in paths]
    yield from _compare("tree", seq, step, rows)


def sample_tree(tokens: Sequence[int]) -> DraftTree:
    """Seven nodes with branches at the root and below: 0(1(2) 3) 4(5 6)."""
    parents = np.array([ROOT, 0, 1, 0, ROOT, 4, 4], np.int32)
    return DraftTree(np.asarray(tokens[: len(parents)], np.int64), parents)


def _path(tree: DraftTree, node: int) -> list[int]:
    path: list[int] = []
    while node != ROOT:
        path.append(int(tree.tokens[node]))
        node = int(tree.parents[node])
    return path[::-1]


def _compare(case: str, seq: GraphSequence, step: Step, rows: Sequence[Reference]) -> Iterator[Difference]:
    yield _difference(case, "logits", step.logits, np.concatenate([row.logits for row in rows]))
    yield _difference(case, "features", step.features, np.concatenate([row.features for row in rows]))
    keys = np.concatenate([row.keys for row in rows], axis=1)
    values = np.concatenate([row.values for row in rows], axis=1)
    for layer in range(len(keys)):
        yield _difference(case, f"new K of layer {layer}", seq.new_keys[layer], keys[layer])
        yield _difference(case, f"new V of layer {layer}", seq.new_values[layer], values[layer])


def _difference(
    case: str, tensor: str, found: npt.NDArray[np.generic], expected: npt.NDArray[np.float32]
) -> Difference:
    if found.shape != expected.shape:
        raise ParityError(f"the exported graph gives {tensor} of {case} as {found.shape}, not {expected.shape}")
    gap = found.astype(np.float64) - expected
    return Difference(case, tensor, float(np.sqrt(np.mean(gap**2) / np.mean(expected.astype(np.float64) ** 2))))


def _check_bitwise(engine: GraphEngine, ids: Sequence[int], past: int) -> None:
    chain, steps = engine.open(past + CHAIN), engine.open(past + CHAIN)
    _prefill(engine, chain, ids[:past])
    _prefill(engine, steps, ids[:past])
    together = _forward(engine, chain, ids[past : past + CHAIN])
    for row in range(CHAIN):
        alone = _forward(engine, steps, ids[past + row : past + row + 1])
        same = (
            np.array_equal(alone.logits[0], together.logits[row])
            and np.array_equal(alone.features[0], together.features[row])
            and all(np.array_equal(a[0], b[row]) for a, b in zip(steps.new_keys, chain.new_keys, strict=True))
            and all(np.array_equal(a[0], b[row]) for a, b in zip(steps.new_values, chain.new_values, strict=True))
        )
        if not same:
            raise ParityError(
                f"a chain of {CHAIN} tokens on {past} committed ones differs from one-token steps at token {row}: "
                "speculation would not be exact on this machine's ONNX Runtime; nothing was written"
            )
        engine.commit(steps, [0])


def _prefill(engine: GraphEngine, seq: GraphSequence, ids: Sequence[int]) -> None:
    for start in range(0, len(ids), engine.spec.max_chunk):
        chunk = ids[start : start + engine.spec.max_chunk]
        _forward(engine, seq, chunk)
        engine.commit(seq, range(len(chunk)))


def _forward(engine: GraphEngine, seq: GraphSequence, ids: Sequence[int]) -> Step:
    tokens = np.asarray(ids, np.int64)
    return engine.forward(seq, tokens, seq.length + np.arange(len(tokens)), causal_mask(len(tokens)))
