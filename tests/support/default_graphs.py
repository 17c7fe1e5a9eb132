"""The default model's bundles for TensorRT, one of each kind, exported together.

What takes long is tracing the model, and how its weights are stored comes after that: here one trace of each KV
strategy serves all. Everything else is done by `export_bundle`, the parity gate with it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx_ir
import pytest
from transformers import PreTrainedModel

import starsd_export.pipeline as pipeline
import starsd_export.tensorrt_graph as tensorrt_graph
from starsd_edge.bundles.bundle import Bundle, load_bundle
from starsd_edge.errors import BundleError
from starsd_export.pipeline import ExportOptions, export_bundle
from starsd_export.tensorrt_graph import KV_STRATEGIES, TENSORRT_WEIGHTS, TensorrtOptions
from tests.support.bundle_store import place_of

CONTEXT = 1024
"""Of the fixed caches, on which neither the size of an engine nor the time to build it depends much."""
KINDS = tuple((strategy, weights) for strategy in KV_STRATEGIES for weights in TENSORRT_WEIGHTS)
"""KV strategy and weights."""


def default_graphs(model_file: Path) -> dict[tuple[str, str], Bundle]:
    """By `KINDS`: those that the sources as they are have made before, and new ones."""
    with _traced_once():
        return {kind: _bundle(model_file, *kind) for kind in KINDS}


def _bundle(model_file: Path, strategy: str, weights: str) -> Bundle:
    place = place_of(f"smollm2-135m-tensorrt-{weights}-{strategy}")
    try:
        return load_bundle(place)
    except BundleError:
        context = CONTEXT if strategy == "inplace" else None
        kind = TensorrtOptions(kv_strategy=strategy, context=context)
        return export_bundle(model_file, place, ExportOptions(weights, name=place.name, tensorrt=kind))


@contextmanager
def _traced_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "open_checkpoint", functools.cache(pipeline.open_checkpoint))
        for trace in ("trace_half", "trace_inplace"):
            patch.setattr(tensorrt_graph, trace, _Remembering(getattr(tensorrt_graph, trace)))
        yield


class _Remembering:
    """A function that traces, which does so once for the same weights and arguments."""

    def __init__(self, trace: Callable[..., onnx_ir.Model]) -> None:
        self._trace = trace
        self._traced: dict[Any, onnx_ir.Model] = {}

    def __call__(self, model: PreTrainedModel, *args: Any, **others: Any) -> onnx_ir.Model:
        key = (_digest(model), args, tuple(sorted(others.items())))
        if key not in self._traced:
            self._traced[key] = self._trace(model, *args, **others)
        return self._traced[key].clone()


def _digest(model: PreTrainedModel) -> bytes:
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy())
    return digest.digest()
