"""The TensorRT engine after something went wrong once: what follows is right, or refused, and never something else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.errors import EngineError
from starsd_edge.runtime.engine import Engine, Sequence, causal_mask
from tests.support.fake_context import IExecutionContext
from tests.support.fake_tensorrt import ICudaEngine

if TYPE_CHECKING:
    from tests.support.tiny_tensorrt import OnFake
else:
    OnFake = pytest.importorskip("tests.support.tiny_tensorrt", reason="needs torch").OnFake

pytestmark = pytest.mark.export

IDS = [5, 9, 17, 3, 11, 20]


@pytest.fixture(params=["append", "inplace"])
def opened(request: pytest.FixtureRequest, tiny_tensorrt: dict[str, Bundle], tmp_path: Path) -> OnFake:
    """The engine of each strategy."""
    return OnFake(tiny_tensorrt[request.param], tmp_path / "engine")


def logits(engine: Engine, seq: Sequence, ids: list[int]) -> Any:
    positions = seq.length + np.arange(len(ids))
    return engine.forward(seq, np.asarray(ids), positions, causal_mask(len(ids))).logits


def answered(engine: Engine, seq: Sequence) -> Any:
    """A prompt's logits, and those of what follows on it."""
    first = logits(engine, seq, IDS)
    engine.commit(seq, range(len(IDS)))
    return np.concatenate([first, logits(engine, seq, [7, 2])])


def test_an_address_that_was_not_taken_is_told_again(opened: OnFake, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, take = opened.engine, IExecutionContext.set_tensor_address
    first, second = engine.open(64), engine.open(64)
    expected = answered(engine, first)

    def refuse(context: IExecutionContext, name: str, address: int) -> bool:
        return name != "past_v_1" and take(context, name, address)

    with monkeypatch.context() as patch:
        patch.setattr(IExecutionContext, "set_tensor_address", refuse)
        with pytest.raises(EngineError, match="cannot take the address of past_v_1"):
            logits(engine, second, IDS)
    assert np.array_equal(answered(engine, second), expected)
    assert opened.device.faults.notes == []


def test_a_recording_that_finds_no_memory_does_not_end_the_answer(
    tiny_tensorrt: dict[str, Bundle],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = OnFake(tiny_tensorrt["inplace"], tmp_path / "engine").engine
    monkeypatch.setattr(ICudaEngine, "create_execution_context", lambda *_: None)
    seq = engine.open(64)
    steps = [logits(engine, seq, IDS) for _ in range(5)]
    assert all(np.array_equal(step, steps[0]) for step in steps)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("passes of 6 tokens are not recorded: tensorrt 10.16.2.10 cannot make an execution context")
