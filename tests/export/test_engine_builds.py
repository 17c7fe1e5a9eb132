"""Real builds with the library that needs no GPU, TensorRT-RTX: what it builds, and what it says to faulty graphs.

It stands in for a Jetson's TensorRT, whose parser and builder it shares much with; it is no proof for that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from onnx import ModelProto

from starsd_edge.bundles.engine_manifest import EngineTensor
from starsd_export.engines.builder import (
    COMPUTE_CAPABILITIES,
    BuildCancelledError,
    BuildError,
    BuildOrder,
    Library,
    build_plan,
    open_library,
)
from starsd_export.engines.profiles import Shapes
from starsd_export.engines.worker import Order, Progress, run_build
from tests.support import build_graphs as graphs
from tests.support.gpus import is_gpu_here
from tests.support.rtx_generations import EACH, GENERATIONS, Generation

GENERATIONS[0].require()

SHAPES: Shapes = {"x": ([1], [4], [8])}


@pytest.fixture(scope="module")
def library() -> Library:
    return open_library("tensorrt-rtx")


@pytest.fixture(params=EACH)
def generation(request: pytest.FixtureRequest) -> Generation:
    """Each in turn."""
    found: Generation = request.param
    found.require()
    return found


def order(model: ModelProto, directory: Path, *shapes: Shapes, sm: tuple[str, ...] = ("sm89",)) -> BuildOrder:
    return BuildOrder(graphs.write(model, directory), shapes, sm)


def refusal(generation: Generation, request: BuildOrder) -> str:
    with pytest.raises(BuildError) as refused:
        generation.try_build(request, request.graph.with_name("plan"))
    assert not request.graph.with_name("plan").exists()
    return str(refused.value)


def test_a_plan_comes_with_its_inputs_outputs_and_progress(library: Library, tmp_path: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    built = build_plan(library, order(graphs.dynamic_sum(), tmp_path, SHAPES), lambda *report: reports.append(report))
    assert len(built.plan) > 1000
    assert built.tensors == [
        EngineTensor("x", "input", "float16", [-1]),
        EngineTensor("y", "output", "float16", [-1]),
    ]
    assert built.timing_cache is None
    phases = list(dict.fromkeys(phase for phase, _, _ in reports))
    assert len(phases) >= 3
    assert all(0 <= done <= of for _, done, of in reports)
    assert reports[0][1] == 0


def test_one_plan_serves_several_kinds_of_gpu(generation: Generation, tmp_path: Path) -> None:
    request, plan = order(graphs.dynamic_sum(), tmp_path, SHAPES, sm=("sm86", "sm89", "sm120")), tmp_path / "plan"
    built = generation.build(request, plan)
    assert built.version == generation.version
    assert plan.stat().st_size > 1000


def test_weights_in_blocks_build_without_a_gpu_from_the_newer_generation_on(tmp_path: Path) -> None:
    newer, older = GENERATIONS
    request = order(graphs.weights_in_blocks(), tmp_path)
    assert newer.build(request, tmp_path / "plan").version == newer.version
    (tmp_path / "plan").unlink()
    older.require()
    if is_gpu_here():
        older.build(request, tmp_path / "plan")
        return
    found = refusal(older, request)
    assert "it needs a GPU for this: take a newer version, or a bundle of `--weights fp16` (" in found


def test_every_kind_of_gpu_on_the_list_is_one_of_the_librarys(library: Library) -> None:
    known = {sm for sm in COMPUTE_CAPABILITIES if hasattr(library.module.ComputeCapability, sm.upper())}
    assert known >= set(COMPUTE_CAPABILITIES) - {"sm121"}  # which came after 1.4


def test_a_kind_of_gpu_that_the_library_does_not_know_is_refused(library: Library, tmp_path: Path) -> None:
    for kinds in (("sm87",), ("sm89", "sm87")):
        with pytest.raises(BuildError, match=r"TensorRT-RTX [\d.]+ does not build for sm87"):
            build_plan(library, order(graphs.dynamic_sum(), tmp_path, SHAPES, sm=kinds))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (graphs.mixed_types, "Mul.*must have same input types. But they are of types Half and Float"),
        (graphs.unknown_operator, "FusedMatMul.*(Plugin not found|Invalid Node|is not supported)"),
        (graphs.attention_with_cache, "TensorRT only supports Attention nodes with one output"),
        (lambda: graphs.scatter(mode="circular"), "Only linear mode is supported for now, got circular"),
        (lambda: graphs.scatter((2, 16, 8), (2, 3, 8)), "past_cache tensor is required to be 4D, got 3D"),
        (lambda: graphs.scatter((1, 2, "c", 8)), "KV cache tensor must have a static sequence length dimension"),
    ],
)
def test_a_graph_that_the_parser_refuses_is_explained_by_its_own_words(
    generation: Generation, tmp_path: Path, make: Callable[[], ModelProto], said: str
) -> None:
    found = refusal(generation, order(make(), tmp_path))
    assert re.match(rf"TensorRT-RTX {generation.version} does not take this graph: .*{said}", found)


@pytest.mark.parametrize(
    ("make", "shapes", "said"),
    [
        (graphs.scatter_of_no_input, [], "The cache tensor must be a network input"),
        (graphs.scatter_to_no_output, [], "The output tensor must be a network output"),
        (graphs.dynamic_sum, [{}], "Dynamic input tensor x is missing dimensions in profile 0"),
    ],
)
def test_a_graph_that_the_builder_refuses_is_explained_by_its_own_words(
    generation: Generation, tmp_path: Path, make: Callable[[], ModelProto], shapes: list[Shapes], said: str
) -> None:
    found = refusal(generation, order(make(), tmp_path, *shapes))
    assert re.match(
        rf"TensorRT-RTX {generation.version} (does not build this graph|refuses profile 0): .*{said}", found
    )


def test_a_profile_that_is_upside_down_is_refused(generation: Generation, tmp_path: Path) -> None:
    found = refusal(generation, order(graphs.dynamic_sum(), tmp_path, {"x": ([4], [2], [8])}))
    assert re.search(r"refuses profile 0: .*MIN\s*<=\s*OPT", found)


def test_a_file_that_is_no_graph_and_one_that_is_missing_are_refused(library: Library, tmp_path: Path) -> None:
    (tmp_path / "noise.onnx").write_bytes(b"not a graph")
    for name in ("noise.onnx", "missing.onnx"):
        with pytest.raises(BuildError, match="does not take this graph: "):
            build_plan(library, BuildOrder(tmp_path / name, [], ("sm89",)))


def test_a_build_that_is_stopped_says_so(library: Library, tmp_path: Path) -> None:
    with pytest.raises(BuildCancelledError):
        build_plan(library, order(graphs.dynamic_sum(), tmp_path, SHAPES), stop=lambda: True)


def test_a_build_in_its_own_process_writes_the_plan(tmp_path: Path) -> None:
    graph, plan = graphs.write(graphs.dynamic_sum(), tmp_path), tmp_path / "plan"
    steps: list[Progress] = []
    built = run_build(Order("tensorrt-rtx", str(graph), str(plan), [dict(SHAPES)], ["sm120"], None), steps.append)
    assert plan.stat().st_size > 1000
    assert built.memory_bytes > 10 << 20
    assert [tensor.name for tensor in built.tensors] == ["x", "y"]
    assert steps

    def interrupt(report: Progress) -> None:
        raise KeyboardInterrupt

    plan.unlink()
    with pytest.raises(KeyboardInterrupt):
        run_build(Order("tensorrt-rtx", str(graph), str(plan), [dict(SHAPES)], ["sm89"], None), interrupt)
    assert not plan.exists()
