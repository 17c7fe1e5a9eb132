"""The two libraries that build engines: TensorRT (on the device that runs them) and TensorRT-RTX (anywhere)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starsd_edge.runtime.tensorrt_library import ENGINES, import_library

__all__ = ["COMPUTE_CAPABILITIES", "ENGINES", "Library", "open_library"]

COMPUTE_CAPABILITIES = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")
"""Kinds of GPU that TensorRT-RTX builds for without one."""


@dataclass(frozen=True)
class Library:
    """One of them, imported.

    Attributes:
        engine: its name for `--engine`.
        module: the Python module.
        version: all four parts.
    """

    engine: str
    module: Any
    version: str

    @property
    def is_rtx(self) -> bool:
        """Whether it builds ahead of time, without a GPU."""
        return self.engine == "tensorrt-rtx"

    def __str__(self) -> str:
        return f"{'TensorRT-RTX' if self.is_rtx else 'TensorRT'} {self.version}"


def open_library(engine: str, load: Callable[[str], Any] = importlib.import_module) -> Library:
    """Import a library.

    Args:
        engine: a name of `ENGINES`.
        load: imports a module by its name.

    Raises:
        UsageError: not installed, incomplete, or of a version that this program was not made for.
    """
    module, version = import_library(ENGINES[engine], f"--engine {engine}", "Builder", load)
    return Library(engine, module, version)
