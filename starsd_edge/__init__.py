"""One draft model speeds up many language models on edge devices, without changing a token of what they say.

    import starsd_edge

    with starsd_edge.open_target("smollm2-135m-fp32", hub="ws://desk:8317", key_file="hub.token") as target:
        print(target.answer("Why is the sky blue?").text)

The names of `__all__` are what programs embed; docs/python.md has more of them. Each is loaded when it is first asked
for, so that this import stays cheap.

Libraries that speak by themselves are told not to when any package of ours is imported, which every process of this
program does before it imports one of them: each has a variable for that, and reads it only once. Children inherit it.
Who wants to take part in what a library collects sets its variable, which is then left as it is.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starsd_edge.errors import StarsdError
    from starsd_edge.hub_process import RunningHub, start_hub
    from starsd_edge.speculation.penalties import Penalties
    from starsd_edge.speculation.sampling import SamplingParams
    from starsd_edge.text.grammar import json_grammar
    from starsd_jetson.answers import Answer, BusyError, Piece, Request
    from starsd_jetson.api import Chat, DraftSettings, OpenTarget, RequestLimits, open_target
    from starsd_jetson.requests import AnswerStream, Requests

__all__ = [
    "Answer",
    "AnswerStream",
    "BusyError",
    "Chat",
    "DraftSettings",
    "OpenTarget",
    "Penalties",
    "Piece",
    "Request",
    "RequestLimits",
    "Requests",
    "RunningHub",
    "SamplingParams",
    "StarsdError",
    "json_grammar",
    "open_target",
    "start_hub",
]
__version__ = "0.1.0"

_PLACES = {
    "Answer": "starsd_jetson.answers",
    "AnswerStream": "starsd_jetson.requests",
    "BusyError": "starsd_jetson.answers",
    "Chat": "starsd_jetson.api",
    "DraftSettings": "starsd_jetson.api",
    "OpenTarget": "starsd_jetson.api",
    "Penalties": "starsd_edge.speculation.penalties",
    "Piece": "starsd_jetson.answers",
    "Request": "starsd_jetson.answers",
    "RequestLimits": "starsd_jetson.api",
    "Requests": "starsd_jetson.requests",
    "RunningHub": "starsd_edge.hub_process",
    "SamplingParams": "starsd_edge.speculation.sampling",
    "StarsdError": "starsd_edge.errors",
    "json_grammar": "starsd_edge.text.grammar",
    "open_target": "starsd_jetson.api",
    "start_hub": "starsd_edge.hub_process",
}

VARIABLE_PREFIX = "STARSD_"
"""Every variable that this program reads begins so."""
CONFIG_VARIABLE = "STARSD_CONFIG"
"""Names the one file that options are taken from."""
SWITCHES = {
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "DISABLE_SAFETENSORS_CONVERSION": "1",
    "USE_HUB_KERNELS": "0",
    "DO_NOT_TRACK": "1",
}
"""ONNX Runtime (from 1.32 on it looks up a host of its vendor some seconds after a model is loaded, and keeps a device
id and a database of events in the home directory), huggingface_hub (what is used of it, and whether there is a newer
one), transformers (asks the Hub to convert checkpoints, and for kernels), and what several other libraries heed.
"""

for _name, _value in SWITCHES.items():
    os.environ[_name] = os.environ.get(_name) or _value


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
