"""Checkpoint -> ONNX graph -> bundle, with the parity gate."""
