"""The default model's bundles for TensorRT, one of each kind, exported together.

One kind has all the layers. The others have the first few of them, with the same widths and weights: the layers that
follow give an engine the same products again, for many times the work.

What takes long is tracing the model. How its weights are stored changes their numbers and, after the trace, the nodes
that read them; so here one trace of each KV strategy serves all kinds, with each kind's own weights in it. Everything
else is done by `export_bundle`, the parity gate with it, which would find a weight that was left behind.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir
import pytest
from transformers import PreTrainedModel

import starsd_export.pipeline as pipeline
import starsd_export.tensorrt_graph as tensorrt_graph
from starsd_edge.bundles.bundle import Bundle, load_bundle
from starsd_export.checkpoint import open_checkpoint
from starsd_export.half_graph import halved
from starsd_export.pipeline import ExportOptions, export_bundle
from starsd_export.tensorrt_graph import KV_STRATEGIES, TENSORRT_WEIGHTS, TensorrtOptions
from tests.support.bundle_store import made_once, place_of

CONTEXT = 1024
"""Of the fixed caches, on which neither the size of an engine nor the time to build it depends much."""
LAYERS = 4
"""More than are traced, so that some are repeated (see `starsd_export.repeated_layers`)."""


@dataclass(frozen=True)
class Kind:
    """KV strategy, weights, and whether it has all the layers or `LAYERS`."""

    strategy: str
    weights: str
    whole: bool = False

    def __str__(self) -> str:
        return "-".join([self.strategy, self.weights, *(["whole"] if self.whole else [])])


KINDS = tuple(Kind(strategy, weights) for strategy in KV_STRATEGIES for weights in TENSORRT_WEIGHTS)
WHOLE = Kind("append", "fp16", whole=True)


def default_graphs(model_file: Path, scratch: Path) -> dict[Kind, Bundle]:
    """Of `KINDS` and `WHOLE`: those that the sources as they are have made before, and new ones.

    Args:
        scratch: a directory for a checkpoint of the first layers.
    """
    with _traced_once():
        shallow = write_first_layers(model_file, scratch / f"smollm2-135m-{LAYERS}-layers")
        return {kind: _bundle(model_file if kind.whole else shallow, kind) for kind in (*KINDS, WHOLE)}


def write_first_layers(model_file: Path, directory: Path) -> Path:
    """A checkpoint directory of the model with its first `LAYERS` layers."""
    checkpoint = open_checkpoint(model_file)
    model = checkpoint.load()
    model.base_model.layers = model.base_model.layers[:LAYERS]
    model.config.num_hidden_layers = LAYERS
    model.save_pretrained(directory)
    (directory / "tokenizer.json").write_text(json.dumps(checkpoint.tokenizer), encoding="utf-8")
    return directory


def graph_options(kind: Kind) -> TensorrtOptions:
    """As users get them, but for the search of int4's numbers, which takes minutes and leaves the graph as it is."""
    context = CONTEXT if kind.strategy == "inplace" else None
    usual = TensorrtOptions.usual(kind.weights)
    return replace(usual, kv_strategy=kind.strategy, context=context, calibration="none")


def _bundle(checkpoint: Path, kind: Kind) -> Bundle:
    place = place_of(f"{checkpoint.stem}-tensorrt-{kind.weights}-{kind.strategy}")
    options = ExportOptions(kind.weights, name=place.name, tensorrt=graph_options(kind))
    return made_once(place, load_bundle, lambda: export_bundle(checkpoint, place, options))


@contextmanager
def _traced_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "open_checkpoint", functools.cache(pipeline.open_checkpoint))
        for trace in ("trace_half", "trace_inplace"):
            patch.setattr(tensorrt_graph, trace, _TracedOnce(getattr(tensorrt_graph, trace)))
        yield


@dataclass(frozen=True)
class _Traced:
    """A graph, and where its matrices come from: initialiser by the parameter's name, turned or not."""

    graph: onnx_ir.Model
    sources: dict[str, tuple[str, bool]]


class _TracedOnce:
    """A function that traces a model, which does so once for the same arguments."""

    def __init__(self, trace: Callable[..., onnx_ir.Model]) -> None:
        self._trace = trace
        self._traced: dict[Any, _Traced] = {}

    def __call__(self, model: PreTrainedModel, *args: Any, **others: Any) -> onnx_ir.Model:
        key = (model.config.num_hidden_layers, args, tuple(sorted(others.items())))
        if key not in self._traced:
            graph = self._trace(model, *args, **others)
            self._traced[key] = _Traced(graph, _sources(graph, _parameters(model)))
        traced = self._traced[key]
        return _filled(traced, _parameters(model))


def _parameters(model: PreTrainedModel) -> dict[str, npt.NDArray[np.float16]]:
    with halved(model):  # which leaves the model with rounded weights, as a trace does
        return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def _sources(graph: onnx_ir.Model, parameters: dict[str, npt.NDArray[np.float16]]) -> dict[str, tuple[str, bool]]:
    by_content = {_digest(array): (name, False) for name, array in parameters.items()}
    by_content |= {_digest(array.T): (name, True) for name, array in parameters.items() if array.ndim == 2}
    named = {f"model.{name}": (name, False) for name in parameters}
    sources = {}
    for name, value in graph.graph.initializers.items():
        if value.dtype == onnx_ir.DataType.FLOAT16 and value.const_value is not None and value.const_value.size > 1:
            sources[name] = named.get(name) or by_content[_digest(value.const_value.numpy())]
    return sources


def _filled(traced: _Traced, parameters: dict[str, npt.NDArray[np.float16]]) -> onnx_ir.Model:
    filled = traced.graph.clone()
    for name, (source, turned) in traced.sources.items():
        array = parameters[source].T if turned else parameters[source]
        filled.graph.initializers[name].const_value = onnx_ir.tensor(np.ascontiguousarray(array), name=name)
    return filled


def _digest(array: npt.NDArray[np.float16]) -> bytes:
    return hashlib.sha256(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes()).digest()
