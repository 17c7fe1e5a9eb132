"""`starsd-edge bench requests`: several requests at once on one modelled device, beside the same requests by turns.

Both ways are measured in one run, by turns, on one opened target, so that each knows the hub and the device as well as
the other. All but the device and the path is real: the thread that uses the engine, the wait policy, link, wire, hub.
"""

from __future__ import annotations

import random
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rich.box import SIMPLE_HEAD
from rich.table import Table

from starsd_edge.bench.delayed_paths import DelayedPaths
from starsd_edge.bench.device_times import LinkTimes, ModelDraftTimes, ModelPassTimes, Pacer
from starsd_edge.bench.figures import TIMING_BACKEND, BenchReport, Figure, describe_machine
from starsd_edge.bench.replay_engine import ReplayDevice, ReplayEngine
from starsd_edge.bench.star_plan import SCALE
from starsd_edge.bench.star_runs import HubPlan, Point
from starsd_edge.bench.trace import Trace
from starsd_edge.bundles.catalogue import find_bundle
from starsd_edge.cli.bench.options import BenchRequestsOptions
from starsd_edge.cli.bench.star import StarHubs
from starsd_edge.cli.bench.star_targets import ReplayCrowd, ReplaySetup, replay_setup
from starsd_edge.cli.output import output_console
from starsd_edge.cli.run_draft.command import RunDraftOptions
from starsd_edge.errors import UsageError
from starsd_edge.hub_process import hub_process

if TYPE_CHECKING:
    from starsd_jetson.answers import Answer
    from starsd_jetson.api import OpenTarget
    from starsd_jetson.requests import Requests

NO_HUB, IDLE, BUSY, GONE, ABSENT = "no_hub", "hub_idle", "hub_busy", "hub_gone", "hub_absent"
STATES = {
    NO_HUB: "no hub configured",
    IDLE: "hub idle",
    BUSY: "hub busy with others",
    GONE: "hub died",
    ABSENT: "no hub at the address",
}
_WARM_ROUNDS = 4
"""Rounds of each other target before a hub counts as busy."""
_BUSY_S = 60.0
"""Seconds within which the other targets have done them."""


@dataclass(frozen=True)
class RequestsOutcome:
    """What came of it.

    Attributes:
        inexact: answers that were not the recorded texts.
    """

    report: BenchReport
    inexact: int


@dataclass
class _Seen:
    """Samples so far.

    Attributes:
        first_s: by state of the hub, seconds from a request to its first token.
    """

    together: list[float] = field(default_factory=list)
    by_turns: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    first_s: dict[str, list[float]] = field(default_factory=dict)
    inexact: int = 0


class RequestsBench:
    """One run of the command.

    Args:
        progress: told of each step.
    """

    def __init__(self, options: BenchRequestsOptions, progress: Callable[[str], None]) -> None:
        self._options = options
        self._progress = progress
        self._link = LinkTimes(options.rtt_ms / 1e3)
        times = ModelDraftTimes(options.draft_ms / 1e3, options.draft_growth, options.largest.max_depth)
        self._plan = HubPlan(RunDraftOptions.policy.value, RunDraftOptions.max_batch, times=times)
        self._seen = _Seen()

    def run(self) -> RequestsOutcome:
        """Measure.

        Raises:
            StarsdError: something cannot be opened, or there are too few texts.
        """
        options = self._options
        machine = describe_machine(("onnxruntime", "numpy", "websockets"))
        verify = ModelPassTimes(options.verify_ms / 1e3, options.verify_growth, options.verify_jitter)
        setup = replay_setup(options.bundle, options.trace, verify, options.seed)
        if len(setup.traces.texts) < options.requests:
            raise UsageError(
                f"{options.requests} requests need as many texts, and the trace has {len(setup.traces.texts)}: "
                "lower --requests, or record more"
            )
        draft = None if options.draft is None else find_bundle(options.draft)
        with StarHubs(draft, ()) as hubs, ExitStack() as stack:
            paths = stack.enter_context(DelayedPaths())
            url = hubs.url(self._plan)
            self._speeds(setup, self._far(paths, url))
            self._first_tokens(setup, paths, url)
        settings = {
            "command": "bench requests",
            **{name: str(value) if name in ("trace", "json") else value for name, value in asdict(options).items()},
        }
        return RequestsOutcome(BenchReport(list(_figures(self._seen)), machine, settings), self._seen.inexact)

    def _far(self, paths: DelayedPaths, url: str) -> str:
        """The hub's address at the end of a path."""
        return f"ws://127.0.0.1:{paths.open(urlsplit(url).port or 0, self._link)}"

    def _speeds(self, setup: ReplaySetup, url: str) -> None:
        texts = setup.traces.texts[: self._options.requests]
        with self._target(setup, url) as target, target.requests() as requests:
            for repeat in range(self._options.repeats + 1):
                self._progress(f"{len(texts)} requests, {_time(repeat, self._options.repeats)}")
                by_turns = self._speed(target, requests, texts, together=False)
                together = self._speed(target, requests, texts, together=True)
                if repeat:  # the first time everything is new to the wait policy, and no prompt is known
                    self._seen.by_turns.append(by_turns)
                    self._seen.together.append(together)
        self._progress("plain decoding")
        with self._target(setup, None, speculation=False) as target, target.requests() as requests:
            self._seen.plain.append(self._speed(target, requests, texts[:1], together=False))

    def _speed(self, target: OpenTarget, requests: Requests, texts: Sequence[Trace], *, together: bool) -> float:
        """Tokens per second of all answers."""
        began = time.monotonic()
        if together:
            streams = [requests.submit(self._request(target, text)) for text in texts]
            answers = [stream.result() for stream in streams]
        else:
            answers = [requests.submit(self._request(target, text)).result() for text in texts]
        took_s = time.monotonic() - began
        self._check(texts, answers)
        return sum(len(answer.token_ids) for answer in answers) / took_s

    def _first_tokens(self, setup: ReplaySetup, paths: DelayedPaths, url: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as unused:
            nobody = f"ws://127.0.0.1:{unused.getsockname()[1]}"
        self._first_token(setup, NO_HUB, None)
        self._first_token(setup, IDLE, self._far(paths, url))
        links = tuple([self._link] * self._options.busy_targets)
        with ReplayCrowd(setup, Point(SCALE, "busy", self._plan, links, self._options.largest, None), url) as crowd:
            crowd.wait_for(_WARM_ROUNDS, [0] * len(crowd.logs), _BUSY_S)
            self._first_token(setup, BUSY, self._far(paths, url))
        with ExitStack() as stack:
            dying = stack.enter_context(hub_process([]))
            self._first_token(setup, GONE, dying, before=stack.close)
        self._first_token(setup, ABSENT, nobody)

    def _first_token(
        self, setup: ReplaySetup, state: str, url: str | None, before: Callable[[], object] = lambda: None
    ) -> None:
        """Seconds to the first token of a request for each text, each prompt being new.

        Args:
            before: called once the target is linked.
        """
        self._progress(f"time to the first token: {STATES[state]}")
        seconds = self._seen.first_s[state] = []
        with self._target(setup, url) as target, target.requests() as requests:
            before()
            for text in setup.traces.texts:
                began = time.monotonic()
                with requests.submit(self._request(target, text)) as stream:
                    next(stream)
                    seconds.append(time.monotonic() - began)
                self._check([text], [stream.result()])

    @contextmanager
    def _target(self, setup: ReplaySetup, url: str | None, *, speculation: bool = True) -> Iterator[OpenTarget]:
        """The modelled device, linked to a hub or not."""
        from starsd_jetson.api import DraftSettings, HubAccess, OpenTarget, hub_address
        from starsd_jetson.target import Target

        luck = random.Random(f"{setup.seed} verify")  # noqa: S311
        device = ReplayDevice(setup.verify, Pacer(time.monotonic, time.sleep), luck.random)
        engine = ReplayEngine(setup.traces.texts, setup.traces.source, device)
        target = Target(setup.bundle, engine, setup.tokenizer)
        drafts = DraftSettings(speculation=speculation)
        with OpenTarget(target, target.context(None), self._options.largest, drafts, None) as opened:
            if url is not None:
                opened.connect(HubAccess(hub_address(url), "bench"))
            yield opened

    def _request(self, target: OpenTarget, text: Trace):  # type: ignore[no-untyped-def]
        return target.request(text.prompt, None, min(self._options.new_tokens, len(text.answer)), ignore_eos=True)

    def _check(self, texts: Sequence[Trace], answers: Sequence[Answer]) -> None:
        for text, answer in zip(texts, answers, strict=True):
            self._seen.inexact += list(answer.token_ids) != text.answer[: len(answer.token_ids)]


def _time(repeat: int, repeats: int) -> str:
    return f"{repeat} of {repeats}" if repeat else "to warm up"


def _figures(seen: _Seen) -> Iterator[Figure]:
    label = TIMING_BACKEND
    ratios = [together / by_turns for together, by_turns in zip(seen.together, seen.by_turns, strict=True)]
    yield Figure.median("plain_tokens_per_s", seen.plain, "tokens/s", label)
    yield Figure.median("by_turns_tokens_per_s", seen.by_turns, "tokens/s", label)
    yield Figure.median("together_tokens_per_s", seen.together, "tokens/s", label)
    yield Figure.median("together_over_by_turns", ratios, "", label)
    for state, seconds in seen.first_s.items():
        yield Figure.median(f"ttft_ms_{state}", [1e3 * each for each in seconds], "ms", label)
    without = statistics.median(seen.first_s[NO_HUB])
    most = max(statistics.median(seconds) for seconds in seen.first_s.values())
    yield Figure("ttft_worst_over_no_hub", most / without, "", label)


def show(outcome: RequestsOutcome) -> None:
    """Print the tables, and whether the answers are the recorded texts."""
    console, report = output_console(exact=True), outcome.report
    speeds = Table("", "tokens/s", "x by turns", box=SIMPLE_HEAD, title=f"{TIMING_BACKEND}: requests")
    by_turns = report["by_turns_tokens_per_s"].value
    count = report.settings["requests"]
    for name, title in (
        ("plain_tokens_per_s", "plain decoding"),
        ("by_turns_tokens_per_s", f"{count} requests, one after another"),
        ("together_tokens_per_s", f"the same {count} together"),
    ):
        speeds.add_row(title, f"{report[name].value:.1f}", f"{report[name].value / by_turns:.2f}")
    console.print(speeds)
    firsts = Table("", "ms", "x no hub", box=SIMPLE_HEAD, title=f"{TIMING_BACKEND}: time to the first token")
    without = report[f"ttft_ms_{NO_HUB}"].value
    for state, title in STATES.items():
        value = report[f"ttft_ms_{state}"].value
        firsts.add_row(title, f"{value:.1f}", f"{value / without:.3f}")
    console.print(firsts)
    console.print(
        "exactness: every answer is the recorded text"
        if not outcome.inexact
        else f"exactness: {outcome.inexact} answers are NOT the recorded text",
        markup=False,
    )
