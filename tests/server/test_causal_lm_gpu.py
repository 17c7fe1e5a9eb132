"""A causal-lm drafter on a GPU, on fakes of ONNX Runtime for CUDA, of CUDA and of TensorRT: it opens the engine that a
target opens there, keeps its KV there, and drafts what it drafts on a processor.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime
import pytest

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.cache import CACHE_VARIABLE, engines_dir
from starsd_edge.cli.run_draft.setup import open_drafters
from starsd_edge.device.gpus import CudaDevice
from starsd_edge.protocol.rows import NewRows
from starsd_edge.runtime import onnx_cuda_engine as onnx_cuda
from starsd_edge.runtime.cuda import CUDA_MODULE
from starsd_edge.runtime.loading import open_engine
from starsd_edge.runtime.onnx_engine import CPU_PROVIDER
from starsd_edge.runtime.tensorrt import engine as tensorrt_engine
from starsd_edge.runtime.tensorrt import opening
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.decoder import Request, decode
from starsd_jetson.drafting import NoDrafts
from starsd_server.drafters.contract import Drafter, SessionRefusedError, draft_one, extend_one
from tests.support.fake_cudart import FakeCudart
from tests.support.fake_device import FakeDevice
from tests.support.fake_onnx_gpu import FakeGpuSession
from tests.support.fake_tensorrt import fake_tensorrt

if TYPE_CHECKING:
    from tests.support.fake_engine import write_fake_engine
else:
    write_fake_engine = pytest.importorskip("tests.support.fake_engine", reason="needs torch").write_fake_engine

pytestmark = pytest.mark.export

PROMPT = [5, 9, 17, 3, 11, 20, 7, 2, 13, 19, 6, 15]
DEPTH, ROUNDS, STEP = 4, 4, 3
TENSORRT = "10.16.2.10"


FIRST_ROWS = 8
"""Rows for which a sequence takes memory at first: fewer than the prompt, so that every sequence here grows."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    """A GPU of which nothing wrong may be asked, on a machine with all that is needed to use it."""
    device = FakeDevice()
    cuda = FakeCudart(device)
    modules: dict[str, Any] = {CUDA_MODULE: cuda, "tensorrt": fake_tensorrt(device, TENSORRT, "tensorrt")}
    machine = opening.Machine(lambda: [CudaDevice("GPU", device.name, 8 << 30)], modules.__getitem__)
    monkeypatch.setattr(opening, "Machine", lambda: machine)
    monkeypatch.setitem(sys.modules, CUDA_MODULE, cuda)
    monkeypatch.setattr(onnx_cuda, "cuda_devices", list)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [onnx_cuda.PROVIDER, CPU_PROVIDER])
    for engine in (onnx_cuda, tensorrt_engine):
        monkeypatch.setattr(engine, "FIRST_ROWS", FIRST_ROWS)
    yield device
    assert device.faults.notes == []


@pytest.fixture
def sessions(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> list[FakeGpuSession]:
    """The sessions that ONNX Runtime opens on the GPU."""
    opened: list[FakeGpuSession] = []

    def open_session(file: Path, provider: str) -> FakeGpuSession:
        opened.append(FakeGpuSession(file, device))
        return opened[-1]

    monkeypatch.setattr(onnx_cuda, "open_session", open_session)
    return opened


def drafter_on(bundle: Bundle, device: str) -> Drafter:
    """As `run-draft BUNDLE --device` opens it."""
    (drafter,) = open_drafters([bundle.path], max_sessions=4, threads=1, device=device)
    return drafter


def drafts(drafter: Drafter, truth: list[int]) -> dict[int, list[list[int]]]:
    """Chains for two sessions in turn. The first goes on with `truth`, as drafted; the second never does, so that its
    draft tokens have to be truncated each time.
    """
    chains: dict[int, list[list[int]]] = {1: [], 2: []}
    texts = {1: list(PROMPT), 2: list(reversed(PROMPT))}
    for session, text in texts.items():
        drafter.open(session, 0, text[0])
        extend_one(drafter, NewRows(session, 0, text[1:]))
    for start in range(0, ROUNDS * STEP, STEP):
        for session, text in texts.items():
            chain = draft_one(drafter, session, DraftShape(DEPTH, DEPTH)).tokens.tolist()
            chains[session].append(chain)
            new = truth[start : start + STEP] if session == 1 else [(chain[0] + 1) % 20, 4]
            extend_one(drafter, NewRows(session, len(text) - 1, new))
            text += new
    return chains


def greedy(bundle: Bundle, device: str) -> list[int]:
    """What a target with this bundle says after `PROMPT` by itself."""
    tokenizer = Tokenizer.load(bundle.path, bundle.manifest.text)
    request = Request(PROMPT, SamplingParams(), max_tokens=24, context=64, shape=DraftShape(1, 1), ignore_eos=True)
    answer = decode(open_engine(bundle, device, threads=1), tokenizer, request, NoDrafts(), clock=time.monotonic)
    return list(answer.token_ids)


@pytest.mark.parametrize("kind", ["fp32", "int8"])
def test_on_onnx_runtime_its_kv_stays_on_the_gpu(
    tiny_bundles: dict[str, Bundle], sessions: list[FakeGpuSession], kind: str
) -> None:
    bundle = tiny_bundles[kind]
    truth = greedy(bundle, "cpu")
    found = drafts(drafter_on(bundle, "cuda"), truth)
    (session,) = sessions
    kv_bytes = [sum(size for name, size in each.items() if name.startswith("past_")) for each in session.uploads]
    assert kv_bytes == [0] * len(kv_bytes)
    assert len(kv_bytes) > 8
    assert found == drafts(drafter_on(bundle, "cpu"), truth)


@pytest.mark.parametrize("strategy", ["append", "inplace"])
def test_on_tensorrt_it_drafts_what_its_engine_says_as_a_target(
    tiny_tensorrt: dict[str, Bundle],
    device: FakeDevice,
    strategy: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    bundle = tiny_tensorrt[strategy]
    write_fake_engine(bundle, engines_dir() / "engine")
    truth = greedy(bundle, "cuda")
    found = drafts(drafter_on(bundle, "cuda"), truth)
    assert found[1] == [truth[start : start + DEPTH] for start in range(0, ROUNDS * STEP, STEP)]
    assert found == drafts(drafter_on(bundle, "cpu"), truth)


def test_many_sessions_share_the_memory_of_a_gpu_and_what_does_not_fit_is_refused(
    tiny_bundles: dict[str, Bundle], device: FakeDevice, sessions: list[FakeGpuSession]
) -> None:
    """A session takes memory as it grows, so that far more fit than could be held in full length."""
    memory, drafter = device.memory, drafter_on(tiny_bundles["fp32"], "cuda")
    before = memory.used
    drafter.open(1, 0, PROMPT[0])
    first = memory.used - before
    memory.size = memory.used + 2 * first
    for session in (2, 3):
        drafter.open(session, 0, PROMPT[0])
    says = "the hub's causal-lm drafter has no GPU memory left for another session's KV: try again later"
    with pytest.raises(SessionRefusedError, match=says):
        drafter.open(4, 0, PROMPT[0])
    failed = drafter.extend([NewRows(3, 0, PROMPT * 2), NewRows(1, 0, PROMPT[1:4])])
    assert [(session, says in str(error)) for session, error in failed.items()] == [(3, True)]
    del failed  # an error holds what it went through
    drafter.close(3)
    gc.collect()
    drafter.open(4, 0, PROMPT[0])
    found = [draft_one(drafter, session, DraftShape(2, 2)).tokens.tolist() for session in (1, 2, 4)]
    alone = drafter_on(tiny_bundles["fp32"], "cpu")
    alone.open(1, 0, PROMPT[0])
    begun = draft_one(alone, 1, DraftShape(2, 2)).tokens.tolist()
    extend_one(alone, NewRows(1, 0, PROMPT[1:4]))
    assert found == [draft_one(alone, 1, DraftShape(2, 2)).tokens.tolist(), begun, begun]
