"""`/metrics`: the facts of a hub in Prometheus' text format, names after vLLM's with the prefix `starsd_`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from starsd_edge.telemetry.hub_facts import DrafterFacts, HubFacts, Judgement, TargetFacts

CONTENT_TYPE = CONTENT_TYPE_LATEST
MAX_TARGET_LABELS = 64
"""Most target names that become labels. Targets choose their own names, so without a limit they could fill the memory
of the hub and of Prometheus.
"""
_STALE = frozenset({"superseded", "repeated", "late_draft"})
# Upper bounds of the histograms' buckets, in seconds: from a fast draft to one that a reader notices.
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class HubMetrics:
    """The metrics of one hub, in a registry of its own."""

    def __init__(self, facts: Callable[[], HubFacts]) -> None:
        """`facts`: what is true now; asked at every scrape."""
        self._registry = CollectorRegistry()
        self._registry.register(_FactsCollector(facts))
        self._service = Histogram(
            "starsd_draft_seconds", "Time in the drafter, per draft.", buckets=_SECONDS, registry=self._registry
        )
        self._queue = Histogram(
            "starsd_draft_queue_seconds", "Wait in Q_in, per draft.", buckets=_SECONDS, registry=self._registry
        )

    def drafted(self, queue_us: int, service_us: int) -> None:
        """Take in the durations of one draft."""
        self._queue.observe(queue_us / 1e6)
        self._service.observe(service_us / 1e6)

    def text(self) -> str:
        """The page."""
        return generate_latest(self._registry).decode()


class _FactsCollector(Collector):
    def __init__(self, facts: Callable[[], HubFacts]) -> None:
        self._facts = facts

    def describe(self) -> list[Metric]:
        """Nothing in advance: a hub that is still being built has no facts to name its metrics by."""
        return []

    def collect(self) -> Iterator[Metric]:
        facts = self._facts()
        yield _gauge("starsd_hub_sessions", "Sessions held.", facts.sessions)
        yield _gauge("starsd_hub_targets", "Connected targets.", len(facts.targets))
        yield _gauge("starsd_hub_own_ports", "Ports for targets to be sent on to.", facts.own_ports)
        yield _gauge("starsd_hub_own_ports_taken", "Of them, those handed out.", facts.own_ports_taken)
        yield _gauge("starsd_hub_ready", "1 when every drafter is warm and works.", facts.ready)
        yield _gauge("starsd_queue_depth", "Draft requests waiting in Q_in.", facts.queue.requests)
        yield _gauge("starsd_queue_rows", "Rows waiting to be fed to a drafter.", facts.queue.rows)
        yield _gauge("starsd_hub_busy_ratio", "Share of busy time of the drafting thread of late.", facts.busy_ratio)
        yield from _of_passes(facts)
        yield _counter("starsd_hub_busy_seconds", "Drafting thread: time in a drafter.", facts.time.busy_s)
        yield _counter("starsd_hub_idle_seconds", "Drafting thread: time without work.", facts.time.idle_s)
        yield _counter(
            "starsd_hub_lag_seconds", "Drafting thread: time not at work while work waited.", facts.time.lag_s
        )
        yield _counter("starsd_auth_failures", "Connections with no token or a wrong one.", facts.auth_failures)
        yield _counter(
            "starsd_turned_away", "Connections refused: the hub was full, or the ticket not good.", facts.turned_away
        )
        yield _counter("starsd_hub_unused_seconds", "Of the busy time: work for targets that had left.", facts.unused_s)
        stale = facts.queue.superseded + facts.queue.dropped
        stale += sum(count for why, count in facts.dropped.items() if why in _STALE)
        yield _counter("starsd_stale_drops", "Requests and drafts that nobody waited for any more.", stale)
        yield _bytes(facts)
        yield _counter("starsd_bundle_bytes", "Bytes of bundles handed to targets.", facts.bundle_bytes)
        yield _decode_errors(facts)
        yield from _of_drafters(facts.drafters)
        yield from _of_acceptance(facts.drafted)
        yield from _of_targets(facts.targets)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_text, value=float(value))


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(name, help_text, value=float(value))


def _bytes(facts: HubFacts) -> Metric:
    family = CounterMetricFamily("starsd_bytes", "Message bytes; up is target to hub.", labels=["dir"])
    family.add_metric(["up"], facts.bytes_up)
    family.add_metric(["down"], facts.bytes_down)
    return family


def _decode_errors(facts: HubFacts) -> Metric:
    family = CounterMetricFamily("starsd_decode_errors", "Frames not acted on, by reason.", labels=["kind"])
    for why, count in facts.dropped.items():
        if why not in _STALE:
            family.add_metric([why], count)
    return family


def _of_passes(facts: HubFacts) -> Iterator[Metric]:
    """Batches, the order of requests, and S as measured."""
    yield _gauge("starsd_batch_size", "Sessions in the last pass of a drafter.", facts.batches.last)
    yield _gauge("starsd_batch_limit", "Most sessions of a pass.", facts.batches.most)
    buckets, below, sessions = [], 0, 0
    for size, passes in enumerate(facts.batches.sizes, 1):
        below += passes
        sessions += size * passes
        if size & (size - 1) == 0 or size == facts.batches.most:
            buckets.append((f"{size}.0", below))
    buckets.append(("+Inf", below))
    yield HistogramMetricFamily("starsd_batch_sessions", "Sessions per pass.", buckets=buckets, sum_value=sessions)
    policy = GaugeMetricFamily(
        "starsd_policy_in_use", "1 for the rule by which requests are ordered now.", labels=["policy"]
    )
    policy.add_metric([facts.policy_in_use], 1)
    yield policy
    service = GaugeMetricFamily(
        "starsd_service_seconds",
        "What a pass of a drafter takes, as measured: fixed + session * b + level * levels + node * nodes.",
        labels=["drafter", "per"],
    )
    for drafter in facts.drafters:
        known = drafter.service
        parts = {"pass": known.fixed_ms, "session": known.session_ms, "level": known.level_ms, "node": known.node_ms}
        for per, part_ms in {**parts, "row": known.row_ms}.items():
            service.add_metric([drafter.kind, per], part_ms / 1e3)
    yield service


def _of_drafters(drafters: list[DrafterFacts]) -> Iterator[Metric]:
    drafts = CounterMetricFamily("starsd_spec_decode_num_drafts", "Drafts made.", labels=["drafter"])
    tokens = CounterMetricFamily("starsd_spec_decode_num_draft_tokens", "Tokens drafted.", labels=["drafter"])
    rows = CounterMetricFamily("starsd_drafter_rows", "Rows taken in.", labels=["drafter"])
    failures = CounterMetricFamily("starsd_drafter_failures", "Sessions lost to its errors.", labels=["drafter"])
    warm = GaugeMetricFamily("starsd_drafter_warm", "1 when it is ready.", labels=["drafter"])
    for drafter in drafters:
        label = [drafter.kind]
        drafts.add_metric(label, drafter.drafts)
        tokens.add_metric(label, drafter.draft_tokens)
        rows.add_metric(label, drafter.rows)
        failures.add_metric(label, drafter.failures)
        warm.add_metric(label, float(drafter.warm))
    yield from (drafts, tokens, rows, failures, warm)


def _of_acceptance(drafted: Judgement) -> Iterator[Metric]:
    yield _counter("starsd_spec_decode_num_judged_drafts", "Drafts whose continuation is known.", drafted.judged)
    yield _counter("starsd_spec_decode_num_accepted_tokens", "Tokens of them that came true.", drafted.accepted)
    tried = CounterMetricFamily(
        "starsd_spec_decode_num_tried_tokens_per_pos", "Drafts that offered this level.", labels=["position"]
    )
    accepted = CounterMetricFamily(
        "starsd_spec_decode_num_accepted_tokens_per_pos", "Drafts of which it came true.", labels=["position"]
    )
    for position, (trials, hits) in enumerate(zip(drafted.level_trials, drafted.level_hits, strict=True)):
        tried.add_metric([str(position)], trials)
        accepted.add_metric([str(position)], hits)
    yield from (tried, accepted)


def _of_targets(targets: list[TargetFacts]) -> Iterator[Metric]:
    """One series for each target, by name (names are made distinct before). Of too many targets, those with the
    shortest round-trip times are kept.
    """
    nearest: dict[str, TargetFacts] = {}
    for target in sorted(targets, key=lambda target: target.min_rtt_ms or 0.0):
        if target.rtt_ms is not None and target.min_rtt_ms is not None and len(nearest) < MAX_TARGET_LABELS:
            nearest.setdefault(target.target, target)
    rtt = GaugeMetricFamily("starsd_rtt_seconds", "Smoothed round-trip time of the TCP connection.", labels=["target"])
    least = GaugeMetricFamily("starsd_min_rtt_seconds", "Least round-trip time of late.", labels=["target"])
    for name, target in nearest.items():
        rtt.add_metric([name], (target.rtt_ms or 0.0) / 1e3)
        least.add_metric([name], (target.min_rtt_ms or 0.0) / 1e3)
    yield from _of_rounds(nearest)
    drafts = CounterMetricFamily("starsd_target_drafts", "Drafts sent to this target.", labels=["target"])
    judged = CounterMetricFamily("starsd_target_judged_drafts", "Those whose continuation is known.", labels=["target"])
    accepted = CounterMetricFamily("starsd_target_accepted_tokens", "Tokens that came true.", labels=["target"])
    for name, target in nearest.items():
        drafts.add_metric([name], target.drafted.drafts)
        judged.add_metric([name], target.drafted.judged)
        accepted.add_metric([name], target.drafted.accepted)
    yield from (rtt, least, drafts, judged, accepted)


def _of_rounds(targets: dict[str, TargetFacts]) -> Iterator[Metric]:
    """What the hub observes of the rounds of targets, by name."""
    durations = GaugeMetricFamily(
        "starsd_round_seconds",
        "Smoothed: from a draft to the next request (return), the network in it (link), the target's pass (verify).",
        labels=["target", "part"],
    )
    deviations = GaugeMetricFamily("starsd_round_deviation_seconds", "Their mean deviation.", labels=["target", "part"])
    degraded = GaugeMetricFamily(
        "starsd_path_degraded", "1 while the path is much slower than usual.", labels=["target"]
    )
    for name, target in targets.items():
        known = target.latency
        for part, value_ms, deviation_ms in (
            ("return", known.return_ms, known.return_deviation_ms),
            ("link", known.link_ms, known.link_deviation_ms),
            ("verify", known.verify_ms, known.verify_deviation_ms),
        ):
            if value_ms is not None:
                durations.add_metric([name, part], value_ms / 1e3)
                deviations.add_metric([name, part], deviation_ms / 1e3)
        degraded.add_metric([name], float(known.degraded))
    yield from (durations, deviations, degraded)
