"""The TensorRT engine on the fake, held to its graph as `check` does it, KV of every layer included."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.parity.compare import HALF_BOUND, ReferenceValues, compare_engine, observed, recorded
from starsd_edge.parity.findings import Check, Status
from starsd_edge.parity.golden import read_golden
from starsd_edge.parity.passes import run_passes
from starsd_edge.runtime.loading import open_engine

if TYPE_CHECKING:
    from tests.support.tiny_tensorrt import Board, OnFake
else:
    support = pytest.importorskip("tests.support.tiny_tensorrt", reason="needs torch")
    Board, OnFake = support.Board, support.OnFake

pytestmark = pytest.mark.export
BOARDS = {
    "append on JetPack 6": ("append", Board("10.3.0.30")),
    "append on a desktop": ("append", Board("11.4.0.106", shares_memory=False)),
    "inplace on JetPack 7.2": ("inplace", Board("10.16.2.10")),
    "inplace on a desktop": ("inplace", Board("11.4.0.106", shares_memory=False)),
}


def held_to(opened: OnFake, bundle: Bundle, reference: ReferenceValues) -> list[Check]:
    model = bundle.manifest.model
    golden = read_golden(bundle.path, model.vocab_size)
    return list(compare_engine(opened.engine, golden.facts.ids, reference, golden.facts.text, model.tokenizer_size))


@pytest.mark.parametrize("place", BOARDS)
def test_an_engine_gives_what_its_graph_gives(tiny_tensorrt: dict[str, Bundle], tmp_path: Path, place: str) -> None:
    strategy, board = BOARDS[place]
    bundle = tiny_tensorrt[strategy]
    opened = OnFake(bundle, tmp_path / "engine", board)
    golden = read_golden(bundle.path, bundle.manifest.model.vocab_size)
    graph = open_engine(bundle, threads=1)
    live = observed(list(run_passes(graph, golden.facts.ids)), HALF_BOUND, "build it again")
    for reference in (live, recorded(golden, HALF_BOUND, "build it again")):
        checks = held_to(opened, bundle, reference)
        assert len(checks) == 10
        assert {check.status for check in checks} == {Status.OK}, checks
        assert not [check for check in checks if "is not shown" in check.finding]
    assert opened.device.faults.notes == []


@pytest.mark.parametrize("strategy", ["append", "inplace"])
def test_rows_of_a_layer_that_are_wrong_are_named(
    tiny_tensorrt: dict[str, Bundle], tmp_path: Path, strategy: str
) -> None:
    bundle = tiny_tensorrt[strategy]
    opened = OnFake(bundle, tmp_path / "engine")
    golden = read_golden(bundle.path, bundle.manifest.model.vocab_size)
    passes = list(run_passes(open_engine(bundle, threads=1), golden.facts.ids))
    for each in passes:
        each.values.values[1][...] = np.roll(each.values.values[1], 1, axis=0)  # type: ignore[index]
    checks = held_to(opened, bundle, replace(observed(passes, HALF_BOUND, "build it again")))
    assert checks[0].status is Status.DIFFERS
    assert checks[0].finding.startswith("layer 1 values differ by ")
    assert checks[0].remedy == "build it again"
    assert checks[-1].status is Status.OK, "the text is right: it was the reference that was not"
