"""Checkpoint -> ONNX graph -> bundle, with the parity gate."""

import starsd_edge  # noqa: F401 (tells libraries to keep quiet before one of them is imported)
