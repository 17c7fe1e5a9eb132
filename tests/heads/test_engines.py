"""The engines of a head against each other: torch is the reference, ONNX Runtime what hubs without it run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import onnx_ir  # noqa: E402
import onnxruntime  # noqa: E402

from starsd_edge.heads.engine import HeadEngine  # noqa: E402
from starsd_edge.heads.onnx_engine import OnnxHeadEngine  # noqa: E402
from starsd_edge.heads.torch_engine import TorchHeadEngine  # noqa: E402
from starsd_edge.speculation.tree import DraftShape  # noqa: E402
from starsd_export.draft_heads.graph import trace_head  # noqa: E402
from tests.support.random_heads import (  # noqa: E402
    DRAFT_VOCAB,
    WatchedEngine,
    drafter_on,
    feed,
    random_engine,
    random_head,
    rows_of_text,
    tree_of,
)

KINDS = ("eagle", "eagle3")
SHAPES = [DraftShape(24, depth, k) for k in (1, 2, 4, 8) for depth in range(1, 7)]


@pytest.fixture(scope="module", params=KINDS)
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, HeadEngine]:
    """One head under torch, under ONNX Runtime, and there with int8 weights."""
    head = random_head(request.param, max_positions=2048)
    engines: dict[str, HeadEngine] = {"torch": TorchHeadEngine(head, DRAFT_VOCAB)}
    folder = tmp_path_factory.mktemp(request.param)
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
