"""The Grafana dashboard asks for what a hub really tells."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from starsd_edge.telemetry.hub_facts import (
    BatchFacts,
    DrafterFacts,
    HubFacts,
    Judgement,
    LatencyFacts,
    QueueDepth,
    TargetFacts,
)
from starsd_server.metrics import HubMetrics

BOARD = Path(__file__).parents[2] / "server" / "deploy" / "grafana" / "dashboards" / "hub.json"
SCRAPED = frozenset({"job", "instance"})
"""Labels that Prometheus adds."""


@pytest.fixture(scope="module")
def board() -> Any:
    return json.loads(BOARD.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def told() -> dict[str, set[str]]:
    """Every series of a hub that has seen a bit of everything, with its labels."""
    judged = Judgement(drafts=3, judged=2, accepted=1, level_trials=[2], level_hits=[1])
    latency = LatencyFacts(return_ms=40, link_ms=2, verify_ms=35)
    facts = HubFacts(
        ready=True,
        drafters=[DrafterFacts("eagle", warm=True, drafts=3, draft_tokens=9)],
        targets=[TargetFacts("orin", rtt_ms=1.0, min_rtt_ms=0.9, drafted=judged, latency=latency)],
        queue=QueueDepth(requests=1),
        dropped={"malformed": 1},
        drafted=judged,
        policy_in_use="latency",
        batches=BatchFacts(last=1, most=16, sizes=[3]),
    )
    metrics = HubMetrics(lambda: facts)
    metrics.drafted(100, 4000)
    series: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.text()):
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    return series


def queries(board: Any) -> Iterator[tuple[str, str, str]]:
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"], target["legendFormat"]


def test_every_query_names_a_metric_of_the_hub_with_labels_that_it_has(board: Any, told: dict[str, set[str]]) -> None:
    asked = list(queries(board))
    assert len(asked) > 30
    for title, query, legend in asked:
        names = re.findall(r"\bstarsd_\w+", query)
        assert names, title
        for name in names:
            assert name in told, f"{title}: {name}"
        for name, matchers in re.findall(r"\b(starsd_\w+)\{([^}]*)\}", query):
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
            assert labels <= told[name] | SCRAPED, f"{title}: {query}"
        shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
        assert all(shown <= told[name] | SCRAPED for name in names), f"{title}: {legend}"


def test_variables_are_values_that_the_hub_gives(board: Any, told: dict[str, set[str]]) -> None:
    variables = {each["name"]: each["query"]["query"] for each in board["templating"]["list"]}
    used = {name for _, query, _ in queries(board) for name in re.findall(r"\$(\w+)", query)} - {"__rate_interval"}
    assert used == set(variables)
    for query in variables.values():
        name, label = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", query).groups()  # type: ignore[union-attr]
        assert label in told[name] | SCRAPED


def test_counters_are_asked_for_as_rates_and_nothing_else_is(board: Any) -> None:
    for title, query, _ in queries(board):
        for name in re.findall(r"\bstarsd_\w+", query):
            is_counter = name.endswith(("_total", "_bucket", "_sum", "_count"))
            assert (f"rate({name}{{" in query) == is_counter, f"{title}: {query}"


def test_queries_are_promql(board: Any) -> None:
    promql = pytest.importorskip("promql_parser", reason="not run: there is no promql_parser here")
    for _, query, _ in queries(board):
        promql.parse(query.replace("$__rate_interval", "1m"))
    with pytest.raises(ValueError, match=r"\S"):
        promql.parse("rate(starsd_bytes_total)[1m")


def test_panels_have_a_place_of_their_own_and_the_provisioned_source(board: Any) -> None:
    source = (BOARD.parents[1] / "provisioning/datasources/prometheus.yaml").read_text()
    (uid,) = re.findall(r"uid: (\S+)", source)
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == uid
