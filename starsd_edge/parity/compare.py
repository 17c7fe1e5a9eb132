"""How far an engine's passes, its text and its bits are from what is expected of them, as checks; a draft head's, too.

A pass is compared tensor by tensor and layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from starsd_edge.bundles.manifest import Graph
from starsd_edge.heads.engine import HeadEngine, HeadRows, HeadStep
from starsd_edge.parity.findings import Check, Status, differs, not_checked, ok
from starsd_edge.parity.golden import Golden, GreedyText, greedy_text, sampled, wrong_tokens
from starsd_edge.parity.passes import CHAIN, Observation, Rows, Values, first_inexact, run_passes, why_too_small
from starsd_edge.runtime.engine import Engine

Array = npt.NDArray[Any]

TOP = "the two highest logits"
"""Name of what some engines give beside all logits, see `Values.is_top_right`."""


@dataclass(frozen=True)
class TensorDifference:
    """One tensor of one pass.

    Attributes:
        tensor: "logits", "features", "keys", "values" or `TOP`.
        layer: of keys and values.
        relative: root mean square of the difference over that of what was expected; infinite where the shapes differ or
            a value is not finite.
        of_layer: the layer whose rows these are, where they are those of another one.
        shapes: found and expected, where they differ.
    """

    tensor: str
    layer: int | None
    relative: float
    of_layer: int | None = None
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def name(self) -> str:
        """Like "layer 7 keys"."""
        return self.tensor if self.layer is None else f"layer {self.layer} {self.tensor}"


def differences(found: Values, expected: Values, bound: float) -> list[TensorDifference]:
    """In the order of computation, logits and features last; what either side does not show is left out.

    Args:
        bound: largest `TensorDifference.relative` allowed; rows beyond it are looked for in other layers.
    """
    result = list(_layers(found, expected, bound))
    if found.features is not None and expected.features is not None:
        result.append(_difference("features", None, found.features, expected.features))
    if not found.is_top_right:
        result.append(TensorDifference(TOP, None, np.inf))
    return [*result, _difference("logits", None, found.logits, expected.logits)]


def _layers(found: Values, expected: Values, bound: float) -> Iterator[TensorDifference]:
    kinds = (("keys", found.keys, expected.keys), ("values", found.values, expected.values))
    shown = [(name, ours, theirs) for name, ours, theirs in kinds if ours is not None and theirs is not None]
    other_counts = [(name, ours, theirs) for name, ours, theirs in shown if len(ours) != len(theirs)]
    for name, ours, theirs in other_counts:
        yield TensorDifference(f"the layers of {name}", None, np.inf, shapes=((len(ours),), (len(theirs),)))
    for layer in range(len(shown[0][1]) if shown and not other_counts else 0):
        for name, ours, theirs in shown:
            yield _layer(name, layer, ours, theirs, bound)


def _layer(name: str, layer: int, found: Rows, expected: Rows, bound: float) -> TensorDifference:
    difference = _difference(name, layer, found[layer], expected[layer])
    if difference.relative <= bound or difference.shapes is not None:
        return difference
    others = (other for other in range(len(expected)) if other != layer)
    owner = next((other for other in others if relative(found[layer], expected[other]) <= bound), None)
    return TensorDifference(name, layer, difference.relative, owner)


def _difference(name: str, layer: int | None, found: Array, expected: Array) -> TensorDifference:
    if found.shape != expected.shape:
        return TensorDifference(name, layer, np.inf, shapes=(found.shape, expected.shape))
    return TensorDifference(name, layer, relative(found, expected))


def relative(found: Array, expected: Array) -> float:
    """Root mean square of the difference over that of what was expected; infinite where something is not finite."""
    wanted = expected.astype(np.float64)
    gap, size = found.astype(np.float64) - wanted, float(np.mean(wanted**2))
    error = float(np.mean(gap**2))
    if error == 0:
        return 0.0
    return float(np.sqrt(error / size)) if np.isfinite(error) and size > 0 else float(np.inf)


def largest(found: Sequence[TensorDifference]) -> float:
    """The largest of them."""
    return max((each.relative for each in found), default=0.0)


def describe(found: Sequence[TensorDifference], bound: float) -> str:
    """What differs in one pass, in words: the first place of the computation, and how far that went.

    Args:
        found: of `differences`; at least one is beyond the bound.
    """
    beyond = [each for each in found if not each.relative <= bound]
    first = beyond[0]
    if first.shapes is not None:
        return f"{first.name} have the shape {list(first.shapes[0])} and not {list(first.shapes[1])}"
    if first.of_layer is not None:
        return f"{first.name} are those of layer {first.of_layer}: the layers are not in their order"
    if first.tensor == TOP:
        return f"{TOP} that it names are not those of its logits"
    others = f"; so do {len(beyond) - 1} of {len(found) - 1} other tensors" if len(beyond) > 1 else ""
    if not np.isfinite(first.relative):
        return f"{first.name} are not all numbers{others.replace('so do', 'so are')}"
    return f"{first.name} differ by {first.relative:.1e}, {bound:.1e} allowed{others}"


HALF_BOUND = 0.05
"""Between two computations in float16 with the same weights. 6e-3 was seen where sums are in float32; processors and
GPUs that add up in float16 were not at hand, and their sums of a thousand products are a few times as coarse.
"""
COARSE_BOUND = 0.25
"""Between two machines' passes with activations rounded to int8: what is rounded the other way grows through layers.
0.095 was seen between ONNX Runtime with and without its fusions.
"""
_SINGLE_BOUNDS = {"float32": 1e-4, "float16": 5e-3}
"""Relative error (see `relative`) of a graph with float32 weights, by its KV dtype."""
_SHARE = 1.5
"""Factor on the error that was recorded at export: another machine may be so much further from the checkpoint."""


_COARSE_WEIGHTS = 0.3
"""Relative error of int8 and int4 weights where no recording tells it."""


@dataclass(frozen=True)
class ReferenceValues:
    """The expected values of passes and the largest errors allowed.

    Attributes:
        expect: the values of a pass and how far from them it may be; None where nothing is known of it.
        remedy: what to do where something differs.
        is_sampled: only some numbers of each tensor are known.
    """

    expect: Callable[[Observation], tuple[Values, float] | None]
    remedy: str
    is_sampled: bool = False


def own_bound(graph: Graph) -> float:
    """How far a graph may be from what it gave on another machine."""
    if graph.tensorrt is not None:
        return HALF_BOUND
    return COARSE_BOUND if graph.weights == "int8" else _SINGLE_BOUNDS[graph.kv_dtype]


def recorded(golden: Golden, bound: float, remedy: str) -> ReferenceValues:
    """What was recorded at export."""

    def expect(observation: Observation) -> tuple[Values, float] | None:
        known = golden.find(observation)
        return None if known is None else (known[0], bound)

    return ReferenceValues(expect, remedy, is_sampled=True)


def from_checkpoint(
    stock: Callable[[Observation], Values], graph: Graph, golden: Golden | None, remedy: str
) -> ReferenceValues:
    """What the model says with the weights that it came with.

    A graph whose weights are stored more coarsely is as far from that as it was at export, which its recording knows.
    """

    def expect(observation: Observation) -> tuple[Values, float] | None:
        known = None if golden is None else golden.find(observation)
        far = known[1] if known else _COARSE_WEIGHTS if graph.weights in ("int8", "int4") else 0.0
        floor = _SINGLE_BOUNDS[graph.kv_dtype] if graph.weights == "fp32" else HALF_BOUND
        return stock(observation), max(floor, _SHARE * far)

    return ReferenceValues(expect, remedy)


def observed(passes: Sequence[Observation], bound: float, remedy: str) -> ReferenceValues:
    """What another engine gave."""
    known = {(each.case, each.longest): each.values for each in passes}

    def expect(observation: Observation) -> tuple[Values, float] | None:
        values = known.get((observation.case, observation.longest))
        return None if values is None else (values, bound)

    return ReferenceValues(expect, remedy)


def compare_passes(passes: Sequence[Observation], reference: ReferenceValues) -> list[Check]:
    """A check for each kind of pass."""
    cases = dict.fromkeys(each.case for each in passes)
    return [_compare_case(case, [each for each in passes if each.case == case], reference) for case in cases]


def _compare_case(case: str, passes: Sequence[Observation], reference: ReferenceValues) -> Check:
    """The first pass of its kind that is beyond its bound stands for all, else the one that is nearest to it."""
    checks = [_compare_pass(each, reference) for each in passes]
    wrong = next((check for check in checks if check.status is not Status.OK), None)
    return wrong or max(checks, key=lambda check: (check.largest or 0.0) / (check.allowed or 1.0))


def _compare_pass(observation: Observation, reference: ReferenceValues) -> Check:
    case, known = observation.case, reference.expect(observation)
    if known is None:
        return not_checked(case, "it was not recorded at export", "export the bundle again")
    expected, bound = known[0], observation.allowed(known[1])
    values = sampled(observation.values) if reference.is_sampled else observation.values
    found = differences(values, expected, bound)
    if all(difference.relative <= bound for difference in found):
        return Check(case, Status.OK, _within(largest(found), bound, found), "", largest(found), bound)
    return Check(case, Status.DIFFERS, describe(found, bound), reference.remedy, largest(found), bound)


def _within(far: float, bound: float, found: Sequence[TensorDifference]) -> str:
    what = "" if any(each.layer is not None for each in found) else "; its KV is not shown"
    return f"{'the same numbers' if far == 0 else f'within {far:.1e}'}, {bound:.1e} allowed{what}"


def check_text(engine: Engine, expected: GreedyText, vocab_size: int, bound: float, remedy: str) -> Check:
    """Greedy text, token by token: the same ids but for near ties."""
    name = "greedy text"
    found = greedy_text(engine, expected.prompt, vocab_size, len(expected.ids), expected.ids)
    close, wrong = wrong_tokens(found, expected, min(bound, HALF_BOUND))
    if wrong:
        place = wrong[0]
        return differs(
            name,
            f"token {place + 1} is {found.ids[place]} and not {expected.ids[place]}, which was likelier by "
            f"{expected.gaps[place]:.1e}",
            remedy,
        )
    if not close:
        return ok(name, f"{len(found.ids)} tokens, the same ids")
    places = ", ".join(str(place + 1) for place in close)
    return ok(name, f"{len(found.ids)} tokens, the same ids but for near ties at {places}")


def check_bits(engine: Engine, ids: Sequence[int]) -> Check:
    """Whether speculation is exact on this machine."""
    name = "bits of a chain"
    place = first_inexact(engine, ids)
    if place is None:
        return ok(name, f"{CHAIN} tokens at once give the bits of {CHAIN} steps")
    past, row = place
    return differs(
        name,
        f"a chain on {past} committed tokens differs from one-token steps at its token {row + 1}: with draft tokens "
        "the text could become another",
        "use another version of onnxruntime, or `run-target --no-speculation`",
    )


def compare_engine(
    engine: Engine, ids: Sequence[int], reference: ReferenceValues, text: GreedyText, vocab_size: int
) -> Iterator[Check]:
    """An engine that runs, against its graph.

    Args:
        ids: tokens of the passes.
        text: what the graph says to a prompt.
        vocab_size: ids from here on are padding.

    Raises:
        EngineError: the engine refuses a pass.
    """
    too_small = why_too_small(engine.spec)
    if too_small:
        yield not_checked("passes", too_small)
        return
    yield from compare_passes(list(run_passes(engine, ids)), reference)
    if len(text.prompt) + len(text.ids) <= engine.spec.max_context:
        yield check_text(engine, text, vocab_size, HALF_BOUND, reference.remedy)


BOUNDS = {"fp32": 1e-3, "int8": 0.15}
"""Relative error (see `relative`) by the weights of the graph; rows of the embedding are float16 on both sides."""
_ROWS, _LATER = 8, 5
_REMEDY = "make the bundle again with `starsd-edge export MODEL --draft-head HEAD`"


def compare_heads(graph: HeadEngine, head: HeadEngine, weights: str) -> Iterator[Check]:
    """Two passes, the second on the rows of the first.

    Args:
        graph: under ONNX Runtime.
        head: of the same spec, under torch.
        weights: of the graph, "fp32" or "int8".
    """
    spec, draw = graph.spec, np.random.default_rng(0)
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
