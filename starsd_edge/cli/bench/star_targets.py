"""Targets of the timing backend: what `run-target` runs, with a replay engine in the model's place.

Each target has its own link to the hub (over its own modelled path) and for every session a decode loop on a thread
that sleeps most of the time.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from starsd_edge.bench.delayed_paths import DelayedPaths
from starsd_edge.bench.device_times import ModelPassTimes, Pacer
from starsd_edge.bench.replay_engine import ReplayDevice, ReplayEngine
from starsd_edge.bench.star_runs import DraftMark, Point, TargetLog
from starsd_edge.bench.trace import Traces, default_trace, read_traces
from starsd_edge.bundles.bundle import Bundle, load_bundle
from starsd_edge.bundles.catalogue import find_bundle
from starsd_edge.errors import StarsdError, UsageError
from starsd_edge.protocol.target_side import DraftArrived
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.rounds import Round
from starsd_edge.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from starsd_edge.protocol.messages import Report
    from starsd_jetson.drafting import DraftSource
    from starsd_jetson.hub_drafting import Asked, DraftChannel
    from starsd_jetson.hub_link import HubLink


_CONNECT_S = 30.0
"""Seconds to connect to the hub of this machine, which listens already, over the slowest modelled path."""
_LOOK_S = 0.02
_ORDERLY_S = 1.0
"""Seconds in which targets finish their present round and close their sessions, before their links are closed."""
_END_S = 10.0


@dataclass(frozen=True)
class ReplaySetup:
    """What all targets have in common.

    Attributes:
        bundle: the target's, for its tokenizer and fingerprints; the model is not loaded.
        verify: times of a verify pass.
        seed: of the jitter.
    """

    bundle: Bundle
    tokenizer: Tokenizer
    traces: Traces
    verify: ModelPassTimes
    seed: int


def replay_setup(bundle_name: str, trace: Path | None, verify: ModelPassTimes, seed: int) -> ReplaySetup:
    """Open what targets of the timing backend need.

    Args:
        trace: file with texts; None takes that of the bundle's name in the cache.

    Raises:
        StarsdError: something cannot be opened, or the texts are another model's.
    """
    bundle = load_bundle(find_bundle(bundle_name), check_files=False)
    traces = read_traces(trace or default_trace(bundle_name))
    if traces.source.source_fp != bundle.manifest.fingerprints.source_fp:
        raise UsageError(
            f"the trace is of {traces.source.bundle} and {bundle.path.name} was made from another checkpoint: "
            f"record one with `starsd-edge bench trace {bundle.path.name}`"
        )
    return ReplaySetup(bundle, Tokenizer.load(bundle.path, bundle.manifest.text), traces, verify, seed)


class ReplayCrowd:
    """The targets of one point; they decode one text after the other from `__enter__` to `__exit__`.

    Args:
        hub_url: None for targets without a hub.

    Raises:
        HubError: the hub refuses them, or does not answer.
    """

    def __init__(self, setup: ReplaySetup, point: Point, hub_url: str | None) -> None:
        self._setup = setup
        self._point = point
        self._hub_url = hub_url
        self._stack = ExitStack()
        self._stopping = threading.Event()
        self._failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self.logs: list[TargetLog] = [TargetLog() for _ in range(point.targets * point.sessions)]
        """Of each session, those of one target side by side."""

    def __enter__(self) -> ReplayCrowd:
        try:
            links = [(link, TargetReports(link.report, time.monotonic)) for link in self._connect()]
            for number, log in enumerate(self.logs):
                link, reports = links[number // self._point.sessions] if links else (None, None)
                thread = threading.Thread(
                    target=self._run, args=(number, log, link, reports), name=f"decode-{number}", daemon=True
                )
                self._threads.append(thread)
            for thread in self._threads:
                thread.start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        deadline = time.monotonic() + _ORDERLY_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._stack.close()  # without a link nobody waits for a draft any more
        for thread in self._threads:
            thread.join(_END_S)
        if error is None:
            self.check()

    def check(self) -> None:
        """Raises what a decode loop failed with."""
        if self._failures:
            raise self._failures[0]

    @property
    def done(self) -> list[int]:
        """Of each session the rounds so far; where drafts are always waited for, those with one."""
        with_drafts = self._hub_url is not None and self._point.wait_s is not None
        return [len(log.drafts if with_drafts else log.rounds) for log in self.logs]

    def wait_for(self, rounds: int, since: Sequence[int], timeout_s: float, share: float = 1.0) -> None:
        """Return when every session has done so many more rounds than it had.

        Args:
            since: what `done` was.
            share: of the sessions that is enough.

        Raises:
            StarsdError: they do not, in this time.
        """
        deadline = time.monotonic() + timeout_s
        while _share_of(self.done, since, rounds) < share:
            self.check()
            if time.monotonic() > deadline:
                raise StarsdError(
                    f"{self._point.targets} targets did not do {rounds} rounds each within {timeout_s:g} s: "
                    "the machine is too busy, or give fewer targets"
                )
            self._stopping.wait(_LOOK_S)

    def _connect(self) -> list[HubLink]:
        """Links to the hub, all welcomed."""
        if self._hub_url is None:
            return []
        paths = self._stack.enter_context(DelayedPaths())
        port = urlsplit(self._hub_url).port
        links = []
        for number, path in enumerate(self._point.links):
            url = self._hub_url if path.is_instant else f"ws://127.0.0.1:{paths.open(port or 0, path)}"
            links.append(self._stack.enter_context(self._link(url, f"replay-{number + 1}")))
        for link in links:
            link.wait_for_hub(_CONNECT_S)
        return links

    def _link(self, url: str, name: str) -> HubLink:
        from starsd_jetson.api import hub_address, link_to
        from starsd_jetson.target import Target

        engine = ReplayEngine(self._setup.traces.texts, self._setup.traces.source)
        target = Target(self._setup.bundle, engine, self._setup.tokenizer)
        hello = target.hello(name, self._point.shape, target.context(None))
        luck = random.Random(f"{self._setup.seed} {name} link")  # noqa: S311
        return link_to(hub_address(url), hello, luck=luck.random)

    def _run(self, number: int, log: TargetLog, link: HubLink | None, reports: TargetReports | None) -> None:
        try:
            self._decode(number, log, link, reports)
        except BaseException as error:  # told by whoever measures
            self._failures.append(error)

    def _decode(self, number: int, log: TargetLog, link: HubLink | None, reports: TargetReports | None) -> None:
        from starsd_jetson.answers import CANCELLED, Request
        from starsd_jetson.decoder import decode

        setup = self._setup
        luck = random.Random(f"{setup.seed} {number} verify")  # noqa: S311
        device = ReplayDevice(setup.verify, Pacer(time.monotonic, time.sleep), luck.random)
        source = self._source(log, link)
        texts = setup.traces.texts

        def on_round(done: Round) -> None:
            log.rounds.append((time.monotonic(), done))
            if reports is not None:
                reports.round(done)

        while not self._stopping.is_set():
            trace = texts[(number + log.answers) % len(texts)]
            engine = ReplayEngine([trace], setup.traces.source, device)
            request = Request(
                trace.prompt,
                SamplingParams(),
                len(trace.answer),
                engine.spec.max_context,
                self._point.shape,
                ignore_eos=True,
            )
            answer = decode(
                engine, setup.tokenizer, request, source,
                clock=time.monotonic, on_round=on_round, cancelled=self._stopping.is_set,
            )  # fmt: skip
            log.answers += 1
            expected = trace.answer
            if answer.finish_reason == CANCELLED:
                expected = expected[: len(answer.token_ids)]
            log.inexact += list(answer.token_ids) != expected

    def _source(self, log: TargetLog, link: HubLink | None) -> DraftSource:
        from starsd_jetson.api import hub_drafts
        from starsd_jetson.drafting import NoDrafts

        if link is None:
            return NoDrafts()
        hub = link

        def open_channel(prompt: Sequence[int], sampling_kind: str) -> DraftChannel:
            channel = hub.open_channel(prompt, sampling_kind)
            return WatchedChannel(channel, log, time.monotonic)

        return hub_drafts(open_channel, self._point.wait_s, fallback=NoDrafts())


def _share_of(now: Sequence[int], before: Sequence[int], more: int) -> float:
    return sum(new >= old + more for new, old in zip(now, before, strict=True)) / len(now)


class WatchedChannel:
    """A `DraftChannel` that notes when drafts were asked for and what they took. Where the hub thinks that none pays it
    says so without its drafter: that is no draft, and has no S.
    """

    def __init__(self, channel: DraftChannel, log: TargetLog, clock: Callable[[], float]) -> None:
        self._channel = channel
        self._log = log
        self._clock = clock
        self._asked_at: dict[int, float] = {}

    @property
    def pending(self) -> int | None:
        """See `DraftChannel`."""
        return self._channel.pending

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        """See `DraftChannel`."""
        self._channel.append(ids, features)

    def extend(self) -> None:
        """See `DraftChannel`."""
        self._channel.extend()

    def request(self, shape: DraftShape) -> Asked | None:
        """See `DraftChannel`."""
        now = self._clock()
        asked = self._channel.request(shape)
        if asked is not None:
            self._asked_at[asked.epoch] = now
        return asked

    def wait(self, timeout_s: float) -> DraftArrived | None:
        """See `DraftChannel`."""
        arrived = self._channel.wait(timeout_s)
        if arrived is not None:
            asked_at = self._asked_at.pop(arrived.epoch, None)
            if asked_at is not None and arrived.service_us:
                self._log.drafts.append(DraftMark(asked_at, arrived.queue_us / 1e6, arrived.service_us / 1e6))
        return arrived

    def give_up(self) -> None:
        """See `DraftChannel`."""
        self._channel.give_up()

    def close(self) -> None:
        """See `DraftChannel`."""
        self._channel.close()


class TargetReports:
    """Tells the hub of a target's rounds, as `run-target` does; for the decode loops of all its sessions, each on its
    thread.

    Args:
        send: takes a report; must not block.
        clock: monotonic seconds.
    """

    def __init__(self, send: Callable[[Report], None], clock: Callable[[], float]) -> None:
        from starsd_jetson.reporting import Reporter

        self._lock = threading.Lock()
        self._reporter = Reporter(send, clock)

    def round(self, done: Round) -> None:
        """Count a round, and report if it is time."""
        with self._lock:
            self._reporter.round(done)
