"""Layers that are repeated in the graph and not traced: the graph is that of a whole trace, or all are traced."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import onnx_ir
import pytest
from transformers import PreTrainedModel

from starsd_export import graph, half_graph
from starsd_export.graph import trace
from starsd_export.half_graph import trace_inplace
from starsd_export.repeated_layers import TRACED, trace_layers
from tests.support.tiny_families import VARIANTS, tiny_family

pytestmark = pytest.mark.export
LAYERS = 4
SCOPES = "pkg.torch.onnx.name_scopes"


def meanings(model: onnx_ir.Model) -> dict[str | None, str]:
    """What each output of the graph is, as a digest of all that it is computed from, whatever values are called."""
    known: dict[onnx_ir.Value | None, str] = {None: ""}
    for value in model.graph.inputs:
        known[value] = value.name or ""
    for value in model.graph.initializers.values():
        assert value.const_value is not None
        known[value] = hashlib.sha256(value.const_value.tobytes()).hexdigest() + str(value.const_value.shape)
    for node in model.graph:
        given = [known[value] for value in node.inputs]
        if node.op_type == "Shape":
            given = [name if not name.startswith("past_") else "a cache" for name in given]  # all are of one length
        attributes = [(name, written(attribute)) for name, attribute in sorted(node.attributes.items())]
        told = repr((str(node.op_identifier()), given, attributes))
        for index, value in enumerate(node.outputs):
            known[value] = hashlib.sha256(f"{told} {index} {value.dtype}".encode()).hexdigest()
    return {value.name: known[value] for value in model.graph.outputs}


def written(attribute: onnx_ir.Attr) -> str:
    if attribute.type == onnx_ir.AttributeType.TENSOR:
        return repr(attribute.as_tensor().numpy().tolist())
    return repr(attribute.value)


def append(model: PreTrainedModel) -> onnx_ir.Model:
    return trace(model, "float16")


def inplace(model: PreTrainedModel) -> onnx_ir.Model:
    return trace_inplace(model, 128)


@pytest.mark.parametrize(("make", "family"), [(append, "llama-biases"), (inplace, "qwen3")])
def test_the_graph_is_that_of_a_whole_trace(
    make: Callable[[PreTrainedModel], onnx_ir.Model], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced: list[int] = []

    def watched(to_onnx: Callable[..., onnx_ir.Model]) -> Callable[..., onnx_ir.Model]:
        def watch(module: Any, arguments: Any, *others: Any) -> onnx_ir.Model:
            traced.append(len(arguments[-1]))
            return to_onnx(module, arguments, *others)

        return watch

    for module in (graph, half_graph):
        monkeypatch.setattr(module, "to_onnx", watched(module.to_onnx))
    model = tiny_family(num_hidden_layers=LAYERS, **VARIANTS[family])
    repeated = make(model)
    assert len(model.base_model.layers) == LAYERS
    monkeypatch.setattr("starsd_export.repeated_layers._is_uniform", lambda model: False)
    whole = make(model)
    assert traced == [TRACED, LAYERS]
    assert [value.name for value in repeated.graph.inputs] == [value.name for value in whole.graph.inputs]
    assert meanings(repeated) == meanings(whole)
    assert list(meanings(repeated)) == list(meanings(whole))


def asked_for(model: PreTrainedModel, graphs: Callable[[int], onnx_ir.Model], *, whole: bool = False) -> list[int]:
    """How many layers were traced, time after time."""
    asked: list[int] = []

    def traced(layers: int) -> onnx_ir.Model:
        assert len(model.base_model.layers) == layers
        asked.append(layers)
        return graphs(layers)

    trace_layers(model, traced, whole=whole)
    return asked


def chain(layers: int, alter: Callable[[int, dict[str, Any]], None] = lambda layer, form: None) -> onnx_ir.Model:
    """A graph of layers that each add a weight to the hidden state and give it as their new K."""
    hidden = onnx_ir.val("input_ids", onnx_ir.DataType.FLOAT, [2])
    inputs, nodes, outputs, weights = [hidden], [], [], []
    for layer in range(layers):
        form: dict[str, Any] = {"operator": "Add", "attributes": {}, "weight": f"model.layers.{layer}.weight"}
        alter(layer, form)
        weight = onnx_ir.val(form["weight"], const_value=onnx_ir.tensor([1.0, 2.0], name=form["weight"]))
        weights.append(weight)
        scopes = {SCOPES: str(["", f"model.layers.{layer}"])}
        node = onnx_ir.node(form["operator"], [hidden, weight], form["attributes"], metadata_props=scopes)
        nodes.append(node)
        (hidden,) = node.outputs
        hidden.name = f"new_k_{layer}"
        outputs.append(hidden)
    last = onnx_ir.node("Neg", [form.get("read", hidden)])
    last.outputs[0].name = "logits"
    graph = onnx_ir.Graph(inputs, [last.outputs[0], *outputs], nodes=[*nodes, last], initializers=weights)
    return onnx_ir.Model(graph, ir_version=10)


def test_what_is_alike_is_repeated_and_what_is_not_is_traced_whole() -> None:
    llama = tiny_family(model_type="llama", num_hidden_layers=LAYERS)
    assert asked_for(llama, lambda layers: onnx_ir.Model(onnx_ir.Graph([], [], nodes=[]), ir_version=10)) == [
        TRACED,
        LAYERS,
    ], "a trace whose layers are not to be told apart"
    assert asked_for(llama, chain, whole=True) == [LAYERS]
    assert asked_for(tiny_family(model_type="llama", num_hidden_layers=TRACED), chain) == [TRACED]
    window = tiny_family(model_type="llama", num_hidden_layers=LAYERS)
    window.config.layer_types = ["full_attention"] * (LAYERS - 1) + ["sliding_attention"]
    assert asked_for(window, chain) == [LAYERS]
    odd = tiny_family(model_type="llama", num_hidden_layers=LAYERS)
    odd.base_model.layers[3].self_attn.scaling *= 2
    assert asked_for(odd, chain) == [LAYERS]
    no_rope = tiny_family(num_hidden_layers=LAYERS, model_type="smollm3", no_rope_layer_interval=2)
    assert asked_for(no_rope, chain) == [LAYERS]


@pytest.mark.parametrize(
    ("name", "value"),
    [("operator", "Mul"), ("attributes", {"axis": 1}), ("weight", "model.other.weight")],
)
def test_layers_that_the_tracer_wrote_in_two_ways_are_traced_whole(name: str, value: object) -> None:
    llama = tiny_family(model_type="llama", num_hidden_layers=LAYERS)

    def graphs(layers: int) -> onnx_ir.Model:
        return chain(layers, lambda layer, form: form.update({name: value} if layer == 2 else {}))

    assert asked_for(llama, graphs) == [TRACED, LAYERS]
