"""`/metrics` of a target in Prometheus' text format, names after vLLM's with the prefix `starsd_`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from starsd_edge.telemetry.rounds import RoundStats
from starsd_jetson.answers import Answer

CONTENT_TYPE = CONTENT_TYPE_LATEST
# Upper bounds of the histograms' buckets, in seconds: from a short prompt on a GPU to a long answer on a small board.
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


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
        state: asked at every scrape.
    """

    def __init__(self, state: Callable[[], State]) -> None:
        self._registry = CollectorRegistry()
        self._stats = RoundStats()
        self._registry.register(_StateCollector(state, self._stats))
        registry = self._registry
        self._responses = Counter(
            "starsd_http_responses", "Responses by what was asked and status.", ["path", "status"], registry=registry
        )
        self._ended = Counter(
            "starsd_request_success", "Answers by how they ended.", ["finished_reason"], registry=registry
        )
        self._prompt = Counter("starsd_prompt_tokens", "Tokens of prompts.", registry=registry)
        self._reused = Counter("starsd_prompt_tokens_cached", "Of them, not computed again.", registry=registry)
        self._generated = Counter("starsd_generation_tokens", "Tokens of answers.", registry=registry)
        self._first = Histogram(
            "starsd_time_to_first_token_seconds",
            "From the request to the first token of its answer.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._whole = Histogram(
            "starsd_e2e_request_latency_seconds",
            "From the request to the end of all its answers.",
            buckets=_SECONDS,
            registry=registry,
        )

    def responded(self, path: str, status: int) -> None:
        """A response has begun. `path` is that of a route, so there are few."""
        self._responses.labels(path, str(status)).inc()

    def first_token(self, seconds: float) -> None:
        """The first token of a response has come."""
        self._first.observe(seconds)

    def done(self, seconds: float) -> None:
        """All answers of a response have ended."""
        self._whole.observe(seconds)

    def answered(self, answer: Answer, finish_reason: str) -> None:
        """Count a finished answer."""
        self._ended.labels(finish_reason).inc()
        self._prompt.inc(answer.prompt_tokens)
        self._reused.inc(answer.reused_tokens)
        self._generated.inc(len(answer.token_ids))
        self._stats.merge(answer.stats)

    def text(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)


class _StateCollector(Collector):
    def __init__(self, state: Callable[[], State], stats: RoundStats) -> None:
        self._state = state
        self._stats = stats

    def describe(self) -> list[Metric]:
        """Nothing in advance: the backend may not stand yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        state, stats = self._state(), self._stats
        yield GaugeMetricFamily("starsd_num_requests_running", "Requests being answered.", value=state.running)
        yield GaugeMetricFamily("starsd_num_requests_waiting", "Requests that wait.", value=state.waiting)
        if state.hub_is_up is not None:
            yield GaugeMetricFamily("starsd_hub_up", "1 while the hub is there.", value=float(state.hub_is_up))
        rounds = CounterMetricFamily("starsd_rounds", "Verify passes by what drafted.", labels=["origin"])
        for origin, count in stats.by_origin.items():
            rounds.add_metric([origin], count)
        yield rounds
        drafts = stats.drafted_rounds
        yield CounterMetricFamily("starsd_spec_decode_num_drafts", "Drafts verified.", value=drafts)
        yield CounterMetricFamily("starsd_spec_decode_num_draft_tokens", "Tokens of them.", value=stats.drafted)
        yield CounterMetricFamily("starsd_spec_decode_num_accepted_tokens", "Tokens accepted.", value=stats.accepted)
        for name, help_text, counts in (
            ("tried", "Drafts that offered this level.", stats.level_trials),
            ("accepted", "Drafts of which it was accepted.", stats.level_hits),
        ):
            family = CounterMetricFamily(
                f"starsd_spec_decode_num_{name}_tokens_per_pos", help_text, labels=["position"]
            )
            for position, count in enumerate(counts):
                family.add_metric([str(position)], count)
            yield family
