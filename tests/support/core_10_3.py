"""The part of TensorRT's Python interface that starsd-edge is written against, by class."""

from __future__ import annotations

SINCE_10_15 = {"get_aliased_input_tensor"}
"""Newer: to be asked for before it is used."""
ONLY_RTX = {"is_stream_capturable"}
"""Of TensorRT-RTX alone: likewise."""

CORE_10_3 = {
    "Runtime": {"deserialize_cuda_engine", "logger"},
    "ICudaEngine": {
        "create_execution_context",
        "device_memory_size_v2",
        "get_tensor_dtype",
        "get_tensor_location",
        "get_tensor_mode",
        "get_tensor_name",
        "get_tensor_profile_shape",
        "get_tensor_shape",
        "num_io_tensors",
        "num_optimization_profiles",
    },
    "IExecutionContext": {
        "active_optimization_profile",
        "engine",
        "execute_async_v3",
        "get_tensor_address",
        "get_tensor_shape",
        "infer_shapes",
        "set_device_memory",
        "set_input_shape",
        "set_optimization_profile_async",
        "set_tensor_address",
    },
}
"""TensorRT 10.3, the oldest, has all of it: its own binary is asked in `test_fake_surface.py`."""
