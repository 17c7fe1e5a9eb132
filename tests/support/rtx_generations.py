"""The two generations of TensorRT-RTX that engines are built with here: 1.7 has the interface of TensorRT 11, and 1.4
that of TensorRT 10.15 and 10.16, which JetPack 7.2 ships.

One process loads one of them. The newer is installed as every package is, the older in a directory of its own, and a
process that shall load the older finds that first.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from starsd_export.engines.builder import BuildOrder, build_plan, open_library
from starsd_export.engines.worker import Built, Order, run_build
from tests.support.real_bindings import BINDINGS


@dataclass(frozen=True)
class Generation:
    """One of them.

    Attributes:
        version: all four parts.
        place: its directory; None for the one that is installed.
    """

    version: str
    place: Path | None = None

    def require(self) -> None:
        """Skip the test where it is not there."""
        if self.place is None:
            pytest.importorskip("tensorrt_rtx", reason=f"not run: no TensorRT-RTX {self.version} ({_HOW_TO_GET})")
        elif not (self.place / "tensorrt_rtx").is_dir():
            pytest.skip(f"not run: no TensorRT-RTX {self.version} at {self.place} ({_HOW_TO_GET})")

    def environment(self) -> dict[str, str]:
        """Of a process that shall load it."""
        first = [] if self.place is None else [str(self.place)]
        return {**os.environ, "PYTHONPATH": os.pathsep.join([*first, *sys.path])}

    def build(self, order: BuildOrder, plan: Path) -> Built:
        """Build in a process of its own."""
        path = f"PYTHONPATH={self.environment()['PYTHONPATH']}"
        command = ("env", path, sys.executable, "-m", "starsd_export.engines.worker")
        shapes = [dict(shapes) for shapes in order.shapes]
        wanted = list(order.compute_capabilities)
        request = Order("tensorrt-rtx", str(order.graph), str(plan), shapes, wanted, None)
        return run_build(request, lambda report: None, command)

    def try_build(self, order: BuildOrder, plan: Path) -> None:
        """Build, in this process where that is the library that this process loads."""
        if self.place is None:
            build_plan(open_library("tensorrt-rtx"), order)
        else:
            self.build(order, plan)


_HOW_TO_GET = "scripts/test.sh installs it where the package index has it"
_OLDER = next(binding for binding in BINDINGS if binding.module == "tensorrt_rtx" and binding.version)
GENERATIONS = (Generation("1.7.1.116"), Generation(str(_OLDER.version), _OLDER.place))
EACH = [pytest.param(generation, id=generation.version) for generation in GENERATIONS]
