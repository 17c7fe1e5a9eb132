"""The TensorRT engine under the real decode loop, on a fake that computes with ONNX Runtime and refuses what TensorRT
and CUDA refuse or leave undefined.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.errors import EngineError
from starsd_edge.runtime.engine import Engine, EngineSpec, Sequence, Step, causal_mask
from starsd_edge.runtime.loading import open_engine
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.decoder import Answer, Request, decode
from starsd_jetson.drafting import DraftSource, NoDrafts
from starsd_jetson.kept_sequences import KeptSequences
from tests.support.draft_sources import ScriptedDrafts, half_knowing
from tests.support.fake_cuda_types import cudaError_t
from tests.support.fake_cudart import FakeCudart

if TYPE_CHECKING:
    from tests.support.tiny_tensorrt import Board, OnFake
else:
    support = pytest.importorskip("tests.support.tiny_tensorrt", reason="needs torch")
    Board, OnFake = support.Board, support.OnFake

pytestmark = pytest.mark.export

CONTEXT = 192
STRATEGIES = ("append", "inplace")
BOARDS = {
    "append on JetPack 6": ("append", Board("10.3.0.30")),
    "append on a desktop": ("append", Board("11.4.0.106", shares_memory=False)),
    "inplace on JetPack 7.2": ("inplace", Board("10.16.2.10")),
    "inplace on a desktop": ("inplace", Board("11.4.0.106", shares_memory=False)),
}
PROMPT = "the cat and the hat"
IDS = [5, 9, 17, 3, 11, 20, 7, 2, 13, 19, 6, 15]


class Counting(FakeCudart):
    """Counts the graphs that are launched."""

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self.launches = 0

    def cudaGraphLaunch(self, graphExec: Any, stream: Any) -> Any:  # noqa: N802, N803
        self.launches += 1
        return super().cudaGraphLaunch(graphExec, stream)


@pytest.fixture(params=BOARDS)
def place(request: pytest.FixtureRequest, tiny_tensorrt: dict[str, Bundle], tmp_path: Path) -> tuple[Bundle, OnFake]:
    """A bundle and its engine on each board."""
    strategy, board = BOARDS[request.param]
    bundle = tiny_tensorrt[strategy]
    return bundle, OnFake(bundle, tmp_path / "engine", board)


@pytest.fixture(params=STRATEGIES)
def opened(request: pytest.FixtureRequest, tiny_tensorrt: dict[str, Bundle], tmp_path: Path) -> Iterator[OnFake]:
    """The engine of each strategy; at the end nothing may have been refused."""
    opened = OnFake(tiny_tensorrt[request.param], tmp_path / "engine", cuda=Counting)
    yield opened
    assert opened.device.faults.notes == []


def answer(
    engine: Engine,
    bundle: Bundle,
    prompt: str,
    source: DraftSource | None = None,
    kept: KeptSequences | None = None,
    **sampling: Any,
) -> Answer:
    tokenizer = Tokenizer.load(bundle.path, bundle.manifest.text)
    params = SamplingParams(**sampling)
    shape = DraftShape(30, 6, 4)
    request = Request(tokenizer.encode(prompt), params, max_tokens=40, context=CONTEXT, shape=shape, ignore_eos=True)
    return decode(engine, tokenizer, request, source or NoDrafts(), clock=time.monotonic, kept=kept)


def drafts(prompt: list[int], told: Answer, spec: EngineSpec, seed: int) -> DraftSource:
    """Trees with the rest of this answer as one branch among others, at times."""
    text = [*prompt, *told.token_ids, *([0] * 50)]
    script = half_knowing(lambda so_far: text[len(so_far)], seed, spec.vocab_size).script
    return ScriptedDrafts(script, spec.feature_width)


def forward(engine: Engine, seq: Sequence, ids: list[int], rows: list[int] | None = None) -> Step:
    return engine.forward(seq, np.asarray(ids), seq.length + np.arange(len(ids)), causal_mask(len(ids)), rows)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 7}, {"logit_bias": ((4, 5.0),)}])
def test_answers_are_those_of_the_same_graph_on_onnx_runtime(
    place: tuple[Bundle, OnFake], sampling: dict[str, Any]
) -> None:
    bundle, opened = place
    reference = open_engine(bundle, threads=1)
    plain = answer(reference, bundle, PROMPT, **sampling)
    assert answer(opened.engine, bundle, PROMPT, **sampling).token_ids == plain.token_ids
    ids = Tokenizer.load(bundle.path, bundle.manifest.text).encode(PROMPT)
    expected, found = (
        answer(engine, bundle, PROMPT, drafts(ids, plain, reference.spec, seed=3), **sampling)
        for engine in (reference, opened.engine)
    )
    assert (found.token_ids, found.text) == (expected.token_ids, expected.text)
    assert found.stats.accepted == expected.stats.accepted > 8
    assert opened.device.faults.notes == []


def test_a_chat_goes_on_in_the_same_caches(place: tuple[Bundle, OnFake]) -> None:
    bundle, opened = place
    expected = [answer(open_engine(bundle, threads=1), bundle, text).token_ids for text in ("one two", "one two three")]
    kept = KeptSequences(opened.engine, CONTEXT)
    found = [answer(opened.engine, bundle, text, kept=kept) for text in ("one two", "one two three")]
    assert [each.token_ids for each in found] == expected
    assert found[1].reused_tokens > 0
    assert opened.device.faults.notes == []


def test_everything_is_given_back(place: tuple[Bundle, OnFake]) -> None:
    bundle, opened = place
    for _ in range(2):
        answer(opened.engine, bundle, "the cat and the hat")
    del opened.engine
    gc.collect()
    assert opened.device.leaks() == []
    assert opened.device.faults.notes == []


def test_a_long_prompt_goes_through_in_chunks(place: tuple[Bundle, OnFake]) -> None:
    bundle, opened = place
    ids = [int(i) for i in np.random.default_rng(1).integers(0, opened.engine.spec.vocab_size, 150)]
    last = []
    for engine in (opened.engine, open_engine(bundle, threads=1)):
        seq = engine.open(CONTEXT)
        for chunk in (ids[:100], ids[100:]):
            step = forward(engine, seq, chunk, [len(chunk) - 1])
            engine.commit(seq, range(len(chunk)))
        last.append((step.logits, step.features))
    for found, expected in zip(*last, strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("rows", [[0, 3, 4], [0, 1, 2], [0, 2, 3, 4], [0]])
def test_a_committed_path_is_what_the_next_pass_sees(opened: OnFake, rows: list[int]) -> None:
    engine, path = opened.engine, [1, 4, 8, 12, 10]
    seq, fresh = engine.open(64), engine.open(64)
    forward(engine, seq, IDS)
    engine.commit(seq, range(len(IDS)))
    # One mask for both: rows that see all before them are the same wherever they stand.
    engine.forward(seq, np.asarray(path), np.full(5, 12), np.eye(5, dtype=bool))
    engine.commit(seq, rows)
    forward(engine, fresh, IDS)
    engine.commit(fresh, range(len(IDS)))
    kept = [path[row] for row in rows]
    engine.forward(fresh, np.asarray(kept), np.full(len(kept), 12), np.eye(len(kept), dtype=bool))
    engine.commit(fresh, range(len(kept)))
    found, expected = (forward(engine, each, [3]).logits for each in (seq, fresh))
    assert np.abs(found - expected).max() < 0.02


class Weighing(FakeCudart):
    """Notes how many bytes each copy brings from the GPU."""

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self.brought: list[int] = []

    def cudaMemcpyAsync(self, dst: int, src: int, count: int, kind: Any, stream: Any) -> Any:  # noqa: N802
        if kind is self.cudaMemcpyKind.cudaMemcpyDeviceToHost:
            self.brought.append(count)
        return super().cudaMemcpyAsync(dst, src, count, kind, stream)


@pytest.mark.parametrize("shares_memory", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_logits_cross_only_where_a_choice_needs_them(
    tiny_tensorrt: dict[str, Bundle], tmp_path: Path, strategy: str, shares_memory: bool
) -> None:
    bundle = tiny_tensorrt[strategy]
    opened = OnFake(bundle, tmp_path / "engine", Board(shares_memory=shares_memory), Weighing)
    row = opened.engine.spec.vocab_size * np.dtype(np.float32).itemsize
    answer(opened.engine, bundle, PROMPT)
    compared = 2 if strategy == "inplace" else 0  # of the pass that is recorded, and of its recording
    assert opened.cuda.brought.count(row) == compared  # type: ignore[attr-defined]
    answer(opened.engine, bundle, PROMPT, temperature=0.5)
    assert opened.cuda.brought.count(row) == compared + 40  # type: ignore[attr-defined]


def test_logits_that_somebody_still_holds_outlive_the_next_pass(opened: OnFake) -> None:
    engine = opened.engine
    first = forward(engine, engine.open(64), IDS)
    second = forward(engine, engine.open(64), IDS[::-1])
    again = forward(engine, engine.open(64), IDS)
    assert not np.array_equal(first.logits, second.logits)
    assert np.array_equal(first.logits, again.logits)


def test_the_two_highest_logits_come_by_themselves(opened: OnFake) -> None:
    step = forward(opened.engine, opened.engine.open(64), IDS)
    assert step.top is not None
    assert step.rows == len(IDS)
    assert np.array_equal(step.top.logits, np.sort(step.logits, axis=1)[:, :-3:-1])
    assert np.array_equal(step.top.ids[:, 0], step.logits.argmax(axis=1))
    assert np.array_equal(np.take_along_axis(step.logits, step.top.ids, axis=1), step.top.logits)


def test_new_kv_can_be_read_back(place: tuple[Bundle, OnFake]) -> None:
    bundle, opened = place
    kept = []
    for engine in (opened.engine, open_engine(bundle, threads=1)):
        seq: Any = engine.open(64)
        forward(engine, seq, IDS[:5])
        engine.commit(seq, range(5))
        forward(engine, seq, IDS[5:])
        kept.append([*seq.new_keys, *seq.new_values])
    assert len(kept[0]) == 4
    for found, expected in zip(*kept, strict=True):
        assert np.array_equal(found, expected)


def test_repeated_shapes_of_inplace_become_one_launch_with_the_same_numbers(opened: OnFake) -> None:
    engine = opened.engine
    seq = engine.open(64)
    forward(engine, seq, IDS)
    engine.commit(seq, range(len(IDS)))
    steps = [forward(engine, seq, [3, 8]) for _ in range(5)]
    assert all(np.array_equal(step.logits, steps[0].logits) for step in steps)
    assert all(np.array_equal(step.features, steps[0].features) for step in steps)
    # The third pass is recorded and replayed once to compare; the fourth and fifth are launches alone.
    launched = 3 if engine.spec.max_context == CONTEXT else 0
    assert opened.cuda.launches == launched  # type: ignore[attr-defined]


def test_recordings_serve_the_next_answer_too(opened: OnFake) -> None:
    engine = opened.engine
    results = []
    for _ in range(2):
        seq = engine.open(64)
        forward(engine, seq, IDS)
        engine.commit(seq, range(len(IDS)))
        results.append([forward(engine, seq, [3]).logits for _ in range(4)])
        del seq
    assert all(np.array_equal(step, results[0][0]) for answer in results for step in answer)
    launched = 2 + 4 if engine.spec.max_context == CONTEXT else 0
    assert opened.cuda.launches == launched  # type: ignore[attr-defined]


def test_no_more_than_eight_shapes_are_recorded(tiny_tensorrt: dict[str, Bundle], tmp_path: Path) -> None:
    opened = OnFake(tiny_tensorrt["inplace"], tmp_path / "engine", cuda=Counting)
    seq = opened.engine.open(64)
    for length in range(1, 11):
        for _ in range(3):
            forward(opened.engine, seq, IDS[:length])
    assert opened.cuda.launches == 8  # type: ignore[attr-defined]


class Unrecordable(FakeCudart):
    """Ends every recording with an error, as a driver does when something cannot be recorded."""

    def cudaStreamEndCapture(self, stream: Any) -> Any:  # noqa: N802
        super().cudaStreamEndCapture(stream)
        return cudaError_t.cudaErrorStreamCaptureInvalidated, None


def test_what_cannot_be_recorded_is_run_plainly(
    tiny_tensorrt: dict[str, Bundle], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened = OnFake(tiny_tensorrt["inplace"], tmp_path / "engine", cuda=Unrecordable)
    seq = opened.engine.open(64)
    steps = [forward(opened.engine, seq, IDS).logits for _ in range(5)]
    assert all(np.array_equal(step, steps[0]) for step in steps)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("passes of 12 tokens are not recorded: CUDA cannot end a graph: operation failed")


def test_a_pass_beyond_the_caches_is_refused_before_it_writes(tiny_tensorrt: dict[str, Bundle], tmp_path: Path) -> None:
    opened = OnFake(tiny_tensorrt["inplace"], tmp_path / "engine")
    engine = opened.engine
    seq = engine.open(CONTEXT)
    for size in (100, CONTEXT - 100):
        forward(engine, seq, [3] * size, [size - 1])
        engine.commit(seq, range(size))
    assert forward(engine, seq, [3] * 64).logits.shape[0] == 64
    with pytest.raises(EngineError, match=rf"65 tokens on {CONTEXT} committed ones does not fit {CONTEXT + 64} rows"):
        forward(engine, seq, [3] * 65, [64])


@pytest.mark.parametrize(("tokens", "rows"), [(65, None), (70, [1, 2]), (3, [])])
def test_more_logits_than_a_profile_gives_are_refused(opened: OnFake, tokens: int, rows: list[int] | None) -> None:
    seq = opened.engine.open(64)
    with pytest.raises(EngineError, match="this engine gives logits of 1 row, or of up to 64"):
        forward(opened.engine, seq, [3] * tokens, rows)


def test_rows_out_of_order_or_out_of_the_pass_are_refused(opened: OnFake) -> None:
    engine = opened.engine
    seq = engine.open(64)
    forward(engine, seq, IDS)
    with pytest.raises(EngineError, match="the last pass had 12 rows"):
        engine.commit(seq, [0, 12])
    if engine.spec.max_context == CONTEXT:
        with pytest.raises(EngineError, match="rows are kept in ascending order"):
            engine.commit(seq, [0, 2, 1])


def test_too_little_memory_for_a_sequence_says_how_much(tiny_tensorrt: dict[str, Bundle], tmp_path: Path) -> None:
    opened = OnFake(tiny_tensorrt["append"], tmp_path / "engine")
    opened.device.memory.size = opened.device.memory.used + 100_000
    with pytest.raises(EngineError, match=r"the GPU has no 0\.2 MB left for the KV cache of 500 tokens: .*--context"):
        opened.engine.open(500)
    assert opened.engine.open(16).length == 0


def test_a_sequence_of_another_engine_is_refused(opened: OnFake, tiny_tensorrt: dict[str, Bundle]) -> None:
    other = open_engine(tiny_tensorrt["append"], threads=1)
    with pytest.raises(EngineError, match="opened by another engine"):
        forward(opened.engine, other.open(16), [3])
