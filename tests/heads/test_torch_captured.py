"""Captured passes: shapes are rounded up, and nobody notices.

The capture itself needs a GPU; here it is a stand-in that runs what it has recorded on the very same memory.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from starsd_edge.heads import torch_captured as captured  # noqa: E402
from starsd_edge.heads.torch_captured import HeadInputs, HeadOutputs, Run, capture_cuda  # noqa: E402
from starsd_edge.heads.torch_engine import TorchHeadEngine  # noqa: E402
from starsd_edge.protocol.rows import NewRows  # noqa: E402
from starsd_edge.speculation.tree import DraftShape  # noqa: E402
from tests.support.random_heads import drafter_on, random_head, rows_of_text  # noqa: E402

SHAPES = [DraftShape(24, 6, 4), DraftShape(4, 4, 1), DraftShape(8, 5, 3)]


class Recorder:
    """Replays by running again, and spoils what was there before, as a replay does."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, run: Run, inputs: HeadInputs) -> tuple[Callable[[], None], HeadOutputs]:
        self.shapes.append(captured.PassShape.of(inputs))
        outputs = run(inputs)

        def replay() -> None:
            for place, part in zip(outputs, run(inputs), strict=True):
                place.copy_(part)

        return replay, outputs


def rounds(engine: TorchHeadEngine, sessions: int, rows: int) -> list[object]:
    """The trees of ragged rounds of several sessions."""
    drafter = drafter_on(engine)
    trees: list[object] = []
    for session in range(sessions):
        drafter.open(session, 0, 0)
    for start in range(0, rows, 5):
        batch = []
        for session in range(sessions):
            ids, features = rows_of_text(rows, seed=session)
            part = slice(start, start + 5 - session % 2)
            batch.append(NewRows(session, start, ids[part], features[part]))
        assert drafter.extend(batch) == {}
        trees += drafter.draft(range(sessions), [SHAPES[session % 3] for session in range(sessions)])
    return trees


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_rounded_passes_give_the_trees_of_plain_ones(kind: str) -> None:
    head, recorder = random_head(kind, max_positions=2048), Recorder()
    for sessions in (1, 3):
        plain = rounds(TorchHeadEngine(head), sessions, 20)
        assert rounds(TorchHeadEngine(head, capture=recorder), sessions, 20) == plain
    assert all(shape.past == 256 and shape.late % 16 == 0 for shape in recorder.shapes)
    assert {1, 4} <= {shape.lines for shape in recorder.shapes} <= {1, 2, 4}


def test_a_shape_is_captured_once_and_a_large_pass_never(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    engine = TorchHeadEngine(random_head(max_positions=2048), capture=recorder)
    rounds(engine, 2, 30)
    assert len(set(recorder.shapes)) == len(recorder.shapes)
    before = len(recorder.shapes)
    rounds(engine, 2, 30)
    assert len(recorder.shapes) == before
    drafter = drafter_on(engine)
    for session in range(2):
        drafter.open(session, 0, 0)
    drafter.extend([NewRows(session, 0, *rows_of_text(200)) for session in range(2)])
    assert len(recorder.shapes) == before


def test_only_so_many_graphs_are_kept_and_what_takes_turns_does_not_drive_each_other_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(captured, "MOST_GRAPHS", 1)
    recorder, head = Recorder(), random_head()
    assert rounds(TorchHeadEngine(head, capture=recorder), 2, 10) == rounds(TorchHeadEngine(head), 2, 10)
    assert len(recorder.shapes) == 1


def test_a_graph_out_of_use_makes_room_for_a_shape_that_keeps_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "MOST_GRAPHS", 1)
    monkeypatch.setattr(captured, "STALE_AFTER", 10)
    monkeypatch.setattr(captured, "WANTED_AFTER", 4)
    recorder, head = Recorder(), random_head()
    engine = TorchHeadEngine(head, capture=recorder)
    rounds(engine, 2, 5)
    before = recorder.shapes[:]
    plain = rounds(TorchHeadEngine(head), 1, 40)
    assert rounds(engine, 1, 40) == plain
    assert len(before) == 1
    assert len(recorder.shapes) > 1
    assert {shape.lines for shape in recorder.shapes[1:]} == {1}


def test_what_overflows_in_one_pass_is_not_left_for_the_next() -> None:
    head = random_head(dtype=torch.float16)
    with torch.no_grad():
        head.fc_weight.mul_(20)
    runs = [TorchHeadEngine(head, capture=capture) for capture in (Recorder(), None)]
    trees = []
    for engine in runs:
        drafter = drafter_on(engine)
        for session in range(2):
            drafter.open(session, 0, 0)
        drafter.extend([NewRows(session, 0, *rows_of_text(9, seed=session)) for session in range(2)])
        (runaway,) = drafter.draft([0], [DraftShape(100, 100)])
        assert 0 < len(runaway) < 100
        trees.append(drafter.draft([1], [DraftShape(8, 3, 2)]))
    assert trees[0] == trees[1]
    assert len(trees[0][0]) > 0


@pytest.mark.gpu
def test_a_gpu_replays_the_trees_that_it_runs() -> None:
    head = random_head(max_positions=2048).to("cuda")
    assert rounds(TorchHeadEngine(head, capture=capture_cuda), 3, 20) == rounds(TorchHeadEngine(head), 3, 20)
