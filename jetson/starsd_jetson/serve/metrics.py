"""`/metrics` of a target in Prometheus' text format, names after vLLM's with the prefix `starsd_`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from starsd_edge import __version__
from starsd_edge.telemetry.rounds import RoundStats
from starsd_jetson.answers import CANCELLED, Answer

CONTENT_TYPE = CONTENT_TYPE_LATEST
ANSWERED, REFUSED, QUEUE_FULL, STOPPED, FAILED = "answered", "refused", "queue_full", "server_stopped", "failed"
LEFT_EARLY, LEFT_LATE = "left_before_first_token", "left_after_first_token"
OUTCOMES = (ANSWERED, REFUSED, QUEUE_FULL, STOPPED, FAILED, LEFT_EARLY, LEFT_LATE)
"""How a request may end."""
FINISH_REASONS = ("stop", "length", "tool_calls")
# Upper bounds of the histograms' buckets, in seconds: from a short prompt on a GPU to a long answer on a small board.
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
# The same of one token.
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class State:
    """What is true now.

    Attributes:
        running: requests that are being answered.
        waiting: requests that wait for their turn.
        hub_is_up: whether the hub is there; None without one.
    """

    running: int
    waiting: int
    hub_is_up: bool | None


class ServeMetrics:
    """The metrics of one server, in a registry of its own. Belongs to the event loop.

    Args:
        model: what is served.
        state: asked at every scrape.
    """

    def __init__(self, model: str, state: Callable[[], State]) -> None:
        self._registry = registry = CollectorRegistry()
        self._stats = RoundStats()
        registry.register(_StateCollector(state, self._stats))
        ProcessCollector(registry=registry)
        info = Info("starsd_serve", "The version of the server and the name of its model.", registry=registry)
        info.info({"version": __version__, "model": model})

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"starsd_{name}", help_text, labels, registry=registry)

        def histogram(name: str, help_text: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
            return Histogram(f"starsd_{name}_seconds", help_text, buckets=buckets, registry=registry)

        self._responses = counter("http_responses", "HTTP responses begun, by path and status.", "path", "status")
        self._requests = counter("requests", "Requests for answers that have ended, by how they did.", "outcome")
        self._ended = counter(
            "request_success", "Answers that ended by themselves, one for each choice, by why.", "finished_reason"
        )
        self._prompt = counter("prompt_tokens", "Tokens of the prompts of answers that have ended, cut-off ones too.")
        self._reused = counter("prompt_tokens_cached", "Tokens of prompts whose KV was there and was not computed.")
        self._generated = counter("generation_tokens", "Tokens of answers that have ended, cut-off ones too.")
        self._first = histogram("time_to_first_token", "From a request to the first token of its answer.")
        self._whole = histogram("e2e_request_latency", "From an answered request to the end of all its answers.")
        self._token = histogram(
            "request_time_per_output_token", "Of an answer: time per token after the first.", _TOKEN_SECONDS
        )
        for outcome in OUTCOMES:  # a series that begins with its first event hides it from rate()
            self._requests.labels(outcome)
        for reason in FINISH_REASONS:
            self._ended.labels(reason)

    def responded(self, path: str, status: int) -> None:
        """A response has begun. `path` is one of few."""
        self._responses.labels(
            path, f"{status:d}"
        ).inc()  # whose text, where it is an HTTPStatus, is a name on Python 3.10

    def finished(self, finish_reason: str) -> None:
        """A choice of a response is complete."""
        self._ended.labels(finish_reason).inc()

    def answered(self, answer: Answer) -> None:
        """Count the work for an answer that has ended, or that was cut off."""
        if answer.finish_reason == CANCELLED and not answer.token_ids:
            return  # nothing is known of a prompt that was not read to its end
        tokens = len(answer.token_ids)
        self._prompt.inc(answer.prompt_tokens)
        self._reused.inc(answer.reused_tokens)
        self._generated.inc(tokens)
        if tokens > 1:
            self._token.observe(answer.decode_s / (tokens - 1))
        self._stats.merge(answer.stats)

    def first_token(self, seconds: float) -> None:
        """The first token of a response has come."""
        self._first.observe(seconds)

    def ended(self, outcome: str, seconds: float) -> None:
        """A request has ended."""
        self._requests.labels(outcome).inc()
        if outcome == ANSWERED:
            self._whole.observe(seconds)

    def text(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)


class RequestWatch:
    """One request: how long it took and how it ended, which is counted once.

    Args:
        clock: monotonic seconds; the request begins now.
    """

    def __init__(self, metrics: ServeMetrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._began = clock()
        self._has_token = False
        self._has_ended = False

    def token(self) -> None:
        """A token has come."""
        if not self._has_token:
            self._has_token = True
            self._metrics.first_token(self._clock() - self._began)

    def end(self, outcome: str) -> None:
        """It has ended. What comes later is of no account."""
        if not self._has_ended:
            self._has_ended = True
            self._metrics.ended(outcome, self._clock() - self._began)

    def left(self) -> None:
        """Its client has gone."""
        self.end(LEFT_LATE if self._has_token else LEFT_EARLY)


class _StateCollector(Collector):
    def __init__(self, state: Callable[[], State], stats: RoundStats) -> None:
        self._state = state
        self._stats = stats

    def describe(self) -> list[Metric]:
        """Nothing in advance: the backend may not stand yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        state, stats = self._state(), self._stats
        yield GaugeMetricFamily("starsd_num_requests_running", "Answers being worked at.", value=state.running)
        yield GaugeMetricFamily("starsd_num_requests_waiting", "Answers that wait for their turn.", value=state.waiting)
        if state.hub_is_up is not None:
            yield GaugeMetricFamily("starsd_hub_up", "1 while the hub is there.", value=float(state.hub_is_up))
        rounds = CounterMetricFamily("starsd_rounds", "Verify passes, by what made their draft.", labels=["origin"])
        for origin, count in stats.by_origin.items():
            rounds.add_metric([origin], count)
        yield rounds
        for name, help_text, value in (
            ("drafts", "Drafts verified.", stats.drafted_rounds),
            ("draft_tokens", "Draft tokens verified.", stats.drafted),
            ("accepted_tokens", "Draft tokens accepted.", stats.accepted),
        ):
            yield CounterMetricFamily(f"starsd_spec_decode_num_{name}", help_text, value=value)
        for name, help_text, counts in (
            ("tried", "Drafts that offered a token at this position below the accepted path.", stats.level_trials),
            ("accepted", "Drafts whose token at this position was accepted.", stats.level_hits),
        ):
            family = CounterMetricFamily(
                f"starsd_spec_decode_num_{name}_tokens_per_pos", help_text, labels=["position"]
            )
            for position, count in enumerate(counts):
                family.add_metric([str(position)], count)
            yield family
