"""Which ONNX operators a graph for TensorRT may hold, checked node by node.

TensorRT's own parser does not police the opset, and a plugin that a device lacks is the most common reason why a build
fails there. So a graph is held to a list: what our graphs need, all of it in the parser of TensorRT 10.3 (JetPack 6),
and for the graphs that ask for a newer TensorRT what that adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir

from starsd_edge.errors import StarsdError

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
    for graph in (model.graph, *model.functions.values()):
        for node in _walk(graph):
            if node.domain not in _OWN_DOMAINS:
                yield f"operator {node.domain}.{node.op_type}"
            elif node.op_type not in allowed.operators:
                yield f"operator {node.op_type}"


def _walk(graph: Iterable[onnx_ir.Node]) -> Iterator[onnx_ir.Node]:
    for node in graph:
        yield node
        for attribute in node.attributes.values():
            if attribute.type == onnx_ir.AttributeType.GRAPH:
                yield from _walk(attribute.as_graph())
            elif attribute.type == onnx_ir.AttributeType.GRAPHS:
                for branch in attribute.as_graphs():
                    yield from _walk(branch)


def _unused_inputs(model: onnx_ir.Model) -> Iterator[str]:
    """TensorRT keeps an unused input, and would want an address for it."""
    for value in model.graph.inputs:
        if not value.uses() and not value.is_graph_output():
            yield f"input {value.name} is not used"
