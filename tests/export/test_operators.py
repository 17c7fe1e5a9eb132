"""Graphs for TensorRT are held to a list of operators, wherever in the graph one stands."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir
import pytest

from starsd_export.tensorrt_graph import APPEND, APPEND_BLOCKED, INPLACE, OperatorError, require_operators

FLOAT = onnx_ir.TensorType(onnx_ir.DataType.FLOAT)


def value(name: str) -> onnx_ir.Value:
    return onnx_ir.Value(name=name, type=FLOAT, shape=onnx_ir.Shape([2]))


def model(
    nodes: Sequence[onnx_ir.Node], inputs: Sequence[onnx_ir.Value], opset: int = 18, **more: object
) -> onnx_ir.Model:
    graph = onnx_ir.Graph(inputs, nodes[-1].outputs, nodes=nodes, opset_imports={"": opset}, name="graph")
    return onnx_ir.Model(graph, ir_version=10, **more)  # type: ignore[arg-type]


def one(operator: str, domain: str = "", opset: int = 18) -> onnx_ir.Model:
    x = value("x")
    return model([onnx_ir.node(operator, [x], domain=domain)], [x], opset)


def test_what_our_graphs_need_is_let_through() -> None:
    for opset in (18, 19, 20):
        require_operators(one("Softmax", opset=opset), APPEND)
    require_operators(one("DequantizeLinear", opset=21), APPEND_BLOCKED)


@pytest.mark.parametrize("opset", [17, 21, 24])
def test_another_opset_is_named_with_what_is_allowed_and_why(opset: int) -> None:
    said = rf"TensorRT 10\.3: opset {opset} \(allowed: 18 to 20, because the parser of TensorRT 10\.3 knows up to 20\)$"
    with pytest.raises(OperatorError, match=said):
        require_operators(one("Softmax", opset=opset), APPEND)


@pytest.mark.parametrize("opset", [18, 20, 22])
def test_weights_in_blocks_need_the_opset_that_has_them(opset: int) -> None:
    said = rf"in blocks: opset {opset} \(allowed: 21, because scales of blocks and int4 begin with 21;"
    with pytest.raises(OperatorError, match=said):
        require_operators(one("DequantizeLinear", opset=opset), APPEND_BLOCKED)


def test_caches_of_a_fixed_size_need_opset_24() -> None:
    require_operators(one("TensorScatter", opset=24), INPLACE)
    with pytest.raises(OperatorError, match=r"opset 23 \(allowed: 24, because TensorScatter begins with 24"):
        require_operators(one("TensorScatter", opset=23), INPLACE)


@pytest.mark.parametrize(
    ("operator", "domain", "named"),
    [
        ("Attention", "", "operator Attention"),
        ("DequantizeLinear", "", "operator DequantizeLinear"),
        ("MatMulNBits", "com.microsoft", r"operator com\.microsoft\.MatMulNBits"),
        ("Softmax", "com.microsoft", r"operator com\.microsoft\.Softmax"),
    ],
)
def test_another_operator_is_named_with_its_domain(operator: str, domain: str, named: str) -> None:
    with pytest.raises(OperatorError, match=named):
        require_operators(one(operator, domain), APPEND)


def test_everything_outside_is_named_at_once() -> None:
    x = value("x")
    first = onnx_ir.node("NonZero", [x])
    second = onnx_ir.node("Gelu", [first.outputs[0]], domain="com.microsoft")
    with pytest.raises(OperatorError, match=r"operator NonZero; operator com\.microsoft\.Gelu; opset 22"):
        require_operators(model([first, second], [x], 22), APPEND)


def test_subgraphs_are_walked() -> None:
    x, condition = value("x"), value("condition")
    branches = []
    for operator in ("Relu", "Tanh"):
        node = onnx_ir.node(operator, [x])
        branches.append(onnx_ir.Graph([], node.outputs, nodes=[node], name=operator))
    choice = onnx_ir.node("If", [condition], {"then_branch": branches[0], "else_branch": branches[1]})
    with pytest.raises(OperatorError, match=r"operator If; operator Relu; operator Tanh$"):
        require_operators(model([choice], [x, condition]), APPEND)


def test_functions_are_walked() -> None:
    x, inner = value("x"), value("inner")
    body = onnx_ir.node("Hardmax", [inner])
    graph = onnx_ir.Graph([inner], body.outputs, nodes=[body], opset_imports={"": 13}, name="body")
    function = onnx_ir.Function("ours", "mine", graph=graph, attributes=[])
    called = model([onnx_ir.node("Softmax", [x])], [x], functions=[function])
    with pytest.raises(OperatorError, match="operator Hardmax; opset 13"):
        require_operators(called, APPEND)


def test_an_input_that_nothing_reads_is_named() -> None:
    x, idle = value("x"), value("idle")
    with pytest.raises(OperatorError, match="input idle is not used"):
        require_operators(model([onnx_ir.node("Softmax", [x])], [x, idle]), APPEND)
