"""Answers held to JSON or a schema: valid at every temperature, with a hub and without the same, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.serve.conftest import ServeEcho
from tests.support.echo_model import knowing
from tests.support.scripted_hub import ScriptedHub
from tests.support.served import Served

pytest.importorskip("llguidance")
CHAT, RESPONSE = "/v1/chat/completions", "/v1/responses"
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "size": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["colour", "size"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}


def chat(message: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": message}]
    return {"model": "small", "temperature": 0, "messages": messages, "response_format": FORM, **more}


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("message", ["no JSON at all", '{"colour": "red", "size": 7}', '{"colour": "blue"'])
def test_an_answer_fits_its_schema_with_a_hub_and_without(
    echo: Served, serve_echo: ServeEcho, message: str, temperature: float
) -> None:
    asked = chat(message, temperature=temperature, seed=3, max_tokens=100)
    (choice,) = echo.ask(CHAT, asked).body["choices"]
    said = json.loads(choice["message"]["content"])
    assert said.keys() == {"colour", "size"}
    assert said["colour"] in ("red", "green")
    assert said["size"] in range(100)
    assert choice["finish_reason"] == "stop"
    *chunks, _ = echo.ask(CHAT, asked | {"stream": True}).events
    streamed = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert streamed == choice["message"]["content"]
    form = {"type": "json_schema", "name": "thing", "schema": SCHEMA}
    body = {"model": "small", "temperature": temperature, "seed": 3, "input": message, "text": {"format": form}}
    response = echo.ask(RESPONSE, body | {"max_output_tokens": 100}).body
    assert response["output"][0]["content"][0]["text"] == choice["message"]["content"]
    assert response["text"]["format"]["schema"] == SCHEMA
    with ScriptedHub(knowing) as hub:
        assert serve_echo(hub=hub.url).ask(CHAT, asked).body["choices"] == [choice]


def test_json_of_any_kind(echo: Served) -> None:
    body = chat('{"a": [1, 2]}') | {"response_format": {"type": "json_object"}}
    assert json.loads(echo.ask(CHAT, body).body["choices"][0]["message"]["content"]) == {"a": [1, 2]}
    assert echo.ask(CHAT, body | {"response_format": {"type": "text"}}).status == 200
