"""What a checkpoint states in words and numbers, through one door.

Every JSON file of a checkpoint, and the fields of a GGUF file that mean the same, are read here: no more bytes than
such a file can need, no deeper than Python can follow, and each key that decides something of its own type and within
its range. What is wrong is said in one line that names the file and the key.

Whether an id belongs to the vocabulary is asked later, when the vocabulary is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from starsd_edge.errors import UsageError

_MOST_BYTES = 16 << 20
_MOST_TOKENIZER_BYTES = 64 << 20
"""Vocabularies of 260,000 pieces take 35 MB as tokenizer.json."""
_ROOT = "`$"

Length = Annotated[int, Meta(ge=1, le=1 << 30)]
Width = Annotated[int, Meta(ge=1, le=1 << 20)]
Layers = Annotated[int, Meta(ge=1, le=4096)]
Above0 = Annotated[float, Meta(gt=0.0, le=1e18)]
Id = Annotated[int, Meta(ge=-(1 << 31), le=1 << 32)]
Ids = Id | list[Id] | None


class RopeNumbers(msgspec.Struct, kw_only=True):
    """`rope_parameters` or `rope_scaling`; which kinds are exported is decided elsewhere."""

    rope_theta: Above0 | None = None
    factor: Above0 | None = None
    attention_factor: Above0 | None = None
    original_max_position_embeddings: Length | None = None
    max_position_embeddings: Length | None = None
    short_factor: list[Above0] | None = None
    long_factor: list[Above0] | None = None
    low_freq_factor: Above0 | None = None
    high_freq_factor: Above0 | None = None
    beta_fast: Above0 | None = None
    beta_slow: Above0 | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    partial_rotary_factor: float | None = None


class ModelNumbers(msgspec.Struct, kw_only=True):
    """The keys of config.json that decide what a model of a supported family computes. The defaults stand for a key
    that is not there and are never used.
    """

    vocab_size: Length = 1
    hidden_size: Width = 1
    intermediate_size: Width = 1
    num_hidden_layers: Layers = 1
    num_attention_heads: Width = 1
    num_key_value_heads: Width | None = None
    head_dim: Width | None = None
    max_position_embeddings: Length = 1
    rms_norm_eps: Above0 = 1.0
    hidden_act: str = ""
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: Length | None = None
    use_sliding_window: bool | None = False
    max_window_layers: int = 0
    layer_types: list[str] | None = None
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: Layers = 1
    rope_theta: Above0 | None = None
    rope_scaling: RopeNumbers | None = None
    rope_parameters: RopeNumbers | None = None
    original_max_position_embeddings: Length | None = None
    partial_rotary_factor: float | None = None
    bos_token_id: Id | None = None
    eos_token_id: Ids = None


class Generation(msgspec.Struct, kw_only=True):
    """generation_config.json."""

    bos_token_id: Id | None = None
    eos_token_id: Ids = None


class AddedToken(msgspec.Struct):
    """A token that is not a piece of text like others."""

    content: str


class TokenizerNotes(msgspec.Struct, kw_only=True):
    """tokenizer_config.json."""

    added_tokens_decoder: dict[str, AddedToken] = {}


class GgufFields(msgspec.Struct, kw_only=True):
    """Fields of a GGUF file outside its architecture's."""

    general_architecture: str = msgspec.field(name="general.architecture", default="")
    split_no: int = msgspec.field(name="split.no", default=0)
    split_count: Annotated[int, Meta(ge=0, le=99999)] = msgspec.field(name="split.count", default=1)
    split_tensors: int | None = msgspec.field(name="split.tensors.count", default=None)
    template: str | None = msgspec.field(name="tokenizer.chat_template", default=None)
    model: str = msgspec.field(name="tokenizer.ggml.model", default="")
    splitting: str = msgspec.field(name="tokenizer.ggml.pre", default="")
    tokens: list[str] = msgspec.field(name="tokenizer.ggml.tokens", default=[])
    merges: list[str] = msgspec.field(name="tokenizer.ggml.merges", default=[])
    scores: list[float] = msgspec.field(name="tokenizer.ggml.scores", default=[])
    types: list[int] = msgspec.field(name="tokenizer.ggml.token_type", default=[])
    bos: int | None = msgspec.field(name="tokenizer.ggml.bos_token_id", default=None)
    eos: int | None = msgspec.field(name="tokenizer.ggml.eos_token_id", default=None)
    eot: int | None = msgspec.field(name="tokenizer.ggml.eot_token_id", default=None)
    add_bos: bool = msgspec.field(name="tokenizer.ggml.add_bos_token", default=False)
    add_space: bool = msgspec.field(name="tokenizer.ggml.add_space_prefix", default=False)


class GgufNumbers(msgspec.Struct, kw_only=True):
    """Fields of a GGUF file's architecture, their names without it."""

    context: Length = msgspec.field(name="context_length", default=1)
    hidden: Width = msgspec.field(name="embedding_length", default=1)
    layers: Layers = msgspec.field(name="block_count", default=1)
    inner: Width = msgspec.field(name="feed_forward_length", default=1)
    heads: Width = msgspec.field(name="attention.head_count", default=1)
    kv_heads: Width = msgspec.field(name="attention.head_count_kv", default=1)
    keys: Width = msgspec.field(name="attention.key_length", default=1)
    values: Width = msgspec.field(name="attention.value_length", default=1)
    eps: Above0 = msgspec.field(name="attention.layer_norm_rms_epsilon", default=1.0)
    rotated: Width = msgspec.field(name="rope.dimension_count", default=1)
    base: Above0 = msgspec.field(name="rope.freq_base", default=1.0)
    linear: float = msgspec.field(name="rope.scale_linear", default=1.0)
    scaling: str = msgspec.field(name="rope.scaling.type", default="")
    factor: float = msgspec.field(name="rope.scaling.factor", default=1.0)
    original: Length = msgspec.field(name="rope.scaling.original_context_length", default=1)
    beta_fast: Above0 = msgspec.field(name="rope.scaling.yarn_beta_fast", default=1.0)
    beta_slow: Above0 = msgspec.field(name="rope.scaling.yarn_beta_slow", default=1.0)
    vocabulary: Any = msgspec.field(name="vocab_size", default=None)  # the embedding's shape decides


GGUF_NUMBERS = frozenset(field.encode_name for field in msgspec.structs.fields(GgufNumbers))
"""Names of these fields: what is read of a GGUF file's architecture."""


def read_json(path: Path, schema: type[msgspec.Struct] | None = None) -> dict[str, Any]:
    """The JSON object in a file of a checkpoint.

    Args:
        schema: the keys that are used of it, each with its type; others are left as they are.

    Raises:
        UsageError: there is none, or a key is of another type or out of its range.
    """
    most = _MOST_TOKENIZER_BYTES if path.name == "tokenizer.json" else _MOST_BYTES
    try:
        with path.open("rb") as stream:
            data = stream.read(most + 1)
        if len(data) > most:
            raise UsageError(
                f"{path} is larger than {most >> 20} MiB, which no such file is: fetch the checkpoint again"
            )
        contents = json.loads(data.decode("utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path.parent} is no checkpoint: it has no {path.name}") from None
    except RecursionError:
        raise UsageError(
            f"{path} cannot be read (its brackets are nested too deep): fetch the checkpoint again"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({error}): fetch the checkpoint again") from None
    if not isinstance(contents, dict):
        raise UsageError(f"{path} is not what its name says (no JSON object): fetch the checkpoint again")
    return contents if schema is None else require_types(path, contents, schema)


def require_types(
    path: Path, contents: dict[str, Any], schema: type[msgspec.Struct], prefix: str = ""
) -> dict[str, Any]:
    """The contents, once every key of the schema that is there has its type.

    Args:
        path: of the file, for messages.
        prefix: what the file's names have before the schema's.

    Raises:
        UsageError: names the file, the key and what it should be.
    """
    try:
        msgspec.convert(contents, schema)
    except msgspec.ValidationError as error:
        wanted, _, place = str(error).partition(" - at ")
        key = prefix + place.removeprefix(_ROOT).removeprefix(".").rstrip("`")
        raise UsageError(f"{path} has a wrong {key} ({wanted}): correct it, or fetch the checkpoint again") from None
    return contents


def known_keys(contents: Mapping[str, Any]) -> dict[str, Any]:
    """What of a config.json decides what the model computes. The rest says how a model was saved, trained or run, and
    could change how transformers runs it here.
    """
    return {name: value for name, value in contents.items() if name in ModelNumbers.__struct_fields__}
