"""A hub's `/metrics` page as a snapshot: less than the feed tells, for when the feed cannot be had.

There is no uptime, instance, event, queue wait or report in it. Rates come from sums and the reader's own clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from starsd_edge.telemetry.feed import FEED_VERSION, FeedError, Snapshot
from starsd_edge.telemetry.hub_facts import (
    BatchFacts,
    DrafterFacts,
    HubFacts,
    Judgement,
    QueueDepth,
    TargetFacts,
    TimeUse,
)

_SAMPLE = re.compile(r"^(starsd_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_MOST = float((1 << 62) - 1)


class _Page:
    def __init__(self, text: str) -> None:
        self._values: dict[str, dict[str, float]] = {}
        for name, labels, value in _SAMPLE.findall(text):
            pairs = _LABEL.findall(labels)
            label = _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], pairs[0][1]) if pairs else ""
            self._values.setdefault(name, {})[label] = _number(name, value)
        if "starsd_hub_targets" not in self._values:
            raise FeedError("what /metrics shows is not that of a hub")

    def value(self, name: str, label: str = "") -> float:
        return self._values.get(name, {}).get(label, 0.0)

    def whole(self, name: str, label: str = "") -> int:
        return int(self.value(name, label))

    def labels(self, name: str) -> Iterator[str]:
        yield from self._values.get(name, {})

    def levels(self, name: str) -> list[int]:
        """Counts by position, as far as they go without a gap."""
        values = self._values.get(name, {})
        levels: list[int] = []
        while str(len(levels)) in values:
            levels.append(int(values[str(len(levels))]))
        return levels


def read_metrics(text: str, at_s: float) -> Snapshot:
    """What the page says.

    Args:
        at_s: seconds on any monotonic clock from 0 on; stands for the hub's uptime.

    Raises:
        FeedError: it is no page of a hub.
    """
    page = _Page(text)
    use = TimeUse(
        page.value("starsd_hub_busy_seconds_total"),
        page.value("starsd_hub_idle_seconds_total"),
        page.value("starsd_hub_lag_seconds_total"),
    )
    facts = HubFacts(
        uptime_s=at_s,
        ready=page.value("starsd_hub_ready") == 1,
        drafters=[_drafter(page, kind) for kind in page.labels("starsd_drafter_warm")],
        targets=[_target(page, name, at_s) for name in page.labels("starsd_rtt_seconds")],
        sessions=page.whole("starsd_hub_sessions"),
        queue=QueueDepth(page.whole("starsd_queue_depth"), page.whole("starsd_queue_rows")),
        time=use,
        bytes_up=page.whole("starsd_bytes_total", "up"),
        bytes_down=page.whole("starsd_bytes_total", "down"),
        auth_failures=page.whole("starsd_auth_failures_total"),
        turned_away=page.whole("starsd_turned_away_total"),
        drafted=_all_drafts(page),
        policy_in_use=next(page.labels("starsd_policy_in_use"), ""),
        batches=BatchFacts(page.whole("starsd_batch_size"), page.whole("starsd_batch_limit")),
    )
    return Snapshot(FEED_VERSION, facts)


def _drafter(page: _Page, kind: str) -> DrafterFacts:
    return DrafterFacts(
        kind=kind,
        warm=page.value("starsd_drafter_warm", kind) == 1,
        drafts=page.whole("starsd_spec_decode_num_drafts_total", kind),
        draft_tokens=page.whole("starsd_spec_decode_num_draft_tokens_total", kind),
        failures=page.whole("starsd_drafter_failures_total", kind),
    )


def _target(page: _Page, name: str, at_s: float) -> TargetFacts:
    return TargetFacts(
        target=name,
        connected_s=at_s,
        rtt_ms=1e3 * page.value("starsd_rtt_seconds", name),
        min_rtt_ms=1e3 * page.value("starsd_min_rtt_seconds", name),
        drafted=Judgement(
            drafts=page.whole("starsd_target_drafts_total", name),
            judged=page.whole("starsd_target_judged_drafts_total", name),
            accepted=page.whole("starsd_target_accepted_tokens_total", name),
        ),
    )


def _all_drafts(page: _Page) -> Judgement:
    kinds = list(page.labels("starsd_spec_decode_num_drafts_total"))
    return Judgement(
        drafts=sum(page.whole("starsd_spec_decode_num_drafts_total", kind) for kind in kinds),
        nodes=sum(page.whole("starsd_spec_decode_num_draft_tokens_total", kind) for kind in kinds),
        judged=page.whole("starsd_spec_decode_num_judged_drafts_total"),
        accepted=page.whole("starsd_spec_decode_num_accepted_tokens_total"),
        level_trials=page.levels("starsd_spec_decode_num_tried_tokens_per_pos_total"),
        level_hits=page.levels("starsd_spec_decode_num_accepted_tokens_per_pos_total"),
    )


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise FeedError(f"{name} on /metrics is no number") from None
    return min(value, _MOST) if value >= 0 else 0.0  # also what is not a number becomes 0
