"""OpenAI's own client, unmodified: whole and as a stream, sync and async, and its streaming helpers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from starsd_jetson.serve.door import DoorRules
from starsd_jetson.serve.server import ServeSettings
from tests.serve.conftest import ServeEcho
from tests.support.echo_model import HERMES
from tests.support.served import Served

openai = pytest.importorskip("openai")
ASKED: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "naïve 🙂"}], "temperature": 0}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def client(echo: Served) -> Any:
    return openai.OpenAI(base_url=echo.url, api_key="none", max_retries=0)


def test_chats(client: Any) -> None:
    whole = client.chat.completions.create(logprobs=True, top_logprobs=2, n=2, seed=1, stop=["x"], **ASKED)
    assert [choice.message.content for choice in whole.choices] == ["naïve 🙂"] * 2
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens / 2
    assert whole.metrics["speculative_decoding"]["num_spec_steps"] >= 0
    stream = client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ASKED)
    *chunks, last = stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "naïve 🙂"
    assert (last.choices, last.usage.completion_tokens) == ([], whole.usage.completion_tokens / 2)


def test_the_streaming_helper_of_chats(client: Any) -> None:
    with client.chat.completions.stream(logprobs=True, **ASKED) as helper:
        said = [event.delta for event in helper if event.type == "content.delta"]
        final = helper.get_final_completion().choices[0]
    assert "".join(said) == final.message.content == "naïve 🙂"
    assert final.finish_reason == "stop"
    assert len(final.logprobs.content) == 11


def test_completions(client: Any) -> None:
    asked: dict[str, Any] = {"model": "small", "prompt": "<|u|>hello<|a|>", "temperature": 0}
    whole = client.completions.create(logprobs=2, **asked).choices[0]
    assert (whole.text, whole.logprobs.tokens) == ("hello", list("hello"))
    assert "".join(chunk.choices[0].text for chunk in client.completions.create(stream=True, **asked)) == "hello"


def test_responses_and_their_streaming_helper(client: Any) -> None:
    asked: dict[str, Any] = {"model": "small", "input": "naïve 🙂", "temperature": 0}
    whole = client.responses.create(include=["message.output_text.logprobs"], **asked)
    assert (whole.output_text, whole.status) == ("naïve 🙂", "completed")
    assert len(whole.output[0].content[0].logprobs) == whole.usage.output_tokens == 11
    events = list(client.responses.create(stream=True, **asked))
    assert events[-1].response.output_text == "naïve 🙂"
    with client.responses.stream(**asked) as helper:
        said = [event.delta for event in helper if event.type == "response.output_text.delta"]
        assert "".join(said) == helper.get_final_response().output_text == "naïve 🙂"


def test_tools(serve_echo: ServeEcho) -> None:
    client = openai.OpenAI(base_url=serve_echo(HERMES, context=256).url, api_key="none", max_retries=0)
    asked = ASKED | {"messages": [{"role": "user", "content": CALL}], "tools": [TOOL]}
    (choice,) = client.chat.completions.create(**asked).choices
    assert choice.message.tool_calls[0].function.arguments == '{"city": "Ulm"}'
    with client.chat.completions.stream(**asked) as helper:
        final = helper.get_final_completion().choices[0]
    assert final.message.tool_calls[0].function.name == "weather"
    assert final.finish_reason == "tool_calls"
    tool = {"type": "function", **TOOL["function"]}
    response: dict[str, Any] = {"model": "small", "input": CALL, "tools": [tool], "temperature": 0}
    (item,) = client.responses.create(**response).output
    assert (item.type, item.name) == ("function_call", "weather")
    with client.responses.stream(**response) as stream:
        assert stream.get_final_response().output[0].arguments == '{"city": "Ulm"}'
    said = [*asked["messages"], choice.message, {"role": "tool", "tool_call_id": "x", "content": "rain"}]
    assert client.chat.completions.create(**asked | {"messages": said}).choices[0].message.content == "rain"


def test_structured_outputs(client: Any) -> None:
    pytest.importorskip("llguidance")
    pydantic = pytest.importorskip("pydantic")
    thing = pydantic.create_model("Thing", colour=(str, ...), size=(int, ...))
    said = '{"colour": "red", "size": 7}'
    asked = ASKED | {"messages": [{"role": "user", "content": said}]}
    (choice,) = client.chat.completions.parse(response_format=thing, **asked).choices
    assert (choice.message.parsed.colour, choice.message.parsed.size) == ("red", 7)
    parsed = client.responses.parse(model="small", input=said, temperature=0, text_format=thing).output_parsed
    assert parsed == choice.message.parsed


def test_functions_that_are_pydantic_models(serve_echo: ServeEcho) -> None:
    """Which the client declares strict, and whose arguments it reads by the model."""
    pytest.importorskip("llguidance")
    pydantic = pytest.importorskip("pydantic")
    weather = pydantic.create_model("weather", city=(str, ...), days=(int, ...))
    client = openai.OpenAI(base_url=serve_echo(HERMES, context=256).url, api_key="none", max_retries=0)
    tools = [openai.pydantic_function_tool(weather)]
    asked = ASKED | {"messages": [{"role": "user", "content": CALL.replace('"}}', '", "days": 3}}')}], "tools": tools}
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in ("auto", "required", named):
        parsed = client.chat.completions.parse(tool_choice=choice, parallel_tool_calls=False, **asked)
        (call,) = parsed.choices[0].message.tool_calls
        assert call.function.parsed_arguments == weather(city="Ulm", days=3)
        with client.chat.completions.stream(tool_choice=choice, parallel_tool_calls=False, **asked) as helper:
            (streamed,) = helper.get_final_completion().choices[0].message.tool_calls
        assert streamed.function.parsed_arguments == call.function.parsed_arguments
    response = client.responses.parse(
        model="small",
        temperature=0,
        input=asked["messages"][0]["content"],
        tools=[openai.pydantic_function_tool(weather)["function"] | {"type": "function"}],
        tool_choice={"type": "function", "name": "weather"},
    )
    assert response.output[0].parsed_arguments == {"city": "Ulm", "days": 3}


def test_without_waiting(echo: Served) -> None:
    async def several() -> list[str]:
        async with openai.AsyncOpenAI(base_url=echo.url, api_key="none", max_retries=0) as client:

            async def whole(word: str) -> str:
                asked = ASKED | {"messages": [{"role": "user", "content": word}]}
                said: str = (await client.chat.completions.create(**asked)).choices[0].message.content
                return said

            async def streamed() -> str:
                stream = await client.chat.completions.create(stream=True, **ASKED)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            async def helped() -> str:
                async with client.chat.completions.stream(**ASKED) as helper:
                    final: str = (await helper.get_final_completion()).choices[0].message.content
                    return final

            return list(await asyncio.gather(whole("one"), whole("two"), streamed(), helped()))

    assert asyncio.run(several()) == ["one", "two", "naïve 🙂", "naïve 🙂"]


def test_models_extensions_and_errors(client: Any, serve_echo: ServeEcho) -> None:
    assert [model.id for model in client.models.list()] == ["small"]
    assert client.models.retrieve("small").max_model_len == 128
    more = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}
    assert client.chat.completions.create(extra_body=more, **ASKED | {"temperature": 0.5}).choices[0].finish_reason
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(extra_body={"top_n": 5}, **ASKED)
    assert (refused.value.param, refused.value.code) == ("top_n", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**ASKED | {"model": "gpt"})
    url = serve_echo(settings=ServeSettings(("one", "two"), door=DoorRules(("key",)))).url
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=url, api_key="none", max_retries=0).models.list()
    with_key = openai.OpenAI(base_url=url, api_key="key", max_retries=0)
    assert [model.id for model in with_key.models.list()] == ["one", "two"]
    assert with_key.chat.completions.create(**ASKED | {"model": "two"}).model == "one"
