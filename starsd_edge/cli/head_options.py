"""Where and with which numbers a hub runs heads, as users say it."""

from __future__ import annotations

from enum import Enum


class HeadDevice(str, Enum):
    """Devices that a head can be run on."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class HeadPrecision(str, Enum):
    """Numbers that a head can be run with."""

    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
