"""Passes, text and bits of an engine, held to what is expected of them, as checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from starsd_edge.bundles.manifest import Graph
from starsd_edge.parity.compare import TensorDifference, describe, differences, is_within, largest
from starsd_edge.parity.findings import Check, Status, differs, not_checked, ok
from starsd_edge.parity.golden import Golden, GreedyText, greedy_text, sampled, wrong_tokens
from starsd_edge.parity.passes import CHAIN, Observation, Values, first_inexact, run_passes, why_too_small
from starsd_edge.runtime.engine import Engine

HALF_BOUND = 0.05
"""Between two computations in float16 with the same weights. 6e-3 was seen where sums are in float32; processors and
GPUs that add up in float16 were not at hand, and their sums of a thousand products are a few times as coarse.
"""
COARSE_BOUND = 0.25
"""Between two machines' passes with activations rounded to int8: what is rounded the other way grows through layers.
0.095 was seen between ONNX Runtime with and without its fusions.
"""
_SINGLE_BOUNDS = {"float32": 1e-4, "float16": 5e-3}
_SHARE = 1.5
"""How much further from the checkpoint than at export, where that was far."""


@dataclass(frozen=True)
class Yardstick:
    """What an engine is held to.

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


def recorded(golden: Golden, bound: float, remedy: str) -> Yardstick:
    """What was recorded at export."""

    def expect(observation: Observation) -> tuple[Values, float] | None:
        values = golden.expected(observation)
        return None if values is None else (values, bound)

    return Yardstick(expect, remedy, is_sampled=True)


def from_checkpoint(
    stock: Callable[[Observation], Values], graph: Graph, golden: Golden | None, remedy: str
) -> Yardstick:
    """What the model says with the weights that it came with.

    A graph whose weights are stored more coarsely is as far from that as it was at export, which its recording knows.
    """

    def expect(observation: Observation) -> tuple[Values, float] | None:
        far = None if golden is None else golden.from_checkpoint(observation)
        if far is None:
            far = 0.3 if graph.weights in ("int8", "int4") else 0.0
        floor = _SINGLE_BOUNDS[graph.kv_dtype] if graph.weights == "fp32" else HALF_BOUND
        return stock(observation), max(floor, _SHARE * far)

    return Yardstick(expect, remedy)


def observed(passes: Sequence[Observation], bound: float, remedy: str) -> Yardstick:
    """What another engine gave."""
    known = {(each.case, each.longest): each.values for each in passes}

    def expect(observation: Observation) -> tuple[Values, float] | None:
        values = known.get((observation.case, observation.longest))
        return None if values is None else (values, bound)

    return Yardstick(expect, remedy)


def compare_passes(passes: Sequence[Observation], yardstick: Yardstick) -> list[Check]:
    """A check for each kind of pass."""
    cases = dict.fromkeys(each.case for each in passes)
    return [_compare_case(case, [each for each in passes if each.case == case], yardstick) for case in cases]


def _compare_case(case: str, passes: Sequence[Observation], yardstick: Yardstick) -> Check:
    """The first pass of its kind that is beyond its bound stands for all, else the one that is nearest to it."""
    checks = [_compare_pass(each, yardstick) for each in passes]
    wrong = next((check for check in checks if check.status is not Status.OK), None)
    return wrong or max(checks, key=lambda check: (check.largest or 0.0) / (check.allowed or 1.0))


def _compare_pass(observation: Observation, yardstick: Yardstick) -> Check:
    case, known = observation.case, yardstick.expect(observation)
    if known is None:
        return not_checked(case, "it was not recorded at export", "export the bundle again")
    expected, bound = known[0], observation.allowed(known[1])
    values = sampled(observation.values) if yardstick.is_sampled else observation.values
    found = differences(values, expected, bound)
    if all(is_within(difference, bound) for difference in found):
        return Check(case, Status.OK, _within(largest(found), bound, found), "", largest(found), bound)
    return Check(case, Status.DIFFERS, describe(found, bound), yardstick.remedy, largest(found), bound)


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
        f"a chain on {past} committed tokens differs from one-token steps at its token {row + 1}: with guesses the "
        "text could become another",
        "use another version of onnxruntime, or `run-target --no-speculation`",
    )


def compare_engine(
    engine: Engine, ids: Sequence[int], yardstick: Yardstick, text: GreedyText, vocab_size: int
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
    yield from compare_passes(list(run_passes(engine, ids)), yardstick)
    if len(text.prompt) + len(text.ids) <= engine.spec.max_context:
        yield check_text(engine, text, vocab_size, HALF_BOUND, yardstick.remedy)
