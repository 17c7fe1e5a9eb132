"""Tracing the first layers of a model and repeating the last of them in the graph.

The tracer takes two seconds of a core for each layer, and layers of one kind give the same nodes: for thirty layers, a
minute of what an export takes. So where all layers from the second on are of one kind, three are traced. If the nodes
of the third are those of the second with the third's own weights and caches, they are repeated for each layer that
follows; if not, the whole model is traced. The parity gate compares logits and the KV rows of every layer with the
stock model in both cases, so a wrong repetition makes no bundle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir
import torch
from transformers import PreTrainedModel

TRACED = 3
"""Layers that are traced: the first may hold nodes that all share, and the next two are compared."""
_SCOPES = "pkg.torch.onnx.name_scopes"
_LAYER_SCOPE = re.compile(r"layers\.(\d+)\b")
_OF_LAYER = re.compile(r"(.*(?:layers\.|past_[kv]_|new_[kv]_|present_[kv]_))(\d+)(\b.*)")
_OWN_INDEX = "layer_idx"
"""The attribute by which transformers' modules know where they stand."""


def trace_layers(model: PreTrainedModel, trace: Callable[[int], onnx_ir.Model], *, whole: bool) -> onnx_ir.Model:
    """The graph of all layers.

    Args:
        model: in evaluation mode, with the weights that the graph is to hold.
        trace: traces the model, which has as many layers as it is told.
        whole: trace every layer, because something reads states in the middle.
    """
    layers = len(model.base_model.layers)
    if not whole and layers > TRACED and _is_uniform(model):
        with _first_layers(model):
            graph = trace(TRACED)
        repetition = _Repetition.of(graph)
        if repetition is not None:
            repetition.extend(graph, model)
            return graph
    return trace(layers)


def _is_uniform(model: PreTrainedModel) -> bool:
    """Whether all layers from the second on are built and configured alike."""
    layers = model.base_model.layers
    by_layer = (value for value in model.config.to_dict().values() if isinstance(value, list | tuple))
    if any(len(value) == len(layers) and any(each != value[1] for each in value[1:]) for value in by_layer):
        return False
    second = _form(layers[1])
    return all(_form(layer) == second for layer in layers[2:])


def _form(layer: torch.nn.Module) -> list[Any]:
    """What decides the nodes that a layer gives: its modules, their settings, and the shapes of its tensors."""
    modules = [(name, type(module), _settings(module)) for name, module in layer.named_modules()]
    tensors = [*layer.named_parameters(), *layer.named_buffers()]
    return [modules, [(name, tensor.shape, tensor.dtype) for name, tensor in tensors]]


def _settings(module: torch.nn.Module) -> dict[str, Any]:
    plain = (bool, int, float, str, tuple, list, type(None))
    return {name: value for name, value in vars(module).items() if isinstance(value, plain) and name != _OWN_INDEX}


@contextmanager
def _first_layers(model: PreTrainedModel) -> Iterator[None]:
    """The model with its first `TRACED` layers alone, inside the block."""
    layers = model.base_model.layers
    model.base_model.layers = layers[:TRACED]
    try:
        yield
    finally:
        model.base_model.layers = layers


@dataclass(frozen=True)
class _Output:
    """A value of a layer: output `index` of the node at this offset, of the layer itself or of the one before it."""

    node: int
    index: int
    before: bool = False


@dataclass(frozen=True)
class _Named:
    """A weight or an input of the graph that has a layer's number in its name."""

    prefix: str
    suffix: str
    is_weight: bool

    def of(self, layer: int) -> str:
        return f"{self.prefix}{layer}{self.suffix}"


_Source = _Output | _Named | onnx_ir.Value | None
"""Where an input of a node comes from: a value of the graph is one that all layers share."""


@dataclass(frozen=True)
class _Repetition:
    """The nodes of the last traced layer, and where each of their inputs comes from."""

    nodes: Sequence[onnx_ir.Node]
    sources: Sequence[Sequence[_Source]]

    @classmethod
    def of(cls, graph: onnx_ir.Model) -> _Repetition | None:
        """None where the last two layers differ in more than their weights and caches."""
        layers = _nodes_by_layer(graph)
        if sorted(layers) != list(range(TRACED)):
            return None
        *_, second, last = (layers[index] for index in range(TRACED))
        comparison = _Comparison(_places(second), _places(last))
        if len(second) != len(last) or not all(map(_same_operation, second, last)):
            return None
        if not comparison.is_closed(second):
            return None
        sources = [[comparison.source(*pair) for pair in _pairs(*nodes)] for nodes in zip(second, last, strict=True)]
        if any(source is _DIFFERENT for each in sources for source in each):
            return None
        return cls(last, sources)  # type: ignore[arg-type]

    def extend(self, model: onnx_ir.Model, original: PreTrainedModel) -> None:
        """Add the layers that follow, and let what read the last traced layer read the last one."""
        graph, total = model.graph, len(original.base_model.layers)
        readers = self._readers_outside()
        inputs = _with_more(graph.inputs, total)
        graph.inputs[:] = inputs
        named = {value.name: value for value in inputs}
        of_layer = {TRACED - 1: list(self.nodes)}
        for layer in range(TRACED, total):
            before, made = of_layer[layer - 1], list[onnx_ir.Node]()
            for node, sources in zip(self.nodes, self.sources, strict=True):
                found = [self._value(source, layer, made, before, graph, named, original) for source in sources]
                made.append(_twin(node, found))
            graph.insert_after(before[-1], made)
            of_layer[layer] = made
        last = of_layer[total - 1]
        for reader, place, value in readers:
            reader.replace_input_with(place, last[value.node].outputs[value.index])
        graph.outputs[:] = self._outputs(graph.outputs, of_layer)

    def _readers_outside(self) -> list[tuple[onnx_ir.Node, int, _Output]]:
        own = set(self.nodes)
        return [
            (use.node, use.idx, _Output(offset, index))
            for offset, node in enumerate(self.nodes)
            for index, value in enumerate(node.outputs)
            for use in value.uses()
            if use.node not in own
        ]

    @staticmethod
    def _value(
        source: _Source,
        layer: int,
        made: Sequence[onnx_ir.Node],
        before: Sequence[onnx_ir.Node],
        graph: onnx_ir.Graph,
        inputs: Mapping[str | None, onnx_ir.Value],
        original: PreTrainedModel,
    ) -> onnx_ir.Value | None:
        if isinstance(source, _Output):
            return (before if source.before else made)[source.node].outputs[source.index]
        if not isinstance(source, _Named):
            return source
        name = source.of(layer)
        if not source.is_weight:
            return inputs[name]
        return graph.initializers.get(name) or _weight(graph, name, source.suffix.removeprefix("."), layer, original)

    def _outputs(
        self, outputs: Sequence[onnx_ir.Value], of_layer: Mapping[int, Sequence[onnx_ir.Node]]
    ) -> list[onnx_ir.Value]:
        places = _places(self.nodes)
        found = list[onnx_ir.Value]()
        for output in outputs:
            found.append(output)
            if output in places:
                place, name = places[output], _of_layer(output.name)
                for layer in range(TRACED, max(of_layer) + 1):
                    value = of_layer[layer][place.node].outputs[place.index]
                    value.name = name.of(layer) if name else value.name
                    found.append(value)
        return found


class _Different:
    """That two layers take something else in the same place."""


_DIFFERENT = _Different()


@dataclass(frozen=True)
class _Comparison:
    """Two neighbouring layers: where their values stand in them."""

    second: Mapping[onnx_ir.Value, _Output]
    last: Mapping[onnx_ir.Value, _Output]

    def is_closed(self, second: Sequence[onnx_ir.Node]) -> bool:
        """Whether what the second layer makes is read by itself and by the last one, and by no other node."""
        readers = {use.node for value in self.second for use in value.uses()}
        own = {*second, *(value.producer() for value in self.last)}
        return readers <= own

    def source(self, in_second: onnx_ir.Value | None, in_last: onnx_ir.Value | None) -> _Source | _Different:
        if in_last is in_second:
            return in_last
        if in_last is None or in_second is None:
            return _DIFFERENT
        if in_last in self.last:
            place = self.last[in_last]
            return place if self.second.get(in_second) == place else _DIFFERENT
        if in_last in self.second:
            place = self.second[in_last]
            return _DIFFERENT if in_second in self.second else _Output(place.node, place.index, before=True)
        names = _of_layer(in_second.name), _of_layer(in_last.name)
        is_weight = in_last.is_initializer()
        if None in names or names[0] != names[1] or in_second.is_initializer() != is_weight:
            return _DIFFERENT
        return _Named(names[1].prefix, names[1].suffix, is_weight)  # type: ignore[union-attr]


def _of_layer(name: str | None) -> _Named | None:
    found = _OF_LAYER.fullmatch(name or "")
    return None if found is None else _Named(found[1], found[3], is_weight=False)


def _nodes_by_layer(model: onnx_ir.Model) -> dict[int, list[onnx_ir.Node]]:
    """In the order in which they run."""
    layers: dict[int, list[onnx_ir.Node]] = {}
    for node in model.graph:
        found = _LAYER_SCOPE.search(node.metadata_props.get(_SCOPES, ""))
        if found is not None:
            layers.setdefault(int(found[1]), []).append(node)
    return layers


def _places(nodes: Sequence[onnx_ir.Node]) -> dict[onnx_ir.Value, _Output]:
    return {
        value: _Output(offset, index) for offset, node in enumerate(nodes) for index, value in enumerate(node.outputs)
    }


def _pairs(second: onnx_ir.Node, last: onnx_ir.Node) -> Iterator[tuple[onnx_ir.Value | None, onnx_ir.Value | None]]:
    return zip(second.inputs, last.inputs, strict=True)


def _same_operation(one: onnx_ir.Node, other: onnx_ir.Node) -> bool:
    counts = [(len(node.inputs), len(node.outputs)) for node in (one, other)]
    return (
        one.op_identifier() == other.op_identifier()
        and counts[0] == counts[1]
        and one.attributes.keys() == other.attributes.keys()
        and all(_same_attribute(value, other.attributes[name]) for name, value in one.attributes.items())
    )


def _same_attribute(one: onnx_ir.Attr, other: onnx_ir.Attr) -> bool:
    """Of subgraphs and of what a function is given, nothing is known here."""
    if one.type != other.type or one.is_ref() or other.is_ref():
        return False
    if one.type == onnx_ir.AttributeType.TENSOR:
        arrays = one.as_tensor().numpy(), other.as_tensor().numpy()
        return arrays[0].dtype == arrays[1].dtype and np.array_equal(*arrays)
    return one.type not in (onnx_ir.AttributeType.GRAPH, onnx_ir.AttributeType.GRAPHS) and one.value == other.value


def _with_more(inputs: Sequence[onnx_ir.Value], total: int) -> list[onnx_ir.Value]:
    """The inputs, and after each one of the last traced layer those of the layers that follow."""
    found = list[onnx_ir.Value]()
    for value in inputs:
        found.append(value)
        name = _of_layer(value.name)
        if name is not None and name.of(TRACED - 1) == value.name:
            found += [onnx_ir.val(name.of(layer), type=value.type, shape=value.shape) for layer in range(TRACED, total)]
    return found


def _twin(node: onnx_ir.Node, inputs: Sequence[onnx_ir.Value | None]) -> onnx_ir.Node:
    twin = onnx_ir.Node(
        node.domain,
        node.op_type,
        inputs,
        list(node.attributes.values()),
        overload=node.overload,
        num_outputs=len(node.outputs),
        version=node.version,
    )
    for made, value in zip(twin.outputs, node.outputs, strict=True):
        made.type, made.shape = value.type, value.shape
    return twin


def _weight(graph: onnx_ir.Graph, name: str, suffix: str, layer: int, original: PreTrainedModel) -> onnx_ir.Value:
    """Store a layer's own parameter or buffer in the graph, under the name that the tracer would give it."""
    module = original.base_model.layers[layer]
    tensor = {**dict(module.named_parameters()), **dict(module.named_buffers())}[suffix].detach()
    value = onnx_ir.val(name, const_value=onnx_ir.tensor_adapters.TorchTensor(tensor, name=name))
    graph.register_initializer(value)
    return value
