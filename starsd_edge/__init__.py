"""One draft model speeds up many language models on edge devices, without changing a token of what they say.

Libraries that speak by themselves are told not to when any package of ours is imported, which every process of this
program does before it imports one of them: each has a variable for that, and reads it only once. Children inherit it.
Who wants to take part in what a library collects sets its variable, which is then left as it is.
"""

import os

__version__ = "0.1.0"

SWITCHES = {
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "DISABLE_SAFETENSORS_CONVERSION": "1",
    "DO_NOT_TRACK": "1",
}
"""ONNX Runtime (from 1.32 on it looks up a host of its vendor some seconds after a model is loaded, and keeps a device
id and a database of events in the home directory), huggingface_hub (what is used of it, and whether there is a newer
one), transformers (asks the Hub to convert checkpoints), and what several other libraries heed.
"""

for _name, _value in SWITCHES.items():
    os.environ.setdefault(_name, _value)
