"""The engines of a head against each other: torch is the reference, ONNX Runtime what hubs without it run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import onnx_ir  # noqa: E402
import onnxruntime  # noqa: E402

from starsd_edge.heads.engine import HeadEngine, OnnxHeadEngine  # noqa: E402
from starsd_edge.heads.torch_engine import TorchHeadEngine  # noqa: E402
from starsd_edge.protocol.rows import NewRows  # noqa: E402
from starsd_edge.speculation.tree import DraftShape  # noqa: E402
from starsd_export.draft_heads.bundle import trace_head  # noqa: E402
from tests.support.random_heads import (  # noqa: E402
    DRAFT_VOCAB,
    WatchedEngine,
    drafter_on,
    feed,
    fresh_tree,
    random_engine,
    random_head,
    rows_of_text,
    tree_of,
)

KINDS = ("eagle", "eagle3")
SHAPES = [DraftShape(24, depth, k) for k in (1, 2, 4, 8) for depth in range(1, 7)]


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Named after the kind of head whose graphs it is for."""
    directory = tmp_path_factory.mktemp("graphs") / request.param
    directory.mkdir()
    return directory


@pytest.fixture(scope="module")
def engines(folder: Path) -> dict[str, HeadEngine]:
    """One head under torch, under ONNX Runtime, and there with int8 weights."""
    head = random_head(folder.name, max_positions=2048)
    engines: dict[str, HeadEngine] = {"torch": TorchHeadEngine(head, DRAFT_VOCAB)}
    for name, int8 in (("fp32", False), ("int8", True)):
        path = folder / f"{name}.onnx"
        onnx_ir.save(trace_head(head, int8=int8, candidates=DRAFT_VOCAB), path)
        embedding = head.embed_weight.numpy().astype(np.float16)
        engines[name] = OnnxHeadEngine(one_thread(path), head.spec, embedding)
    # The embedding of ONNX engines is float16: give torch the same numbers.
    head.embed_weight.copy_(head.embed_weight.half().float())
    return engines


def one_thread(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def test_onnx_grows_the_trees_of_torch_over_ragged_rounds(engines: dict[str, HeadEngine]) -> None:
    ids, features = rows_of_text(6 * len(SHAPES))
    drafters = [drafter_on(engines[name]) for name in ("torch", "fp32")]
    for drafter in drafters:
        drafter.open(1, 0, 0)
    start = 0
    for number, shape in enumerate(SHAPES):
        end = start + 1 + number % 5
        for drafter in drafters:
            feed(drafter, 1, start, ids[start:end], features[start:end])
        reference, ours = (tree_of(drafter, 1, shape) for drafter in drafters)
        assert ours == reference
        start = end


@pytest.mark.parametrize(("name", "least", "most"), [("fp32", 0, 1e-5), ("int8", 1e-3, 0.03)])
def test_scores_of_an_onnx_engine_are_near_those_of_torch(
    engines: dict[str, HeadEngine], name: str, least: float, most: float
) -> None:
    """int8 rounds weights and activations to 1 in 127."""
    assert least <= difference(engines["torch"], engines[name]) < most


def test_sessions_of_one_pass_get_the_trees_that_torch_gives_each_alone(engines: dict[str, HeadEngine]) -> None:
    texts = [rows_of_text(length, seed=length) for length in (1, 9, 40, 700, 3)]
    shapes = [DraftShape(8, 5, 3), DraftShape(24, 6, 8), DraftShape(4, 4, 1), DraftShape(8, 4, 2), DraftShape(1, 1, 1)]
    for batched, alone in (("fp32", "torch"), ("int8", "int8")):
        drafter = drafter_on(engines[batched])
        for session in range(5):
            drafter.open(session, 0, 0)
        assert drafter.extend([NewRows(session, 0, *text) for session, text in enumerate(texts)]) == {}
        expected = [fresh_tree(engines[alone], *text, shape) for text, shape in zip(texts, shapes, strict=True)]
        assert drafter.draft(range(5), shapes) == expected


@pytest.mark.parametrize("name", ["fp32", "int8"])
@pytest.mark.parametrize("value", [65504.0, np.nan, np.inf])
def test_what_one_session_sends_changes_no_bit_for_the_others(
    engines: dict[str, HeadEngine], name: str, value: float
) -> None:
    """Each row of int8 has a scale of its own; one for the whole pass would be that of the largest."""
    calm = rows_of_text(5, seed=7)
    scores = []
    for middle in (calm[1], np.full_like(calm[1], value)):
        watched = WatchedEngine(engines[name])
        drafter = drafter_on(watched)
        for session in range(3):
            drafter.open(session, 0, 0)
        drafter.extend([NewRows(1, 0, calm[0], middle), *(NewRows(each, 0, *rows_of_text(5, each)) for each in (0, 2))])
        scores.append(watched.passes[-1].scores)
    assert not np.array_equal(scores[0][0], scores[1][0])
    np.testing.assert_array_equal(scores[0][1:], scores[1][1:])


@pytest.mark.usefixtures("engines")
def test_every_matrix_of_an_int8_graph_is_int8_with_or_without_a_bias(folder: Path) -> None:
    stored = [value.const_value for value in onnx_ir.load(folder / "int8.onnx").graph.initializers.values()]
    matrices = [tensor for tensor in stored if tensor is not None and len(tensor.shape) == 2]
    # q, k, v, o, gate, up, down, lm_head, and EAGLE-1's fc, which has a bias
    assert len(matrices) == {"eagle": 9, "eagle3": 8}[folder.name]
    assert {tensor.dtype for tensor in matrices} == {onnx_ir.DataType.INT8}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "least", "most"), [("float16", 1e-5, 3e-3), ("bfloat16", 1e-4, 0.03)])
def test_scores_of_a_narrower_torch_head_are_near_those_of_the_wide_one(
    kind: str, dtype: str, least: float, most: float
) -> None:
    narrow = TorchHeadEngine(random_head(kind, dtype=getattr(torch, dtype), max_positions=2048), DRAFT_VOCAB)
    assert least <= difference(random_engine(kind, max_positions=2048), narrow) < most


def difference(reference: HeadEngine, engine: HeadEngine) -> float:
    """Of the scores below the last row of texts of up to 1,000 rows, as a share of their spread."""
    scores = []
    for each in (WatchedEngine(reference), WatchedEngine(engine)):
        for seed, rows in enumerate((1, 2, 5, 8, 13, 40, 64, 65, 200, 1000)):
            drafter = drafter_on(each)
            drafter.open(1, 0, 0)
            feed(drafter, 1, 0, *rows_of_text(rows, seed=seed))
        scores.append(np.concatenate([one.scores for one in each.passes]))
    true, near = scores
    return float(np.sqrt(np.mean((near - true) ** 2)) / true.std())
