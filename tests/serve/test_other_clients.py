"""Other clients, unmodified: curl, and LangChain and LiteLLM where the group `clients` is installed (400 MB)."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any, TypedDict

import pytest

from tests.serve.conftest import ServeEcho
from tests.support.echo_model import HERMES
from tests.support.served import Served

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'
WEATHER = CALL.replace("weather", "Weather")
SAID = "naïve 🙂"


@pytest.mark.skipif(shutil.which("curl") is None, reason="not run: there is no curl on this machine")
@pytest.mark.parametrize("stream", [False, True])
def test_curl(echo: Served, stream: bool) -> None:
    messages = [{"role": "user", "content": SAID}]
    body = {"model": "small", "temperature": 0, "stream": stream, "messages": messages}
    command = ["curl", "-sSN", "--fail-with-body", f"{echo.url}/chat/completions", "-d", json.dumps(body)]
    headers = ["-H", "Content-Type: application/json", "-H", "Authorization: Bearer none"]
    said = subprocess.run([*command, *headers], capture_output=True, check=True).stdout.decode()
    if not stream:
        assert json.loads(said)["choices"][0]["message"]["content"] == SAID
        return
    *lines, end = [line.removeprefix("data: ") for line in said.splitlines() if line]
    assert end == "[DONE]"
    assert "".join(json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines) == SAID


def test_langchain(echo: Served, serve_echo: ServeEcho) -> None:
    chat = pytest.importorskip("langchain_openai").ChatOpenAI
    options: dict[str, Any] = {"api_key": "none", "model": "small", "temperature": 0, "max_retries": 0}
    model = chat(base_url=echo.url, **options)
    whole = model.invoke(SAID)
    assert whole.content == SAID
    assert whole.usage_metadata["output_tokens"] == 11
    chunks = list(model.stream(SAID, stream_usage=True))
    assert "".join(chunk.content for chunk in chunks) == SAID
    assert sum((chunk.usage_metadata or {}).get("output_tokens", 0) for chunk in chunks) == 11
    assert model.bind(logprobs=True).invoke(SAID).response_metadata["logprobs"]["content"]
    asks = chat(base_url=serve_echo(HERMES, context=256).url, **options).bind_tools([weather])
    (call,) = asks.invoke(CALL).tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Ulm"})
    gathered = None
    for chunk in asks.stream(CALL):
        gathered = chunk if gathered is None else gathered + chunk
    assert gathered is not None
    assert [(each["name"], each["args"]) for each in gathered.tool_calls] == [("weather", {"city": "Ulm"})]
    forced = chat(base_url=serve_echo(HERMES, context=256).url, **options)
    for choice in ("any", "weather"):
        (call,) = forced.bind_tools([weather], tool_choice=choice, strict=True).invoke(CALL).tool_calls
        assert (call["name"], call["args"]) == ("weather", {"city": "Ulm"})
    assert forced.with_structured_output(Weather, method="function_calling").invoke(WEATHER) == {"city": "Ulm"}
    responses = chat(base_url=echo.url, use_responses_api=True, **options)
    assert responses.invoke(SAID).text == SAID
    assert "".join(chunk.text for chunk in responses.stream(SAID)) == SAID


class Weather(TypedDict):
    """The weather of a city."""

    city: str


def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def test_litellm(echo: Served, serve_echo: ServeEcho, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it fetches a list of prices
    litellm = pytest.importorskip("litellm")
    options: dict[str, Any] = {"api_base": echo.url, "api_key": "none", "model": "openai/small", "temperature": 0}
    messages = [{"role": "user", "content": SAID}]
    whole = litellm.completion(messages=messages, **options)
    assert (whole.choices[0].message.content, whole.usage.completion_tokens) == (SAID, 11)
    stream = litellm.completion(messages=messages, stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == SAID
    text = litellm.text_completion(prompt="<|u|>hello<|a|>", **options | {"model": "text-completion-openai/small"})
    assert text.choices[0].text == "hello"
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    options["api_base"] = serve_echo(HERMES, context=256).url
    called = litellm.completion(messages=[{"role": "user", "content": CALL}], tools=[tool], **options)
    assert called.choices[0].message.tool_calls[0].function.arguments == '{"city": "Ulm"}'
    assert called.choices[0].finish_reason == "tool_calls"
