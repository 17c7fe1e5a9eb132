"""What a fake plan computes, on the processor: an ONNX graph, or a few lines of numpy where a test needs no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[np.generic]]
Program = Callable[[Arrays], Arrays]


def open_program(name: str) -> Program:
    """A program by its name: "numpy:" and one of `NUMPY_PROGRAMS`, or "onnx:" and a file.

    Raises:
        KeyError: no such program.
        EngineError: ONNX Runtime does not take the file.
    """
    kind, _, what = name.partition(":")
    return {"numpy": NUMPY_PROGRAMS.__getitem__, "onnx": _onnx_program}[kind](what)


def _onnx_program(file: str) -> Program:
    from starsd_edge.runtime.onnx_engine import open_session

    session = open_session(Path(file), threads=1)
    outputs = [output.name for output in session.get_outputs()]

    def run(inputs: Arrays) -> Arrays:
        return dict(zip(outputs, session.run(outputs, inputs), strict=True))

    return run


def _twice(inputs: Arrays) -> Arrays:
    return {"y": inputs["x"] * np.float16(2)}


def _scatter(inputs: Arrays) -> Arrays:
    """`rows` float16 [T, D] go into `past` [C, D] from row `at` [1] on; `total` [1] sums all of it."""
    past, rows, at = inputs["past"], inputs["rows"], int(inputs["at"][0])
    if at + len(rows) > len(past):
        raise IndexError(f"{len(rows)} rows from {at} on do not fit {len(past)}")
    present = past.copy()
    present[at : at + len(rows)] = rows
    return {"present": present, "total": np.array([present.astype(np.float32).sum()], np.float32)}


NUMPY_PROGRAMS: Mapping[str, Program] = {"twice": _twice, "scatter": _scatter}
