"""The bodies of requests: what is taken, what is harmless, what is refused.

Nothing is ignored. A field that is not understood is refused by its name, because an answer that does not do what was
asked for looks like one that does. Three things are let through without effect: null, which means "not given";
`HARMLESS`, which describes the request and changes no answer; and a value of `NEUTRAL`, which asks for what happens
anyway.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

HARMLESS = frozenset(
    {"metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "user"}
)
"""Fields that say who asks, or how a cache of OpenAI's is to be used."""
NEUTRAL: Mapping[str, Sequence[Any]] = {
    "background": (False,),
    "best_of": (1,),
    "echo": (False,),
    "include": ([],),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "truncation": ("disabled",),
}
"""Fields that are not supported, with the values that ask for nothing."""
MAX_CHOICES = 16
"""Answers of one request."""
MAX_STOPS = 16
"""Stop strings of one request."""
MAX_TOP_LOGPROBS = 20
"""Likeliest tokens that are named beside each token."""


class ApiError(Exception):
    """A refusal or a failure, in the form of OpenAI's errors.

    Attributes:
        status: of the HTTP response.
        param: the field that is at fault, as a path like "messages[0].content".
        code: for programs.
        headers: of the response.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        status: HTTPStatus = HTTPStatus.BAD_REQUEST,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON object."""
        kind = _ERROR_TYPES.get(self.status, _BAD_REQUEST)
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


_ERROR_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.INTERNAL_SERVER_ERROR: "server_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "server_error",
}
_BAD_REQUEST = "invalid_request_error"


class Strict(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An object whose fields are all known."""


class TextPart(Strict, tag_field="type", tag="text"):
    """Text as one part of a message."""

    text: str


class InputText(Strict, tag_field="type", tag="input_text"):
    """The same, in the Responses API."""

    text: str


class OutputText(Strict, tag_field="type", tag="output_text"):
    """What an earlier response said."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Any] | None = None


class CalledFunction(Strict):
    """A call that the model made."""

    name: str
    arguments: str


class ToolCall(Strict, kw_only=True):
    """The same, with what its result refers to."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"
    index: int | None = None


class Message(Strict, kw_only=True):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    annotations: list[Any] = []
    """Of an answer that is sent back as it came."""


class Function(Strict):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict, kw_only=True):
    """A tool of a chat."""

    function: Function
    type: Literal["function"]


class ResponseTool(Function, kw_only=True):
    """A tool of the Responses API."""

    type: Literal["function"]


class FunctionName(Strict):
    """Which function."""

    name: str


class NamedTool(Strict, kw_only=True):
    """The function that a chat must call."""

    function: FunctionName
    type: Literal["function"]

    @property
    def name(self) -> str:
        """Of the function."""
        return self.function.name


class NamedFunction(FunctionName, kw_only=True):
    """The function that a response must call."""

    type: Literal["function"]


class ResponseMessage(Strict, kw_only=True):
    """A message in the input of the Responses API."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[InputText | OutputText]
    type: Literal["message"] = "message"
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class FunctionCall(Strict, kw_only=True):
    """A call that an earlier response made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None


class FunctionCallOutput(Strict, kw_only=True):
    """What came of it."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[InputText]
    id: str | None = None
    status: str | None = None


class JsonSchema(Strict, kw_only=True):
    """A schema with its name. An answer is held to it whether or not it is called strict."""

    name: str
    schema: dict[str, Any] | bool
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Strict, kw_only=True):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class TextFormat(Strict, kw_only=True):
    """The same in the Responses API, where the fields of a schema are its own."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseText(Strict):
    """Of the Responses API."""

    format: TextFormat | None = None


class StreamOptions(Strict):
    """What else a stream carries."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


Stops: TypeAlias = str | list[str]
ToolMode: TypeAlias = Literal["auto", "none", "required"]
TokenIds: TypeAlias = list[int]


class Sampling(Strict, kw_only=True):
    """What the three kinds of request share. `top_k`, `min_p`, `repetition_penalty`, `min_tokens` and `ignore_eos` are
    extensions; they mean what the options of `run-target` mean.
    """

    model: str
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    min_tokens: int | None = None
    ignore_eos: bool = False
    seed: int | None = None
    stop: Stops | None = None


class ChatBody(Sampling, kw_only=True):
    """`/v1/chat/completions`."""

    messages: list[Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int = 1
    logprobs: bool = False
    top_logprobs: int | None = None
    stream_options: StreamOptions | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolMode | NamedTool = "auto"
    parallel_tool_calls: bool = True
    response_format: ResponseFormat | None = None
    return_token_ids: bool = False
    return_token_sources: bool = False


class CompletionBody(Sampling, kw_only=True):
    """`/v1/completions`. The ids of tokens come first: a list of them is no list of texts."""

    prompt: str | list[str | int | TokenIds]
    max_tokens: int | None = None
    n: int = 1
    logprobs: int | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False


class ResponsesBody(Sampling, kw_only=True):
    """`/v1/responses`."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    top_logprobs: int | None = None
    stream_options: StreamOptions | None = None
    text: ResponseText | None = None
    metadata: dict[str, str] = {}
    """Part of the response."""
    tools: list[ResponseTool] | None = None
    tool_choice: ToolMode | NamedFunction = "auto"
    parallel_tool_calls: bool = True


Body = TypeVar("Body", bound=Strict)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `([^`]*)`")
_PLACE = re.compile(r" - at `\$\.?(.*)`$")

_HINTS = {
    r".*content.*\.type": "only text is supported",
    r"tool.*\.type": "only functions are supported",
    r"tool_choice": 'it is "auto", "none", "required" or an object that names a function',
}
"""What is said beside an error, by its place."""


def parse_body(data: bytes, kind: type[Body]) -> Body:
    """The body of a request.

    Raises:
        ApiError: it is no JSON object, or has a field that is wrong or not supported.
    """
    try:
        fields = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ApiError("the body is not valid JSON") from None
    if not isinstance(fields, dict):
        raise ApiError("the body must be a JSON object")
    harmless = HARMLESS - set(kind.__struct_fields__)
    given = {name: value for name, value in fields.items() if value is not None and name not in harmless}
    for name in given.keys() & NEUTRAL.keys() - set(kind.__struct_fields__):
        _require_neutral(name, given.pop(name))
    if isinstance(given.get("messages"), list):
        given["messages"] = [_without_nulls(message) for message in given["messages"]]
    return convert(given, kind)


def convert(value: Any, kind: type[Body], place: str = "") -> Body:
    """An object of a request as its type.

    Args:
        place: its path in the body.

    Raises:
        ApiError: it does not fit.
    """
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _explained(str(error), place) from None


def _explained(error: str, place: str) -> ApiError:
    found = _PLACE.search(error)
    path = ".".join(part for part in (place, found[1].partition("[...]")[0] if found else "") if part)
    unknown = _UNKNOWN_FIELD.match(error)
    if unknown:
        path = f"{path}.{unknown[1]}" if path else unknown[1]
        return ApiError(f"{path} is not supported: leave it out", path, code="unsupported_parameter")
    reason = _PLACE.sub("", error)
    reason += next((f" ({hint})" for form, hint in _HINTS.items() if re.fullmatch(form, path)), "")
    if "missing required field" in reason:
        name = reason.rpartition(" ")[2].strip("`")
        path = f"{path}.{name}" if path else name
        return ApiError(f"{path} is missing", path, code="missing_required_parameter")
    return ApiError(f"{path or 'the body'}: {reason[:1].lower()}{reason[1:]}", path or None, code="invalid_value")


def _require_neutral(name: str, value: Any) -> None:
    if not any(value is each or (type(value) is type(each) and value == each) for each in NEUTRAL[name]):
        accepted = " or ".join(msgspec.json.encode(each).decode() for each in NEUTRAL[name])
        raise ApiError(f"{name} is not supported: leave it out (or {accepted})", name, code="unsupported_parameter")


def _without_nulls(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    return {name: value for name, value in message.items() if value is not None}


def to_json_value(value: Strict | str) -> Any:
    """A part of a request as it is written in JSON."""
    return msgspec.to_builtins(value)
