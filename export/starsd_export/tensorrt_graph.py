"""What a bundle for TensorRT holds: the kinds that there are, and the graph of each, its operators checked.

TensorRT's own parser does not police the opset, and a plugin that a device lacks is the most common reason why a build
fails there. So a graph is held to a list: what our graphs need, all of it in the parser of TensorRT 10.3 (JetPack 6),
and for the graphs that ask for a newer TensorRT what that adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir
from onnxscript import version_converter
from transformers import PreTrainedModel

from starsd_edge.bundles.manifest import TensorrtGraph
from starsd_edge.errors import StarsdError, UsageError, require_one_of
from starsd_edge.runtime.onnx_engine import TOP_OUTPUTS
from starsd_edge.runtime.torch_features import FusedStates
from starsd_export.families import SHORTEST_CONTEXT
from starsd_export.graph import OPSET
from starsd_export.half_graph import INPLACE_OPSET, trace_half, trace_inplace
from starsd_export.quantised_graph import quantise_graph
from starsd_export.quantising.search import PARTS
from starsd_export.quantising.stored import BLOCK_SIZES, StoredMatrices
from starsd_export.quantising.storing import BITS, Blocks, WritingRules

# fmt: off
_PLAIN = frozenset({
    "Add", "Cast", "Clip", "Concat", "Constant", "Cos", "Div", "Expand", "Gather", "Gemm", "MatMul", "Mul", "Neg",
    "Pow", "ReduceMean", "Reshape", "Shape", "Sigmoid", "Sin", "Slice", "Softmax", "Sqrt", "Squeeze", "TopK",
    "Transpose", "Unsqueeze", "Where",
})
# fmt: on
_OWN_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class OperatorSet:
    """What one kind of graph may hold.

    Attributes:
        name: what it is for, for messages.
        opsets: allowed versions of ONNX's own operator set.
        operators: allowed operators, all of ONNX's own domain.
        why: what sets the bounds of `opsets`, for messages.
    """

    name: str
    opsets: range
    operators: frozenset[str]
    why: str


APPEND = OperatorSet("TensorRT 10.3", range(18, 21), _PLAIN, "the parser of TensorRT 10.3 knows up to 20")
APPEND_BLOCKED = OperatorSet(
    "TensorRT 10.3 with weights in blocks",
    range(21, 22),
    _PLAIN | {"DequantizeLinear"},
    "scales of blocks and int4 begin with 21; the other operators of 21 differ in the types that they take",
)

# fmt: off
_OF_FIXED_CACHES = frozenset({
    "And", "Attention", "GreaterOrEqual", "Less", "LessOrEqual", "Or", "Sub", "TensorScatter",
})
# fmt: on
INPLACE = OperatorSet(
    "TensorRT 10.15",
    range(24, 25),
    APPEND_BLOCKED.operators | _OF_FIXED_CACHES,
    "TensorScatter begins with 24, and TensorRT 10.15 to 11.4 knows no newer set",
)


class OperatorError(StarsdError):
    """A graph holds what its runtime does not take."""


def require_operators(model: onnx_ir.Model, allowed: OperatorSet) -> None:
    """Check every node, those of subgraphs and functions included, and that every input is used.

    Raises:
        OperatorError: names everything that is outside.
    """
    found = sorted({*_foreign_opsets(model, allowed), *_foreign_nodes(model, allowed), *_unused_inputs(model)})
    if found:
        raise OperatorError(f"the graph is not one for {allowed.name}: {'; '.join(found)}")


def _foreign_opsets(model: onnx_ir.Model, allowed: OperatorSet) -> Iterator[str]:
    imported = [model.opset_imports, *(function.opset_imports for function in model.functions.values())]
    for domain, version in ((domain, version) for opsets in imported for domain, version in opsets.items()):
        if domain in _OWN_DOMAINS and version not in allowed.opsets:
            yield f"opset {version} (allowed: {_span(allowed.opsets)}, because {allowed.why})"


def _span(opsets: range) -> str:
    first, last = opsets[0], opsets[-1]
    return str(first) if first == last else f"{first} to {last}"


def _foreign_nodes(model: onnx_ir.Model, allowed: OperatorSet) -> Iterator[str]:
    graphs: list[onnx_ir.Graph | onnx_ir.Function] = [model.graph, *model.functions.values()]
    for graph in graphs:
        for node in onnx_ir.traversal.RecursiveGraphIterator(graph):
            if node.domain not in _OWN_DOMAINS:
                yield f"operator {node.domain}.{node.op_type}"
            elif node.op_type not in allowed.operators:
                yield f"operator {node.op_type}"


def _unused_inputs(model: onnx_ir.Model) -> Iterator[str]:
    """TensorRT keeps an unused input, and would want an address for it."""
    for value in model.graph.inputs:
        if not value.uses() and not value.is_graph_output():
            yield f"input {value.name} is not used"


TENSORRT_WEIGHTS = ("fp16", *BITS)
HEADS = ("fp16", *BITS)
EMBEDDINGS = ("fp16", "int8")
CALIBRATIONS = ("none", "own-text")
KV_STRATEGIES = ("append", "inplace")
BLOCKED_OPSET = 21
PARITY_BOUND = 0.02
"""Of `check_parity`, against the model with the very weights that the graph holds: float16 itself (seen: 6e-3)."""
_WIDE = ("v", "o", "down")
"""Parts of a layer whose int4 costs most for their size, as seen with the default model."""


@dataclass(frozen=True)
class TensorrtOptions:
    """How the weights of a graph for TensorRT are stored, beside what `ExportOptions.weights` says of the layers.

    Attributes:
        block: inputs that share a scale, where weights are int8 or int4.
        head: weights of the output head.
        embedding: weights of the embedding.
        wide: parts of the layers, of `PARTS`, that are int8 where the others are int4.
        calibration: what scales of int4 are searched on: "none", or "own-text" that the model writes.
        writing: how it writes that.
        kv_strategy: "append", or "inplace" with caches of a fixed size.
        context: committed tokens that fixed caches hold beside a tree; None takes all that the model allows.

    Raises:
        UsageError: no such kind.
    """

    block: int = 32
    head: str = "fp16"
    kv_strategy: str = "append"
    context: int | None = None
    embedding: str = "fp16"
    wide: tuple[str, ...] = ()
    calibration: str = "none"
    writing: WritingRules = field(default_factory=WritingRules)

    @classmethod
    def usual(cls, weights: str) -> TensorrtOptions:
        """What weights of this kind are stored with unless a user says otherwise.

        int4 is kept where it pays: for a small model the embedding and the head are as large as all of its layers in
        int4, and int8 does them no harm.
        """
        if weights != "int4":
            return cls()
        return cls(head="int8", embedding="int8", wide=_WIDE, calibration="own-text")

    def __post_init__(self) -> None:
        require_one_of("KV strategy", "--kv-strategy", self.kv_strategy, KV_STRATEGIES)
        require_one_of("blocks", "--block", self.block, BLOCK_SIZES)
        require_one_of("output head", "--head-weights", self.head, HEADS)
        require_one_of("embedding", "--embedding-weights", self.embedding, EMBEDDINGS)
        if unknown := [part for part in self.wide if part not in PARTS]:
            kinds = ",".join(PARTS)
            raise UsageError(f"no such part of a layer: --keep-int8 is none, or some of {kinds}, not {unknown[0]!r}")
        require_one_of("calibration", "--calibration", self.calibration, CALIBRATIONS)

    def blocks(self, weights: str) -> Blocks | None:
        """How the layers and the head are stored; None where all is float16."""
        bits, head, embedding = (BITS.get(kind, 16) for kind in (weights, self.head, self.embedding))
        if bits == head == embedding == 16:
            return None
        return Blocks(bits, self.block, head, embedding, frozenset(self.wide))

    def require_int4(self, weights: str) -> None:
        """Check that what is for int4 alone is asked for with int4.

        Raises:
            UsageError: it is not.
        """
        for option, value in (("--keep-int8", self.wide), ("--calibration own-text", self.calibration != "none")):
            if value and weights != "int4":
                raise UsageError(f"{option} is for --weights int4: leave it away")

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
            embedding=self.embedding,  # type: ignore[arg-type]
            wide=list(self.wide),
            calibration=self.calibration,  # type: ignore[arg-type]
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
    stored: StoredMatrices | None = None,
) -> onnx_ir.Model:
    """The graph, held to the operators that its TensorRT takes.

    Args:
        model: float32, in evaluation mode; its weights are rounded to float16 where they are.
        weights: one of `TENSORRT_WEIGHTS`.
        capacity: rows of every cache of an `inplace` graph.
        fused: what makes its features; None gives the hidden state after the final norm.
        stored: how the model's weights are stored in blocks, if they are.

    Raises:
        OperatorError: an operator or an opset that TensorRT does not take.
    """
    if options.kv_strategy == "inplace":
        graph = trace_inplace(model, capacity, fused)
    else:
        graph = trace_half(model, fused=fused)
        version_converter.convert_version(graph, options.opset(weights), fallback=False)
    if stored is not None:
        quantise_graph(graph, stored)
    add_top_two(graph)
    require_operators(graph, options.operators(weights))
    return graph


_COUNT = 2


def add_top_two(model: onnx_ir.Model) -> None:
    """Give a graph the outputs `top_ids` int64 [R, 2] and `top_logits` float32 [R, 2], the highest first."""
    graph = model.graph
    logits = next(value for value in graph.outputs if value.name == "logits")
    if logits.shape is None:
        raise RuntimeError("the exporter left the logits without a shape")
    count = onnx_ir.node(
        "Constant", [], attributes={"value": onnx_ir.tensor(np.array([_COUNT], np.int64), name="top_count")}
    )
    top = onnx_ir.node(
        "TopK", [logits, count.outputs[0]], attributes={"axis": -1, "largest": 1, "sorted": 1}, num_outputs=2
    )
    outputs = top.outputs[::-1]  # TopK gives the values first
    types = (onnx_ir.DataType.INT64, onnx_ir.DataType.FLOAT)
    for value, name, dtype in zip(outputs, TOP_OUTPUTS, types, strict=True):
        value.name, value.type = name, onnx_ir.TensorType(dtype)
        value.shape = onnx_ir.Shape([logits.shape[0], _COUNT])
    graph.extend([count, top])
    graph.outputs.extend(outputs)
