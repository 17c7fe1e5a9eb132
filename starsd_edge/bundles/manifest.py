"""The manifest of a bundle: what the directory holds, what it was made from, and the hash of every file.

A bundle is a directory:

    manifest.json       this schema
    model.onnx          graph, with its weights beside it in model.onnx.data
    tokenizer.json      for the `tokenizers` library
    golden.npz          what the graph gave when it was exported; bundles of earlier versions have none
    chat_template.jinja optional
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

SCHEMA_VERSION = 1
GRAPH_REVISION = 2
"""Raised when the exporter writes another graph for the same model, so that bundles of an older one can be told.

1: a redundant transpose stands before the output head, with which ONNX Runtime 1.23 gives wrong logits.
2: without it.
"""

Positive = Annotated[int, Meta(ge=1)]
FeatureKind = Literal["last_hidden", "fused_states", "none"]
"""What a target gives a draft head: the hidden state after the final norm, or three states fused for EAGLE-3."""


class ModelShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The numbers of the model that a runtime needs."""

    architecture: str
    n_layers: Positive
    n_heads: Positive
    n_kv_heads: Positive
    head_dim: Positive
    hidden_size: Positive
    vocab_size: Positive
    """Rows of the output head, padding included."""
    tokenizer_size: Positive
    """Ids the tokenizer knows; ids from here to vocab_size are padding and never chosen."""
    max_context: Positive

    @property
    def chosen_ids(self) -> int:
        """Ids that may be chosen: those below it, which the tokenizer and the model both know."""
        return min(self.tokenizer_size, self.vocab_size)


class Fingerprints(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """sha256 hex digests of what two sides must share; `starsd_edge.bundles.fingerprints` makes them."""

    tokenizer_fp: str
    """Of the tokenizer: drafts as token ids mean the same."""
    source_fp: str
    """Of the checkpoint."""
    feature_fp: str
    """Of checkpoint and kind of features: a head trained on them fits."""


class TensorrtGraph(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a graph for TensorRT stores its weights outside the layers, whose weights `Graph.weights` tells."""

    head: Literal["fp16", "int8", "int4"]
    """Weights of the output head."""
    block: int
    """Inputs of a matrix that share a scale; 0 where all weights are float16."""
    capacity: int = 0
    """Rows of every cache of an `inplace` graph: the context and a tree on top of it; 0 for `append`."""
    embedding: Literal["fp16", "int8"] = "fp16"
    """Weights of the embedding; one matrix with the output head where a model ties them and both are stored alike."""
    wide: list[str] = []
    """With int4 weights: parts of the layers that are int8 all the same."""
    calibration: Literal["none", "own-text"] = "none"
    """With int4 weights: what the scales were searched on."""


class Graph(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The exported graph and its limits: the passes over a tree and a KV cache that `Engine` describes."""

    file: str
    opset: Positive
    kv_strategy: Literal["append", "inplace"]
    kv_dtype: Literal["float16", "float32"]
    weights: Literal["fp32", "fp16", "int8", "int4"]
    feature_kind: FeatureKind
    feature_width: int
    max_tree: Positive
    max_chunk: Positive
    exact_trees: bool
    """False where tree rows differ too much from one-token steps: such bundles draft chains unless told otherwise."""
    revision: Positive = 1
    """`GRAPH_REVISION` of the exporter that made it."""
    tap_layers: list[int] = []
    """"fused_states": the layers whose inputs are fused, as EAGLE counts them."""
    fusion_fp: str = ""
    """"fused_states": sha256 of what fuses them."""
    features_for: str = ""
    """"fused_states": directory name of the head that brought it."""
    tensorrt: TensorrtGraph | None = None
    """Of a graph that engines are built from; None of one for ONNX Runtime."""

    @property
    def weights_file(self) -> str:
        """Where the graph looks for its weights."""
        return f"{self.file}.data"


class PerplexityChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What storing the weights has done to the perplexity on one kind of text."""

    before: float
    """Of the checkpoint."""
    after: float
    tokens: Positive
    """Predicted for either figure."""

    def __str__(self) -> str:
        return f"{self.before:.2f} -> {self.after:.2f} ({self.after / self.before - 1:+.1%})"


class TextRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ids and text that belong to the model, not to a request."""

    bos_id: int | None
    eos_ids: list[int]
    add_bos: bool
    chat_template: str | None = None
    """File name inside the bundle."""
    special_tokens: dict[str, str] | None = None
    """What a template finds as `bos_token`, `eos_token` and so on; None in bundles of earlier versions, whose templates
    find what `bos_id` and the first of `eos_ids` stand for.
    """


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """manifest.json."""

    schema_version: Literal[1]
    name: str
    created_by: str
    """Versions of starsd-edge and of the libraries that made the bundle."""
    source: str
    """File or directory name of the checkpoint (no path), or ORG/NAME@COMMIT on the Hugging Face Hub."""
    licence: str
    model: ModelShape
    fingerprints: Fingerprints
    graph: Graph
    text: TextRules
    parity: dict[str, float]
    """Largest differences the parity gate saw, by check."""
    files: dict[str, str]
    """sha256 of every file of the bundle but this one."""
    fp16_range: dict[str, float | None] = {}
    """Largest activation by layer over the exporter's sample prompts; None where one was not finite. float16 ends at
    65504.
    """
    perplexity: dict[str, PerplexityChange] = {}
    """What int8 and int4 weights changed, by kind of text; the text was not used to find them."""
    notes: list[str] = []
    """One line for each thing about this bundle that a user who knows the checkpoint would not expect."""
