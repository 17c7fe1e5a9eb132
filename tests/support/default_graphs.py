"""The default model's bundles for TensorRT, one of each kind, exported together.

What takes long is tracing the model. How its weights are stored changes their numbers and, after the trace, the nodes
that read them; so here one trace of each KV strategy serves all kinds, with each kind's own weights in it. Everything
else is done by `export_bundle`, the parity gate with it, which would find a weight that was left behind.
"""

from __future__ import annotations

import functools
import hashlib
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
from starsd_export.half_graph import halved
from starsd_export.pipeline import ExportOptions, export_bundle
from starsd_export.tensorrt_graph import KV_STRATEGIES, TENSORRT_WEIGHTS, TensorrtOptions
from tests.support.bundle_store import made_once, place_of

CONTEXT = 1024
"""Of the fixed caches, on which neither the size of an engine nor the time to build it depends much."""
KINDS = tuple((strategy, weights) for strategy in KV_STRATEGIES for weights in TENSORRT_WEIGHTS)
"""KV strategy and weights."""


def default_graphs(model_file: Path) -> dict[tuple[str, str], Bundle]:
    """By `KINDS`: those that the sources as they are have made before, and new ones."""
    with _traced_once():
        return {kind: _bundle(model_file, *kind) for kind in KINDS}


def graph_options(strategy: str, weights: str) -> TensorrtOptions:
    """As users get them, but for the search of int4's numbers, which takes minutes and leaves the graph as it is."""
    context = CONTEXT if strategy == "inplace" else None
    return replace(TensorrtOptions.usual(weights), kv_strategy=strategy, context=context, calibration="none")


def _bundle(model_file: Path, strategy: str, weights: str) -> Bundle:
    place = place_of(f"smollm2-135m-tensorrt-{weights}-{strategy}")
    options = ExportOptions(weights, name=place.name, tensorrt=graph_options(strategy, weights))
    return made_once(place, load_bundle, lambda: export_bundle(model_file, place, options))


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
        key = (args, tuple(sorted(others.items())))
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
