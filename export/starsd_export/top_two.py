"""The two highest logits of every row as outputs of their own: where a choice needs no more than these, the logits,
which are hundreds of kilobytes a row, stay on the GPU.
"""

from __future__ import annotations

import numpy as np
import onnx_ir

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
    shape = onnx_ir.Shape([logits.shape[0], _COUNT])
    for value, name, dtype in zip(
        top.outputs, ("top_logits", "top_ids"), (onnx_ir.DataType.FLOAT, onnx_ir.DataType.INT64), strict=True
    ):
        value.name, value.shape, value.type = name, shape, onnx_ir.TensorType(dtype)
    graph.extend([count, top])
    graph.outputs.extend(reversed(top.outputs))
