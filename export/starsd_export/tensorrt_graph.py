"""What a bundle for TensorRT holds: the kinds that there are, and the graph of each, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir
from onnxscript import version_converter
from transformers import PreTrainedModel

from starsd_edge.bundles.manifest import TensorrtGraph
from starsd_edge.errors import UsageError
from starsd_edge.runtime.torch_features import FusedStates
from starsd_export.blocks import BITS, BLOCK_SIZES, Blocks, quantise_graph, quantise_model
from starsd_export.families import SHORTEST_CONTEXT
from starsd_export.graph import OPSET
from starsd_export.half_graph import trace_half
from starsd_export.inplace_graph import INPLACE_OPSET, trace_inplace
from starsd_export.operators import APPEND, APPEND_BLOCKED, INPLACE, OperatorSet, require_operators
from starsd_export.reference import run_stock
from starsd_export.top_two import add_top_two

TENSORRT_WEIGHTS = ("fp16", *BITS)
HEADS = ("fp16", *BITS)
KV_STRATEGIES = ("append", "inplace")
BLOCKED_OPSET = 21
PARITY_BOUND = 0.02
"""Of `check_parity`, against the model with the very weights that the graph holds: float16 itself (seen: 6e-3)."""
_NOTE_TOKENS = 64


@dataclass(frozen=True)
class TensorrtOptions:
    """How the weights of a graph for TensorRT are stored, beside what `ExportOptions.weights` says of the layers.

    Attributes:
        block: inputs that share a scale, where weights are int8 or int4.
        head: weights of the output head.
        kv_strategy: "append", or "inplace" with caches of a fixed size.
        context: committed tokens that fixed caches hold beside a tree; None takes all that the model allows.

    Raises:
        UsageError: no such kind.
    """

    block: int = 64
    head: str = "fp16"
    kv_strategy: str = "append"
    context: int | None = None

    def __post_init__(self) -> None:
        if self.kv_strategy not in KV_STRATEGIES:
            kinds = " or ".join(KV_STRATEGIES)
            raise UsageError(f"no such KV strategy: --kv-strategy is {kinds}, not {self.kv_strategy!r}")
        if self.block not in BLOCK_SIZES:
            raise UsageError(f"no such blocks: --block is {' or '.join(map(str, BLOCK_SIZES))}, not {self.block}")
        if self.head not in HEADS:
            raise UsageError(f"no such output head: --head-weights is {' or '.join(HEADS)}, not {self.head!r}")

    def blocks(self, weights: str) -> Blocks | None:
        """How the layers and the head are stored; None where all is float16."""
        bits, head_bits = (BITS.get(kind, 16) for kind in (weights, self.head))
        return None if bits == head_bits == 16 else Blocks(bits, self.block, head_bits)

    def max_context(self, limit: int) -> int:
        """Committed tokens of a sequence, of a model that allows `limit`.

        Raises:
            UsageError: more than that, or too few for the parity gate.
        """
        if self.kv_strategy == "append" or self.context is None:
            return limit
        if not SHORTEST_CONTEXT <= self.context <= limit:
            raise UsageError(f"--context {self.context} is not within {SHORTEST_CONTEXT} and {limit}, the model's own")
        return self.context

    def describe(self, weights: str, max_context: int, max_tree: int) -> TensorrtGraph:
        """For the manifest."""
        blocks = self.blocks(weights)
        capacity = max_context + max_tree if self.kv_strategy == "inplace" else 0
        return TensorrtGraph(
            head=self.head,  # type: ignore[arg-type]
            block=blocks.size if blocks else 0,
            capacity=capacity,
        )

    def opset(self, weights: str) -> int:
        """ONNX operator set of the graph."""
        if self.kv_strategy == "inplace":
            return INPLACE_OPSET
        return OPSET if self.blocks(weights) is None else BLOCKED_OPSET

    def operators(self, weights: str) -> OperatorSet:
        """What the graph may hold."""
        if self.kv_strategy == "inplace":
            return INPLACE
        return APPEND if self.blocks(weights) is None else APPEND_BLOCKED


def tensorrt_graph(
    model: PreTrainedModel,
    weights: str,
    options: TensorrtOptions,
    capacity: int = 0,
    fused: FusedStates | None = None,
) -> onnx_ir.Model:
    """The graph, held to the operators that its TensorRT takes.

    Args:
        model: float32, in evaluation mode; it gets the weights that the graph has.
        weights: one of `TENSORRT_WEIGHTS`.
        capacity: rows of every cache of an `inplace` graph.
        fused: what makes its features; None gives the hidden state after the final norm.

    Raises:
        UsageError: the blocks do not fill a matrix.
        OperatorError: an operator or an opset that TensorRT does not take.
    """
    blocks = options.blocks(weights)
    if options.kv_strategy == "inplace":
        graph = trace_inplace(model, capacity, fused)
    else:
        graph = trace_half(model, fused=fused)
        version_converter.convert_version(graph, options.opset(weights), fallback=False)
    if blocks is not None:
        quantise_graph(graph, blocks)
        quantise_model(model, blocks)
    add_top_two(graph)
    require_operators(graph, options.operators(weights))
    return graph


def checkpoint_logits(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """What the model says to a few prompts."""
    return [run_stock(model, ids[:_NOTE_TOKENS], kv_dtype="float16").logits for ids in prompts]


def weights_note(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> str:
    """One line about what storing the weights has changed, from `checkpoint_logits` before and after."""
    wanted, found = (np.concatenate(logits).astype(np.float64) for logits in (before, after))
    changed = np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2))
    same = np.mean(found.argmax(axis=1) == wanted.argmax(axis=1))
    return (
        f"the weights as they are stored change the logits by {changed:.1%} (root mean square) and leave the likeliest "
        f"token the same at {same:.0%} of {len(wanted)} places of the sample prompts"
    )
