"""Calls that are asked for, calls of strict functions, one call at most, calls or JSON: held to by a grammar, in each
form of calls, the same with a hub and without.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import jsonschema
import pytest
from tokenizers import AddedToken

from starsd_edge.bundles.manifest import TextRules
from starsd_edge.errors import UsageError
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.serve.answer_form import Tools, call_grammar
from starsd_jetson.serve.schema import Function
from starsd_jetson.serve.tool_calls import Call, ToolForm
from tests.serve.conftest import ServeEcho
from tests.support.echo_model import EOS, HERMES, LLAMA, MISTRAL, byte_backend, knowing
from tests.support.scripted_hub import ScriptedHub
from tests.support.served import Served

pytest.importorskip("llguidance")
CHAT, RESPONSE = "/v1/chat/completions", "/v1/responses"
TEMPLATES = {ToolForm.HERMES: HERMES, ToolForm.MISTRAL: MISTRAL, ToolForm.LLAMA: LLAMA}
PLACE = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"name": {"enum": ["Ulm", "</tool_call>"]}},
}
SCHEMAS: Mapping[str, Any] = {"weather": PLACE, "clock": {"type": "object", "maxProperties": 0}}
CLOCK: dict[str, Any] = {"name": "clock"}
WEATHER: dict[str, Any] = {"name": "weather", "parameters": PLACE}


def said(form: ToolForm, *calls: tuple[str, str]) -> str:
    """Calls of functions with these arguments, as the model writes them."""
    if form is ToolForm.LLAMA:
        return "; ".join(f'{{"name": "{name}", "parameters": {arguments}}}' for name, arguments in calls)
    written = [f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in calls]
    if form is ToolForm.HERMES:
        return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in written)
    return f"[TOOL_CALLS][{', '.join(written)}]"


def chat(message: str, *functions: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A chat with these functions."""
    tools = [{"type": "function", "function": dict(each)} for each in functions or (WEATHER, CLOCK)]
    messages = [{"role": "user", "content": message}]
    return {"model": "small", "temperature": 0, "max_tokens": 250, "messages": messages, "tools": tools, **more}


def as_response(body: Mapping[str, Any]) -> dict[str, Any]:
    """The same for the Responses API."""
    shared = {name: value for name, value in body.items() if name in ("model", "temperature", "seed")}
    choice = body.get("tool_choice", "auto")
    return shared | {
        "input": body["messages"][0]["content"],
        "max_output_tokens": body["max_tokens"],
        "tools": [{"type": "function", **tool["function"]} for tool in body["tools"]],
        "tool_choice": choice if isinstance(choice, str) else {"type": "function", **choice["function"]},
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
    }


def calls_of(choice: Mapping[str, Any]) -> list[Call]:
    """Its calls, which fit their schemas."""
    calls = [Call(**call["function"]) for call in choice["message"].get("tool_calls", ())]
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
    return calls


@pytest.fixture(scope="module", params=TEMPLATES, ids=lambda form: form.name.lower())
def form(request: pytest.FixtureRequest) -> ToolForm:
    chosen: ToolForm = request.param
    return chosen


@pytest.fixture(scope="module")
def plain(serve_echo: ServeEcho, form: ToolForm) -> Served:
    return serve_echo(TEMPLATES[form], context=512, speculation=False)


@pytest.fixture(scope="module")
def drafted(serve_echo: ServeEcho, form: ToolForm) -> Iterator[Served]:
    with ScriptedHub(knowing) as hub:
        yield serve_echo(TEMPLATES[form], hub=hub.url, context=512)


def asked(plain: Served, drafted: Served, body: Mapping[str, Any]) -> Any:
    """The choice, which is the same with a hub and without, whole and streamed, in both APIs."""
    (choice,) = plain.ask(CHAT, body).body["choices"]
    *chunks, _ = drafted.ask(CHAT, {**body, "stream": True}).events
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == (choice["message"]["content"] or "")
    streamed = [Call(**call["function"]) for delta in deltas for call in delta.get("tool_calls", ())]
    assert streamed == calls_of(choice)
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    if "response_format" not in body:
        response = drafted.ask(RESPONSE, as_response(body)).body
        items = [item for item in response["output"] if item["type"] == "function_call"]
        assert [Call(item["name"], item["arguments"]) for item in items] == streamed
        assert response["tool_choice"] == as_response(body)["tool_choice"]
        assert response["parallel_tool_calls"] == body.get("parallel_tool_calls", True)
    return choice


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_call_that_is_asked_for_is_made(plain: Served, drafted: Served, form: ToolForm, temperature: float) -> None:
    """Whatever the model would say. One that it would make anyway is made as it would make it."""
    named = {"type": "function", "function": {"name": "weather"}}
    wanted = '{"city": "</tool_call>", "days": 3}'
    for message, choice in product(("no", said(form, ("weather", wanted))), ("required", named)):
        body = chat(message, tool_choice=choice, parallel_tool_calls=False, temperature=temperature, seed=5)
        answer = asked(plain, drafted, body)
        (call,) = calls_of(answer)
        assert (answer["finish_reason"], answer["message"]["content"]) == ("tool_calls", None)
        assert choice == "required" or call.name == "weather"
        if message != "no" and not temperature:
            assert call == Call("weather", wanted)


def test_several_calls_are_made_where_they_may_be(plain: Served, drafted: Served, form: ToolForm) -> None:
    message = said(form, ("weather", '{"city": "Ulm", "days": 1}'), ("clock", "{}"))
    for more, names in (
        ({}, ["weather", "clock"]),
        ({"tool_choice": "required"}, ["weather", "clock"]),
        ({"parallel_tool_calls": False}, ["weather"]),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, ["weather"]),
    ):
        answer = asked(plain, drafted, chat(message, **more))
        assert [call.name for call in calls_of(answer)] == names
        assert answer["finish_reason"] == "tool_calls"


def test_arguments_of_a_strict_function_fit_and_text_stays_text(plain: Served, drafted: Served, form: ToolForm) -> None:
    strict = WEATHER | {"strict": True}
    wrong = ("weather", '{"city": "Bonn"}')
    loose = plain.ask(CHAT, chat(said(form, wrong))).body["choices"][0]["message"]["tool_calls"][0]["function"]
    assert json.loads(loose["arguments"]) == {"city": "Bonn"}
    assert calls_of(asked(plain, drafted, chat(said(form, wrong), strict)))[0].name == "weather"
    for text in ("plain <tool", "a [TOOL", "\N{SNOWMAN} \N{GRINNING FACE}"):
        answer = asked(plain, drafted, chat(text, strict))
        assert (answer["message"]["content"], answer["finish_reason"]) == (text, "stop")
    if form is not ToolForm.LLAMA:
        answer = asked(plain, drafted, chat("So: " + said(form, ("weather", '{"city": "Ulm", "days": 1}')), strict))
        assert (answer["message"]["content"], len(calls_of(answer))) == ("So:", 1)


def test_what_is_no_call_has_its_format(plain: Served, drafted: Served, form: ToolForm) -> None:
    schema = {"type": "object", "properties": {"said": {"type": "string", "maxLength": 80}}, "required": ["said"]}
    asks = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    call = said(form, ("clock", "{}"))
    if form is ToolForm.LLAMA:
        for each in (asks, {"response_format": {"type": "json_object"}}):
            refused = plain.ask(CHAT, chat("a", **each))
            assert (refused.status, refused.error["param"]) == (400, "response_format")
    else:
        quoted = json.dumps({"said": f"{call.removeprefix('[TOOL_CALLS]')}."})  # which is a token here
        answer = asked(plain, drafted, chat(quoted, **asks))
        assert answer["message"]["content"] == quoted, "a call inside the content is none"
        assert answer["finish_reason"] == "stop"
        assert calls_of(asked(plain, drafted, chat(call, **asks))) == [Call("clock", "{}")]
        free = asked(plain, drafted, chat("neither", CLOCK | {"strict": True}, temperature=1, seed=2, **asks))
        if free["finish_reason"] == "stop":
            assert isinstance(json.loads(free["message"]["content"])["said"], str)
    (forced,) = calls_of(asked(plain, drafted, chat(call, tool_choice="required", parallel_tool_calls=False, **asks)))
    assert forced == Call("clock", "{}"), "a call has no format but its own"


@pytest.mark.parametrize(
    ("param", "more"),
    [
        ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "other"}}}),
        ("tool_choice", {"tool_choice": "required", "tools": []}),
        ("tool_choice", {"tool_choice": "weather"}),
        ("tool_choice.function.name", {"tool_choice": {"type": "function", "function": {}}}),
        ("tool_choice.type", {"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}),
        ("parallel_tool_calls", {"parallel_tool_calls": "no"}),
        ("ignore_eos", {"ignore_eos": True, "tool_choice": "required"}),
    ],
    ids=str,
)
def test_a_choice_that_cannot_be_is_refused(plain: Served, param: str, more: dict[str, Any]) -> None:
    refused = plain.ask(CHAT, chat("a") | more)
    assert (refused.status, refused.error["param"]) == (400, param), refused


@pytest.mark.parametrize(
    ("param", "function"),
    [
        ("parameters", {"name": "f", "parameters": {"type": "array"}}),
        ("parameters", {"name": "f", "parameters": {"properties": {"a": {"type": "objekt"}}}}),
        ("parameters", {"name": "f", "parameters": {"$ref": "http://elsewhere.example/schema"}}),
        ("parameters", {"name": "f", "parameters": {"description": "x" * 140_000}}),
        ("name", {"name": ""}),
        ("name", {"name": "clock"}),
    ],
    ids=range(6),
)
def test_a_function_that_cannot_be_held_to_is_refused(plain: Served, param: str, function: dict[str, Any]) -> None:
    for more in ({"tool_choice": "required"}, {"strict": True}):
        strict = {"strict": True} if more.pop("strict", False) else {}
        body = chat("a", CLOCK, function | strict, **more)
        refused = plain.ask(CHAT, body)
        assert (refused.status, refused.error["param"]) == (400, f"tools[1].function.{param}"), refused
        assert plain.ask(RESPONSE, as_response(body)).error["param"] == f"tools[1].{param}"


def test_a_grammar_takes_all_that_is_allowed_and_nothing_else(form: ToolForm) -> None:
    """Where the marks are tokens of the model as well as where they are spelt."""
    functions = [(0, Function("weather", parameters=PLACE, strict=True)), (1, Function("clock"))]
    good, clock = ("weather", '{"city": "Ulm", "days": 1}'), ("clock", "{}")
    one, two, wrong = said(form, good), said(form, clock, good), said(form, ("weather", "{}"))
    cases = {"": "text", "hi <x": "text", "<think>x": "text", one: "one", two: "two", wrong: "", f"{one} bye": ""}
    if form is not ToolForm.LLAMA:
        cases |= {f"So: {one}": "text, one", '["yes"]': "text, format", ' {"a': "text"}
    if form is ToolForm.HERMES:
        cases |= {f"{one} bye": "text, two", f"{one} {one}": "text, two"}
    for is_special, (must, only, either) in product((None, False, True), product((False, True), repeat=3)):
        if either and (must or form is ToolForm.LLAMA):
            continue
        backend = byte_backend()
        if is_special is not None:
            backend.add_tokens([AddedToken(mark, special=is_special) for mark in form.marks])
            backend.add_tokens([AddedToken("<think>", special=False)])
        tokenizer = Tokenizer(backend, TextRules(bos_id=None, eos_ids=[EOS], add_bos=False))
        tools = Tools(form, functions, "tools[{}]", must, only, either)
        grammar = call_grammar(tools, tokenizer, {"enum": [["yes"]]} if either else None)
        for text, needs in cases.items():
            constraint, ids = tokenizer.constraint(grammar), tokenizer.encode(text)
            fits = all(constraint.allowed(ids[:at])[token] for at, token in enumerate(ids))
            fits = fits and bool(constraint.allowed(ids)[EOS])
            allowed = {
                "text": not (must or either),
                "format": either,
                "text, format": not must,
                "one": True,
                "two": not only,
                "text, one": not (must or either),
                "text, two": not (must or either or only),
                "": False,
            }[needs]
            assert fits == allowed, (text, is_special, must, only, either)


def test_functions_that_are_too_much_together_are_one_line() -> None:
    tokenizer = Tokenizer(byte_backend(), TextRules(bos_id=None, eos_ids=[EOS], add_bos=False))
    long = {"properties": {"a": {"const": "x" * 50_000}}}
    functions = [(index, Function(f"f{index}", parameters=long, strict=True)) for index in range(4)]
    with pytest.raises(UsageError, match="at most 131072 are read"):
        call_grammar(Tools(ToolForm.HERMES, functions, "tools[{}]"), tokenizer)
