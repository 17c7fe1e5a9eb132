"""The checkpoint that a bundle was made from, as a reference for its graph: what the model gives in the place of any
pass, and whether the graph holds each of its numbers, which no comparison of passes can see.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir
import torch
from transformers import PreTrainedModel

from starsd_edge.bundles.manifest import Graph, Manifest
from starsd_edge.errors import UsageError
from starsd_edge.parity.findings import Check, differs, ok
from starsd_edge.parity.passes import Observation, Values
from starsd_export.checkpoint import open_checkpoint, require_memory
from starsd_export.parity import Stock
from starsd_export.reference import run_stock

_PEAK_PER_WEIGHT_BYTE = 1.5
"""Of memory, while a model is loaded and runs a few short prompts."""


@dataclass(frozen=True)
class Source:
    """The model that a bundle was made from, loaded.

    Attributes:
        stock: what it gives in the place of any pass of the bundle's graph. Features that a head has fused are left
            out: the head is not in the checkpoint.
    """

    model: PreTrainedModel
    stock: Callable[[Observation], Values]


def open_source(path: Path, manifest: Manifest) -> Source:
    """Load a checkpoint.

    Args:
        path: a GGUF file or a safetensors directory.
        manifest: of the bundle.

    Raises:
        UsageError: no checkpoint, or not the one that the bundle was made from.
        StarsdError: no room.
    """
    checkpoint = open_checkpoint(path)
    if checkpoint.source_fp != manifest.fingerprints.source_fp:
        raise UsageError(
            f"{path} is not the checkpoint that {manifest.name} was made from ({manifest.source}; the fingerprints "
            "differ): give that one"
        )
    needed = _PEAK_PER_WEIGHT_BYTE * checkpoint.weight_bytes
    require_memory("the checkpoint takes", needed, "check on a larger machine")
    model = checkpoint.load()
    stock = Stock(partial(run_stock, model, kv_dtype=manifest.graph.kv_dtype))
    if manifest.graph.feature_kind == "fused_states":
        return Source(model, lambda observation: replace(stock(observation), features=None))
    return Source(model, stock)


_DTYPES = {"fp32": np.float32, "fp16": np.float16}

Array = npt.NDArray[np.generic]


def keeps_numbers(graph: Graph) -> bool:
    """Whether a graph holds the checkpoint's numbers as a floating-point type has them, all of them."""
    return graph.weights == "fp32" or (graph.tensorrt is not None and graph.tensorrt.block == 0)


def check_weights(model: PreTrainedModel, file: Path, weights: str, remedy: str) -> Check:
    """Look for every parameter of a model in its graph, as it stands or transposed.

    Args:
        model: float32.
        file: its graph, one that `keeps_numbers`.
        weights: "fp32" or "fp16".
    """
    name = "weights"
    tensors = (value.const_value for value in onnx_ir.load(file).graph.initializers.values())
    stored = [_array(tensor) for tensor in tensors if tensor is not None]
    digests = {_digest(array) for array in stored}
    parameters = dict(model.named_parameters())  # each once, however many modules share it
    for parameter, tensor in parameters.items():
        wanted = tensor.detach().to(torch.float32).numpy().astype(_DTYPES[weights])
        if not {_digest(wanted), _digest(wanted.T)} & digests:
            return differs(name, _describe(parameter, wanted, stored), remedy)
    return ok(name, f"all numbers of {len(parameters)} tensors are those of the checkpoint")


def _array(tensor: onnx_ir.TensorProtocol) -> Array:
    """A tensor of the graph. Those beside it are read here, because the library refuses files that have several names,
    as backups make them; what is in the file was held to its hash before.
    """
    if not isinstance(tensor, onnx_ir.ExternalTensor):
        return tensor.numpy()
    shape = tensor.shape.numpy()
    count = int(np.prod(shape, dtype=np.int64))
    found = np.fromfile(tensor.path, tensor.dtype.numpy(), count, offset=tensor.offset or 0)
    return found.reshape(shape)


def _digest(array: Array) -> bytes:
    return hashlib.sha256(f"{array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes()).digest()


def _describe(name: str, wanted: Array, stored: list[Array]) -> str:
    """By the tensor of the graph that is nearest to it."""
    alike = [array for array in stored if array.dtype == wanted.dtype and array.shape in (wanted.shape, wanted.T.shape)]
    counts = [
        int((array != turned).sum()) for array in alike for turned in (wanted, wanted.T) if array.shape == turned.shape
    ]
    fewest = min(counts, default=wanted.size)
    if fewest > wanted.size // 2:
        return f"{name} of the checkpoint is not in the graph"
    return f"{fewest:,} of {wanted.size:,} numbers of {name} are not those of the checkpoint"
