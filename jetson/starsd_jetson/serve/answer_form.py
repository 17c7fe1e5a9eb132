"""The form that an answer is to have: calls of functions, JSON, or one of the two, and the grammar that sees to it.

An answer is held to a grammar where a call is asked for (`tool_choice`), where there may be one at most, where a
function is strict, or where what is no call is to be JSON. Otherwise the model writes what it likes, and calls are read
from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starsd_edge.errors import UsageError
from starsd_edge.text.grammar import Grammar, json_grammar, json_rule, lark_grammar
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.answers import Request
from starsd_jetson.serve.schema import ApiError, ChatBody, Function, ResponsesBody
from starsd_jetson.serve.tool_calls import ToolCallReader, ToolForm, form_of

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_TAG = re.compile(r"<[^<>\[]+>")
"""Tokens that tokenizers keep as one and that the parser takes for special ones. None of them is a part of a mark."""
_SPACE = r"\s\x1c-\x1f"
"""What `str.lstrip` takes away, as the parser writes it."""
_TEXT = r"/(.|\n)+/"


@dataclass(frozen=True)
class Tools:
    """The functions that an answer may call, and how its calls are read.

    Attributes:
        functions: that may be called.
        place: of a function in the request, for errors: "tools[{}]".
        must_call: the answer is a call, or several.
        only_one: no second call.
        is_either: the answer is calls, or a text that has a format of its own.
    """

    form: ToolForm
    functions: Sequence[tuple[int, Function]]
    place: str
    must_call: bool = False
    only_one: bool = False
    is_either: bool = False

    @property
    def is_held(self) -> bool:
        """Whether an answer has to be held to a grammar."""
        return self.must_call or self.only_one or any(function.strict for _, function in self.functions)

    def reader(self) -> ToolCallReader:
        """A reader for one answer."""
        names = {function.name for _, function in self.functions}
        return self.form.reader(names, is_either=self.is_either)


@dataclass(frozen=True)
class Form:
    """JSON that an answer is to be.

    Attributes:
        schema: that it has to fit; None for any object.
        param: the field that asks for it.
    """

    schema: Mapping[str, Any] | bool | None
    param: str


def tools_of(body: ChatBody | ResponsesBody, tokenizer: Tokenizer) -> Tools | None:
    """What a request says of functions; None where none may be called.

    Raises:
        ApiError: the model cannot call functions, or not these.
    """
    if isinstance(body, ChatBody):
        given, place = [tool.function for tool in body.tools or ()], "tools[{}].function"
    else:
        given, place = list(body.tools or ()), "tools[{}]"
    _check_names(given, place)
    choice = body.tool_choice
    name = None if isinstance(choice, str) else choice.name
    functions = [(index, each) for index, each in enumerate(given) if name in (None, each.name)]
    if not functions and choice not in ("auto", "none"):
        what = "no function" if name is None else f"no function {name!r}"
        raise ApiError(f"tool_choice asks for a call, and there is {what} in tools", "tool_choice")
    if not functions or choice == "none":
        return None
    chat = tokenizer.chat
    form = form_of(chat.source) if chat is not None and chat.takes_tools else None
    if form is None:
        raise ApiError("this model's chat template has no tools, or in a form that is not read here", "tools")
    only_one = name is not None or not body.parallel_tool_calls
    return Tools(form, functions, place, must_call=choice != "auto", only_one=only_one)


def _check_names(functions: Sequence[Function], place: str) -> None:
    names = set[str]()
    for index, function in enumerate(functions):
        if not function.name or function.name in names:
            why = "is the name of another function" if function.name else "is no name"
            raise ApiError(f"{function.name!r} {why}", f"{place.format(index)}.name")
        names.add(function.name)


def template_tool(function: Function) -> Mapping[str, Any]:
    """A function as chat templates take it."""
    fields = {"name": function.name, "description": function.description, "parameters": function.parameters}
    given = {name: value for name, value in fields.items() if value is not None}
    return {"type": "function", "function": given}


def form_asked_for(kind: str, schema: Mapping[str, Any] | bool | None, param: str) -> Form | None:
    """The form that an answer is to have; None for any text.

    Raises:
        ApiError: there is a schema where none belongs, or none where one does.
    """
    if (schema is not None) != (kind == "json_schema"):
        raise ApiError(f"{param} of type json_schema needs a schema, and no other has one", param)
    return None if kind == "text" else Form(schema, param)


def hold(
    request: Request, tools: Tools | None, form: Form | None, tokenizer: Tokenizer
) -> tuple[Request, Tools | None]:
    """The request with what its answer is held to, and its tools with how they are read then.

    Raises:
        ApiError: the answer cannot be held to what is asked for.
    """
    form = None if tools is not None and tools.must_call else form  # what is a call has no other form
    if form is None and (tools is None or not tools.is_held):
        return request, tools
    if request.ignore_eos:
        raise ApiError("an answer held to a form ends with it: leave ignore_eos out", "ignore_eos")
    try:
        if tools is None:
            grammar = json_grammar(None if form is None else form.schema)
        elif form is None:
            grammar = call_grammar(tools, tokenizer)
        else:
            json_grammar(form.schema)  # so that what is wrong with it is known by itself
            tools = _either(tools, form)
            grammar = call_grammar(tools, tokenizer, form.schema)
        tokenizer.constraint(grammar)  # so that what cannot be used is known now
    except UsageError as error:
        raise ApiError(str(error), "tools" if form is None else form.param) from None
    return replace(request, grammar=grammar), tools


def _either(tools: Tools, form: Form) -> Tools:
    """Tools of an answer that calls them, or has a form."""
    if tools.form is ToolForm.LLAMA:
        raise ApiError(
            f"this model writes its calls as JSON, so they cannot be told from JSON of a {form.param}: leave it out, "
            'or give a tool_choice other than "auto"',
            form.param,
        )
    return replace(tools, is_either=True)


def call_grammar(tools: Tools, tokenizer: Tokenizer, schema: Mapping[str, Any] | bool | None = None) -> Grammar:
    """The grammar of an answer that may call functions, or must.

    Args:
        schema: of an answer that is no call, where `tools.is_either`.

    Raises:
        ApiError: parameters of a function cannot be held to.
        UsageError: the functions and the schema together are too much.
    """
    called = [f"call_{index}" for index, _ in tools.functions]
    rules = [_start(tools), f"call: {' | '.join(called)}", *_marks(tools.form, tokenizer)]
    rules += ['sp: " "', 'nl: "\\n"', f"TEXT: {_TEXT}", f"text: TEXT{_tags(tools.form, tokenizer)}"]
    if tools.is_either:
        rules.append(f"content: {json_rule(_ANY_OBJECT if schema is None else schema)}")
    for index, function in tools.functions:
        rules.append(f"call_{index}: {_object(tools.form, function)} arguments_{index} sp? " + '"}"')
        rules.append(f"arguments_{index}: {json_rule(_arguments(tools, index, function))}")
    return lark_grammar("\n".join(rules), "grammar of the functions")


def _start(tools: Tools) -> str:
    """The rule of a whole answer: calls, or what else it may be."""
    one = tools.only_one
    if tools.form is ToolForm.HERMES:
        rest = "nl? call nl? end"
        calls = f"begin {rest}" if one else f"begin {rest} (nl? begin {rest})*"
        text = f"text* (met {rest})?" if one else f"(text | met {rest})*"
    elif tools.form is ToolForm.MISTRAL:
        rest = f'sp? "[" call {"" if one else _more(",")} "]"'
        calls, text = f"begin {rest}", f"text* (met {rest})?"
    else:
        calls = f"begin? call {'' if one else _more(';')}"
        text = f"({calls} | begun text*)?"
    if tools.must_call:
        return f"start: {calls}"
    return f"start: {calls} | content" if tools.is_either else f"start: {text}"


def _more(separator: str) -> str:
    return f'("{separator}" sp? call)*'


def _marks(form: ToolForm, tokenizer: Tokenizer) -> list[str]:
    """The rules of what stands around calls, which may be a token of its own or be spelt."""
    names = ("begin", "end")
    rules = [f"{name}: {_mark(mark, tokenizer)}" for name, mark in zip(names, form.marks, strict=False)]
    if form is ToolForm.LLAMA:  # a text that begins like no call
        begun = f"/[{_SPACE}]*([^{_SPACE}{{<]|<[^|])(.|\\n)*/"
        return [*rules, f"BEGUN: {begun}", f"begun: BEGUN{_tags(form, tokenizer)}"]
    begin = json.dumps(form.marks[0])
    # Of what may follow a text, the parser takes a lazy one as soon as it is there: no text goes on past a mark.
    return [*rules, f"met: spelt {_token(form.marks[0], tokenizer)}", f"spelt[lazy]: /(.|\\n)*/ {begin}"]


def _mark(mark: str, tokenizer: Tokenizer) -> str:
    return json.dumps(mark) + _token(mark, tokenizer)


def _token(text: str, tokenizer: Tokenizer) -> str:
    """A token as an alternative; nothing where there is none."""
    token = tokenizer.id_of(text)
    return "" if token is None else f" | <[{token}]>"


def _tags(form: ToolForm, tokenizer: Tokenizer) -> str:
    """Tokens of a text that the parser does not take for text, as an alternative: <think>, for instance."""
    ids = [
        token
        for token, text in tokenizer.added_tokens.items()
        if _TAG.fullmatch(text) and text not in form.marks and not tokenizer.is_silent(token)
    ]
    return f" | <[{','.join(map(str, ids))}]>" if ids else ""


def _object(form: ToolForm, function: Function) -> str:
    """The beginning of a call, up to its arguments."""
    key = "parameters" if form is ToolForm.LLAMA else "arguments"
    parts = ('{"name":', f"{json.dumps(function.name, ensure_ascii=False)},", f'"{key}":')
    return " sp? ".join(json.dumps(part, ensure_ascii=False) for part in parts) + " sp?"


def _arguments(tools: Tools, index: int, function: Function) -> Mapping[str, Any]:
    """The schema of a call's arguments. Only where a call is asked for, or the function is strict, it is its own."""
    if not (tools.must_call or function.strict):
        return _ANY_OBJECT
    param = f"{tools.place.format(index)}.parameters"
    schema = _NO_PARAMETERS if function.parameters is None else function.parameters
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise ApiError("the parameters of a function are an object", param)
    schema = {**schema, "type": "object"}
    try:
        json_grammar(schema)
    except UsageError as error:
        raise ApiError(str(error), param) from None
    return schema
