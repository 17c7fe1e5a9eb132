"""`/metrics` as a Prometheus reads it. Requests whose clients leave are counted in test_leaving.py."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from starsd_edge import __version__
from starsd_edge.errors import EngineError
from tests.serve.conftest import ServeEcho
from tests.support.echo_model import HERMES, EchoEngine, knowing
from tests.support.scripted_hub import ScriptedHub
from tests.support.served import Served

CHAT, COMPLETION, RESPONSE = "/v1/chat/completions", "/v1/completions", "/v1/responses"
DOCS = Path(__file__).parents[2] / "docs" / "serve.md"
OWN = re.compile(r"starsd_\w+")


def families(server: Served) -> dict[str, Metric]:
    """All metrics, by name."""
    page = server.page("/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=")
    found = list(text_string_to_metric_families(page.data.decode()))
    assert len({each.name for each in found}) == len(found)
    return {each.name: each for each in found}


def value(server: Served, name: str, **labels: str) -> float:
    """Of a series that is there."""
    (found,) = (
        sample.value
        for family in families(server).values()
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    )
    return float(found)


def body(message: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "small", "temperature": 0, "messages": [{"role": "user", "content": message}], **more}


class _FailingEngine(EchoEngine):
    """Fails at a long answer."""

    def prefix_logits(self, prefix: Any) -> Any:
        if len(prefix) > 110:
            raise EngineError("no")
        return super().prefix_logits(prefix)


@pytest.fixture(scope="module")
def server(serve_echo: ServeEcho) -> Iterator[Served]:
    with ScriptedHub(knowing) as hub:
        yield serve_echo(HERMES, hub=hub.url, engine=_FailingEngine())


def test_every_metric_has_a_type_a_help_text_and_the_name_that_its_type_asks_for(server: Served) -> None:
    assert server.ask(CHAT, body()).status == 200
    found = {name: each for name, each in families(server).items() if not name.endswith("_created")}
    assert {"process_start_time_seconds", "process_resident_memory_bytes"} <= found.keys()
    for name, family in found.items():
        assert family.type in ("counter", "gauge", "histogram"), name
        assert re.fullmatch(r"\S+ .+\S\.", family.documentation), name
        assert re.fullmatch(r"starsd_[a-z0-9_]+|process_[a-z_]+", name)
        if family.type == "histogram":
            assert name.endswith("_seconds")
            assert any(sample.labels.get("le") == "+Inf" for sample in family.samples)
        assert not any(math.isnan(sample.value) for sample in family.samples)
    shown = {f"{name}_total" if family.type == "counter" else name for name, family in found.items()}
    page = DOCS.read_text()
    for name in shown:
        if name.startswith("starsd_"):
            assert f"`{name.removeprefix('starsd_')}" in page, f"{name} is not in docs/serve.md"
    named = re.findall(r"^\| `([a-z0-9_]+)", page.partition("## Metrics")[2], re.MULTILINE)
    assert len(named) == 15
    assert {f"starsd_{name}" for name in named} <= shown


def test_a_series_is_there_before_its_first_event(serve_echo: ServeEcho) -> None:
    new = serve_echo()
    for outcome in ("answered", "refused", "failed", "left_before_first_token", "left_after_first_token"):
        assert value(new, "starsd_requests_total", outcome=outcome) == 0
    assert value(new, "starsd_request_success_total", finished_reason="stop") == 0
    assert value(new, "starsd_serve_info", version=__version__, model="small") == 1
    assert "starsd_hub_up" not in families(new)


def test_requests_are_counted_by_how_they_ended_and_answers_by_why(server: Served) -> None:
    names = ("requests", "request_success", "http_responses")
    before = {name: families(server)[f"starsd_{name}"].samples for name in names}
    call = '<tool_call>{"name": "f"}</tool_call>'
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert server.ask(CHAT, body(n=2)).status == 200
    assert server.ask(CHAT, body(stream=True, max_tokens=2)).status == 200
    assert server.ask(RESPONSE, {"model": "small", "input": "x", "temperature": 0, "stream": True}).status == 200
    assert server.ask(CHAT, body(call, tools=tools)).status == 200
    assert server.ask(CHAT, body(top_n=1)).status == 400
    assert server.ask(CHAT, body() | {"model": "other"}).status == 404
    assert server.ask(COMPLETION, {"model": "small", "prompt": "x" * 115}).status == 500
    assert b"server_error" in server.ask(CHAT, body("x" * 115, stream=True)).data
    assert server.page("/v1/secret").status == 404
    assert server.page("/v1/models/any").status == 404
    assert server.page(CHAT).status == 405
    after = families(server)

    def more(name: str) -> dict[str, float]:
        """What came on top, by the values of the labels."""
        earlier = {sample.name + str(sample.labels): sample.value for sample in before[name]}
        return {
            " ".join(sample.labels.values()): sample.value - earlier.get(sample.name + str(sample.labels), 0)
            for sample in after[f"starsd_{name}"].samples
            if sample.value != earlier.get(sample.name + str(sample.labels), 0)
        }

    assert more("requests") == {"answered": 4, "refused": 2, "failed": 2}
    assert more("request_success") == {"stop": 3, "length": 1, "tool_calls": 1}
    assert more("http_responses") == {
        "/metrics 200": 1,
        f"{CHAT} 200": 4,
        f"{RESPONSE} 200": 1,
        f"{CHAT} 400": 1,
        f"{CHAT} 404": 1,
        f"{COMPLETION} 500": 1,
        "other 404": 1,
        "/v1/models/{name} 404": 1,
        f"{CHAT} 405": 1,
    }


def test_tokens_drafts_and_times_add_up(serve_echo: ServeEcho) -> None:
    with ScriptedHub(knowing) as hub:
        server = serve_echo(hub=hub.url)
        first = server.ask(CHAT, body("a long answer of the model")).body
        second = server.ask(CHAT, body("another", n=2)).body
        usages = [each["usage"] for each in (first, second)]
        assert value(server, "starsd_generation_tokens_total") == sum(each["completion_tokens"] for each in usages)
        prompts = usages[0]["prompt_tokens"] + 2 * usages[1]["prompt_tokens"]
        assert value(server, "starsd_prompt_tokens_total") == prompts, "one for each choice"
        figures = [each["metrics"]["speculative_decoding"] for each in (first, second)]
        for name, field in (("drafts", "spec_steps"), ("draft_tokens", "draft_tokens")):
            counted = value(server, f"starsd_spec_decode_num_{name}_total")
            assert counted == sum(each[f"num_{field}"] for each in figures) > 0
        assert value(server, "starsd_time_to_first_token_seconds_count") == 2
        assert value(server, "starsd_e2e_request_latency_seconds_count") == 2
        assert value(server, "starsd_request_time_per_output_token_seconds_count") == 3
        assert value(server, "starsd_rounds_total", origin="hub") > 0
        assert value(server, "starsd_hub_up") == 1
