"""From the body of a request to requests of the decode loop, one for each choice.

All that can be refused is refused here, before anything is queued: so a response that has begun does not end in a
refusal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starsd_edge.errors import UsageError
from starsd_edge.speculation.penalties import Penalties
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.answers import Request
from starsd_jetson.api import OpenTarget
from starsd_jetson.serve.answer_form import Tools, form_asked_for, hold, template_tool, tools_of
from starsd_jetson.serve.schema import (
    MAX_CHOICES,
    MAX_STOPS,
    MAX_TOP_LOGPROBS,
    ApiError,
    ChatBody,
    CompletionBody,
    FunctionCall,
    FunctionCallOutput,
    Message,
    ResponseMessage,
    ResponsesBody,
    Sampling,
    convert,
)

COMPLETION_TOKENS = 16
"""Most tokens of a completion whose request names no number, as OpenAI's API has it. Chats go on to the end of the
context.
"""
_MODULUS = 1 << 64
"""Seeds of clients may be negative."""
_DEFAULT_TEMPERATURE = 1.0


@dataclass(frozen=True)
class Prepared:
    """What is to be answered, and how it is to be shown.

    Attributes:
        requests: one for each choice.
        prompts: different prompts among them; choices of one prompt stand together.
        stream: piece by piece.
        include_usage: a stream ends with its usage.
        show_ids: token ids are part of the response.
        show_sources: so is what drafted each part of the text.
        tools: None where the model was offered none.
    """

    requests: tuple[Request, ...]
    prompts: int = 1
    stream: bool = False
    include_usage: bool = False
    show_ids: bool = False
    show_sources: bool = False
    tools: Tools | None = None


class Preparer:
    """Prepares the requests of one target.

    Args:
        target: gives the tokenizer and the limits.
        names: what clients may call the model.
        new_seed: a random seed, for requests that name none.
    """

    def __init__(self, target: OpenTarget, names: Collection[str], new_seed: Callable[[], int]) -> None:
        self._target = target
        self._tokenizer: Tokenizer = target.target.tokenizer
        self._names = names
        self._new_seed = new_seed

    def chat(self, body: ChatBody) -> Prepared:
        """A request for the next message of a chat.

        Raises:
            ApiError: it cannot be answered as it stands.
        """
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError("top_logprobs needs logprobs: true", "top_logprobs")
        top = _checked_top("top_logprobs", body.top_logprobs or 0) if body.logprobs else None
        tools = tools_of(body, self._tokenizer)
        messages = [_message(message, f"messages[{i}]") for i, message in enumerate(body.messages)]
        functions = [template_tool(tool.function) for tool in body.tools or ()]
        prompt = self._chat_prompt(messages, functions if tools else None, "messages")
        if body.return_token_sources and (tools or not body.stream):
            raise ApiError("return_token_sources is for streams without tools", "return_token_sources")
        if body.max_tokens is not None and body.max_completion_tokens is not None:
            raise ApiError("give max_completion_tokens or max_tokens, not both", "max_tokens")
        name = "max_tokens" if body.max_tokens is not None else "max_completion_tokens"
        limit = body.max_tokens if body.max_tokens is not None else body.max_completion_tokens
        form, asked = None, body.response_format
        if asked is not None:
            schema = None if asked.json_schema is None else asked.json_schema.schema
            form = form_asked_for(asked.type, schema, "response_format")
        request = self._request(body, prompt, (name, limit), "messages")
        request, tools = hold(replace(request, logprobs=top, shown=self._shown(tools)), tools, form, self._tokenizer)
        return Prepared(
            _choices(request, body.n),
            stream=body.stream,
            include_usage=_include_usage(body),
            show_ids=body.return_token_ids,
            show_sources=body.return_token_sources,
            tools=tools,
        )

    def completion(self, body: CompletionBody) -> Prepared:
        """A request to go on with texts.

        Raises:
            ApiError: it cannot be answered as it stands.
        """
        top = None if body.logprobs is None else _checked_top("logprobs", body.logprobs)
        limit = ("max_tokens", COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens)
        prompts = self._prompts(body.prompt)
        requests = [replace(self._request(body, prompt, limit, "prompt"), logprobs=top) for prompt in prompts]
        if len(prompts) * body.n > MAX_CHOICES:
            raise ApiError(f"{len(prompts)} prompts and n {body.n}: at most {MAX_CHOICES} answers a request", "n")
        return Prepared(
            tuple(choice for request in requests for choice in _choices(request, body.n)),
            prompts=len(prompts),
            stream=body.stream,
            include_usage=_include_usage(body),
            show_ids=body.return_token_ids,
        )

    def response(self, body: ResponsesBody) -> Prepared:
        """A request of the Responses API.

        Raises:
            ApiError: it cannot be answered as it stands.
        """
        if body.stream_options is not None and body.stream_options.include_usage:
            raise ApiError(
                "include_usage is for chats: a response always has its usage", "stream_options.include_usage"
            )
        asked = bool(body.include) or body.top_logprobs is not None
        top = _checked_top("top_logprobs", body.top_logprobs or 0) if asked else None
        tools = tools_of(body, self._tokenizer)
        functions = [template_tool(tool) for tool in body.tools or ()]
        prompt = self._chat_prompt(_input_messages(body), functions if tools else None, "input")
        request = self._request(body, prompt, ("max_output_tokens", body.max_output_tokens), "input")
        asked_form = None if body.text is None else body.text.format
        form = None if asked_form is None else form_asked_for(asked_form.type, asked_form.schema, "text.format")
        request, tools = hold(replace(request, logprobs=top, shown=self._shown(tools)), tools, form, self._tokenizer)
        return Prepared((request,), stream=body.stream, tools=tools)

    def _shown(self, tools: Tools | None) -> frozenset[int]:
        """The special tokens that have to be read as text."""
        ids = (self._tokenizer.id_of(mark) for mark in (() if tools is None else tools.form.marks))
        return frozenset(token for token in ids if token is not None and self._tokenizer.is_silent(token))

    def _chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], functions: Sequence[Mapping[str, Any]] | None, param: str
    ) -> list[int]:
        if not messages:
            raise ApiError("there is no message", param)
        if not self._tokenizer.has_chat_template:
            raise ApiError("this model has no chat template: use /v1/completions", param)
        try:
            return self._tokenizer.encode_chat(messages, functions)
        except UsageError as error:
            raise ApiError(str(error), param) from None

    def _prompts(self, given: str | list[str | int | list[int]]) -> list[list[int]]:
        if isinstance(given, str):
            return [self._text_prompt(given)]
        if given and all(isinstance(each, int) for each in given):
            return [self._checked_ids(given)]
        if not given or any(isinstance(each, int) for each in given):
            raise ApiError("prompt must be a text, token ids, or a list of texts or of lists of token ids", "prompt")
        return [self._text_prompt(each) if isinstance(each, str) else self._checked_ids(each) for each in given]

    def _text_prompt(self, text: str) -> list[int]:
        try:
            return self._tokenizer.encode(text)
        except UsageError as error:
            raise ApiError(str(error), "prompt") from None

    def _checked_ids(self, ids: Any) -> list[int]:
        if not all(0 <= token < self._tokenizer.size for token in ids):
            raise ApiError(f"token ids of this model go from 0 to {self._tokenizer.size - 1}", "prompt")
        return list(ids)

    def _request(self, body: Sampling, prompt: list[int], limit: tuple[str, int | None], param: str) -> Request:
        if body.model not in self._names:
            known = ", ".join(self._names)
            raise ApiError(f"there is no model {body.model!r} here: {known}", "model", **_NO_MODEL)
        if not prompt:
            raise ApiError("the prompt is empty: give it some text", param)
        room = self._target.context - len(prompt)
        if room <= 0:
            raise ApiError(
                f"the prompt has {len(prompt)} tokens, and with the answer at most {self._target.context} fit",
                param,
                code="context_length_exceeded",
            )
        name, most = limit
        if most is not None and most < 1:
            raise ApiError(f"{name} must be at least 1, not {most}", name)
        sampling = self._sampling(body)
        most = room if most is None else most
        if sampling.min_tokens > most:
            raise ApiError(f"min_tokens {sampling.min_tokens} is more than the {most} that may come", "min_tokens")
        return self._target.request(prompt, sampling, most, _checked_stops(body.stop), body.ignore_eos)

    def _sampling(self, body: Sampling) -> SamplingParams:
        """Each field is checked by itself first, so that a refusal can name it."""
        options: dict[str, Any] = {
            "temperature": _DEFAULT_TEMPERATURE if body.temperature is None else body.temperature,
            "top_p": body.top_p,
            "top_k": 0 if body.top_k == -1 else body.top_k,  # -1 is vLLM's word for all
            "min_p": body.min_p,
            "min_tokens": body.min_tokens,
            "logit_bias": None if body.logit_bias is None else _biases(body.logit_bias),
            "seed": self._new_seed() if body.seed is None else body.seed % _MODULUS,
        }
        given = {
            "repetition": body.repetition_penalty,
            "presence": body.presence_penalty,
            "frequency": body.frequency_penalty,
        }
        options = {name: value for name, value in options.items() if value is not None}
        penalties = {name: value for name, value in given.items() if value is not None}
        for name, value in options.items():
            _checked(name, partial(self._checked_params, **{name: value}))
        for name, value in penalties.items():
            _checked(f"{name}_penalty", partial(Penalties, **{name: value}))
        return SamplingParams(**options, penalties=Penalties(**penalties))

    def _checked_params(self, **options: Any) -> None:
        SamplingParams(**options).check_tokens(self._tokenizer.size)


_NO_MODEL: dict[str, Any] = {"status": 404, "code": "model_not_found"}


def _checked(param: str, check: Callable[[], object]) -> None:
    try:
        check()
    except UsageError as error:
        raise ApiError(str(error), param) from None


def _checked_top(param: str, top: int) -> int:
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise ApiError(f"{param} must lie between 0 and {MAX_TOP_LOGPROBS}, not {top}", param)
    return top


def _checked_stops(stop: str | list[str] | None) -> list[str]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if not all(stops):
        raise ApiError("a stop string must not be empty", "stop")
    if len(stops) > MAX_STOPS:
        raise ApiError(f"at most {MAX_STOPS} stop strings a request, not {len(stops)}", "stop")
    return stops


def _choices(request: Request, n: int) -> tuple[Request, ...]:
    if not 1 <= n <= MAX_CHOICES:
        raise ApiError(f"n must lie between 1 and {MAX_CHOICES}, not {n}", "n")
    return tuple(replace(request, sampling=replace(request.sampling, choice_index=index)) for index in range(n))


def _include_usage(body: ChatBody | CompletionBody) -> bool:
    if body.stream_options is None:
        return False
    if not body.stream:
        raise ApiError("stream_options is for streams: give stream: true, or leave it out", "stream_options")
    return body.stream_options.include_usage


def _biases(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    for token in given:
        if not (token.isascii() and token.isdecimal()):
            raise ApiError(f"logit_bias takes token ids, and {token!r} is none", "logit_bias")
    return tuple((int(token), bias) for token, bias in given.items())


def _message(message: Message, param: str) -> Mapping[str, Any]:
    """A message as chat templates take it: content is text, and arguments are objects."""
    role = "system" if message.role == "developer" else message.role
    content = message.content
    text = "\n".join(part.text for part in content) if isinstance(content, list) else content
    if text is None and not message.tool_calls:
        raise ApiError(f"{param}.content is missing", f"{param}.content")
    if message.tool_calls and role != "assistant":
        raise ApiError("only an assistant's message has tool_calls", f"{param}.tool_calls")
    if role == "tool" and message.tool_call_id is None:
        raise ApiError("a tool's message needs its tool_call_id", f"{param}.tool_call_id")
    fields: dict[str, Any] = {"role": role, "content": text or ""}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        fields["tool_calls"] = [
            _call(call.id, call.function.name, call.function.arguments) for call in message.tool_calls
        ]
    return fields


def _call(call_id: str, name: str, arguments: str) -> Mapping[str, Any]:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = arguments
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": value}}


_INPUT_KINDS: Mapping[str, type[Any]] = {
    "message": ResponseMessage,
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
}


def _input_messages(body: ResponsesBody) -> list[Mapping[str, Any]]:
    messages: list[Mapping[str, Any]] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    for index, item in enumerate(items):
        _add_item(messages, item, f"input[{index}]")
    return messages


def _add_item(messages: list[Mapping[str, Any]], item: Mapping[str, Any], param: str) -> None:
    """Calls that follow each other are those of one message."""
    kind = _INPUT_KINDS.get(str(item.get("type", "message")))
    if kind is None:
        raise ApiError(f"input of type {item['type']!r} is not supported", f"{param}.type")
    given = {name: value for name, value in item.items() if value is not None}
    value: Any = convert(given, kind, param)
    if isinstance(value, FunctionCall):
        if not (messages and messages[-1].get("tool_calls")):
            messages.append({"role": "assistant", "content": "", "tool_calls": []})
        messages[-1]["tool_calls"].append(_call(value.call_id, value.name, value.arguments))
        return
    is_result = isinstance(value, FunctionCallOutput)
    content = value.output if is_result else value.content
    text = "\n".join(part.text for part in content) if isinstance(content, list) else content
    if is_result:
        messages.append({"role": "tool", "content": text, "tool_call_id": value.call_id})
    else:
        messages.append({"role": "system" if value.role == "developer" else value.role, "content": text})
