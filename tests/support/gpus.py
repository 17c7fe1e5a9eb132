"""Whether this machine has a GPU that tests can use."""

from __future__ import annotations

from pathlib import Path

_DEVICES = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvgpu")


def is_gpu_here() -> bool:
    """Whether its driver has made a device: on a PC, or on a Jetson."""
    return any(Path(device).exists() for device in _DEVICES)
