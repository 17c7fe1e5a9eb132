"""Several requests at once, through the thread that uses the engine: from threads, from event loops, with a hub."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from starsd_edge import open_target, start_hub
from starsd_edge.bundles.bundle import Bundle
from starsd_edge.errors import StarsdError, UsageError
from starsd_edge.runtime.engine import Step
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.telemetry.rounds import HUB
from starsd_jetson import target as target_module
from starsd_jetson.answers import Answer, BusyError, Request
from starsd_jetson.api import DraftSettings, OpenTarget, RequestLimits
from starsd_jetson.requests import AnswerStream, Requests
from tests.support.decoding import PROMPT, Plain, letters, plain_answer
from tests.support.letter_bundle import write_bundle
from tests.support.prefix_engine import PrefixEngine

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}a"
PROMPTS = ((0, 1, 0, 2, 0, 1, 0), (5, 4, 3, 5, 4), (9,), PROMPT, (*PROMPT, 3))
PATIENCE_S = 30.0


class GatedEngine(PrefixEngine):
    """Its passes wait while the gate is shut; notes who calls it."""

    def __init__(self) -> None:
        super().__init__(1, max_context=128, max_chunk=8)
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Semaphore(0)
        self.threads: set[int] = set()

    def forward(self, *arguments, **named) -> Step:  # type: ignore[no-untyped-def]
        self.threads.add(threading.get_ident())
        self.reached.release()
        assert self.gate.wait(PATIENCE_S)
        return super().forward(*arguments, **named)

    def shut(self) -> None:
        """From the next pass on, which is waited for."""
        while self.reached.acquire(blocking=False):
            pass
        self.gate.clear()

    def await_pass(self) -> None:
        """A pass has begun and waits."""
        assert self.reached.acquire(timeout=PATIENCE_S)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> GatedEngine:
    engine = GatedEngine()
    monkeypatch.setattr(target_module, "open_engine", lambda *arguments, **named: engine)
    return engine


@pytest.fixture
def target(engine: GatedEngine, tmp_path: Path) -> Iterator[OpenTarget]:
    with open_target(write_bundle(tmp_path / "bundle", TEMPLATE)) as opened:
        yield opened


@pytest.fixture
def requests(target: OpenTarget) -> Iterator[Requests]:
    with target.requests(RequestLimits(most_open=2, most_waiting=3)) as requests:
        yield requests


def wanted(target: OpenTarget, prompt: Sequence[int] = PROMPT, tokens: int = 30, **sampling: float) -> Request:
    return target.request(prompt, SamplingParams(**sampling), tokens)  # type: ignore[arg-type]


def said_alone(request: Request) -> Plain:
    return plain_answer(PrefixEngine(1, max_context=128), letters(), request)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_threads_read_what_each_request_says_alone(
    target: OpenTarget, engine: GatedEngine, requests: Requests, temperature: float
) -> None:
    def read(prompt: Sequence[int]) -> None:
        request = wanted(target, prompt, temperature=temperature, seed=3)
        stream = requests.submit(request)
        pieces = list(stream)
        answer = stream.result()
        assert Plain.of(answer) == said_alone(request)
        assert "".join(piece.text for piece in pieces) == answer.text
        assert sum((piece.tokens for piece in pieces), ()) == answer.token_ids

    with ThreadPoolExecutor(5) as pool:
        for done in [pool.submit(read, prompt) for prompt in PROMPTS]:
            done.result(PATIENCE_S)
    assert len(engine.threads) == 1
    assert requests.open == requests.waiting == 0


async def test_event_loops_read_them_too(target: OpenTarget, requests: Requests) -> None:
    async def read(prompt: Sequence[int]) -> None:
        request = wanted(target, prompt)
        async with requests.submit(request) as stream:
            text = "".join([piece.text async for piece in stream])
            answer = await stream.aresult()
        assert Plain.of(answer) == said_alone(request)
        assert text == answer.text

    await asyncio.wait_for(asyncio.gather(*map(read, PROMPTS)), PATIENCE_S)


async def test_a_reader_that_is_interrupted_loses_no_piece(
    target: OpenTarget, engine: GatedEngine, requests: Requests
) -> None:
    engine.shut()
    stream = requests.submit(wanted(target))
    for _ in range(3):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(stream), 0.01)
    engine.gate.set()
    text = "".join([piece.text async for piece in stream])
    assert text == said_alone(wanted(target)).text


def test_answers_and_chats_of_the_target_go_through_the_same_thread(
    target: OpenTarget, engine: GatedEngine, requests: Requests
) -> None:
    request = wanted(target)
    beside = requests.submit(wanted(target, PROMPTS[0]))
    assert Plain.of(target.answer(PROMPT, max_tokens=30)) == said_alone(request)
    chat = target.chat()
    first, second = chat.answer("b", max_tokens=8), chat.answer("cd", max_tokens=8)
    assert second.reused_tokens >= len(first.token_ids)
    assert Plain.of(beside.result()) == said_alone(wanted(target, PROMPTS[0]))
    assert len(engine.threads) == 1
    with pytest.raises(UsageError, match="answers several requests already"):
        target.requests()
    requests.close()
    assert Plain.of(target.answer(PROMPT, max_tokens=30)) == said_alone(request)
    assert len(engine.threads) == 2, "and on the caller's after that"


def test_an_answer_can_be_ended_at_any_time(target: OpenTarget, engine: GatedEngine, requests: Requests) -> None:
    engine.shut()
    streams = [requests.submit(wanted(target, tokens=100)) for _ in range(2)]
    engine.await_pass()
    waiting = [requests.submit(wanted(target)) for _ in range(2)]
    asked = threading.Event()
    asked.set()
    waiting.append(requests.submit(wanted(target), asked.is_set))
    waiting[0].cancel()
    streams[0].cancel()
    engine.gate.set()
    assert streams[0].result().token_ids == (), "in the prefill, which takes two passes"
    assert [waiting[number].result().finish_reason for number in (0, 2)] == ["cancelled", "cancelled"]
    with streams[1] as stream:
        next(stream)
    cut = stream.result()
    assert cut.finish_reason == "cancelled"
    assert cut.token_ids == said_alone(wanted(target, tokens=100)).token_ids[: len(cut.token_ids)]
    assert Plain.of(waiting[1].result()) == said_alone(wanted(target))


def test_refusals_are_told_to_who_asks(target: OpenTarget, engine: GatedEngine, requests: Requests) -> None:
    with pytest.raises(UsageError, match="the prompt is empty"):
        requests.submit(wanted(target, ()))
    engine.shut()
    held = [requests.submit(wanted(target)) for _ in range(5)]
    with pytest.raises(BusyError, match="ask again in 1 s"):
        requests.submit(wanted(target))
    engine.gate.set()
    for stream in held:
        assert Plain.of(stream.result()) == said_alone(wanted(target))
    assert Plain.of(requests.submit(wanted(target)).result()) == said_alone(wanted(target))


def test_a_failure_reaches_its_reader_and_nobody_else(
    target: OpenTarget, engine: GatedEngine, requests: Requests
) -> None:
    request = target.request(PROMPT, SamplingParams(logit_bias=((1, 5.0),)), 10)
    object.__setattr__(request.sampling, "logit_bias", ((10**9, 5.0),))
    broken, whole = requests.submit(request), requests.submit(wanted(target))
    with pytest.raises(UsageError):
        broken.result()
    with pytest.raises(UsageError):
        next(broken)
    assert Plain.of(whole.result()) == said_alone(wanted(target))


def test_what_is_not_over_when_it_is_closed_fails(target: OpenTarget, engine: GatedEngine, requests: Requests) -> None:
    engine.shut()
    streams = [requests.submit(wanted(target)) for _ in range(3)]
    engine.await_pass()
    closing = threading.Thread(target=requests.close)
    closing.start()
    while not requests.is_closed:
        pass
    engine.gate.set()
    closing.join(PATIENCE_S)
    for stream in streams:
        with pytest.raises(StarsdError, match="it was closed"):
            stream.result()
    with pytest.raises(StarsdError, match="it was closed"):
        requests.submit(wanted(target))
    requests.close()


def test_a_budget_that_holds_no_context_is_refused(target: OpenTarget) -> None:
    with pytest.raises(UsageError, match="raise the budget"):
        target.requests(RequestLimits(kv_tokens=100))


TEXTS = ("The hub drafts and the target verifies.", "The hub drafts while the others run.", "One two one two one", "A")


def tokens_of(streams: Sequence[AnswerStream]) -> list[tuple[int, ...]]:
    return [stream.result().token_ids for stream in streams]


def test_requests_on_a_real_engine_say_what_each_says_alone_with_a_hub_and_when_it_dies(
    tiny_bundles: dict[str, Bundle],
) -> None:
    """A tiny model, a hub that drafts trees with another one of it, temperatures 0 and 0.8."""
    tiny, hub = tiny_bundles["fp32"], start_hub(tiny_bundles["int8"].path)
    drafts = DraftSettings(wait_s=20.0, nodes=8, depth=4, branching=3)

    def requests_of(target: OpenTarget) -> list[Request]:
        samplings = [SamplingParams(temperature, seed=5) for temperature in (0.0, 0.8)]
        encoded = [target.target.encode(text, raw=True) for text in TEXTS]
        return [target.request(ids, each, 24, ignore_eos=True) for ids in encoded for each in samplings]

    with open_target(tiny.path, drafts=DraftSettings(speculation=False), threads=1) as alone:
        plain = [
            alone.answer(each.prompt, each.sampling, max_tokens=24, ignore_eos=True) for each in requests_of(alone)
        ]
    expected = [answer.token_ids for answer in plain]
    with (
        hub,
        open_target(tiny.path, hub=hub.url, require_hub=True, drafts=drafts, threads=1) as target,
        target.requests(RequestLimits(most_open=4)) as requests,
    ):
        answers = [stream.result() for stream in [requests.submit(each) for each in requests_of(target)]]
        assert [answer.token_ids for answer in answers] == expected
        assert [answer.text for answer in answers] == [answer.text for answer in plain]
        assert sum(_drafted(answer) for answer in answers) > len(answers)
        streams = [requests.submit(each) for each in requests_of(target)]
        next(streams[0])
        next(streams[0])
        hub.close()
        assert tokens_of(streams) == expected
        assert tokens_of([requests.submit(each) for each in requests_of(target)]) == expected


def _drafted(answer: Answer) -> int:
    return answer.stats.by_origin.get(HUB, 0)
