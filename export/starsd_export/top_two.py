"""The two highest logits of every row as outputs of their own: where a choice needs no more than these, the logits,
which are hundreds of kilobytes a row, stay on the GPU.
"""

from __future__ import annotations

import numpy as np
import onnx_ir

from starsd_edge.runtime.onnx_engine import TOP_OUTPUTS

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
