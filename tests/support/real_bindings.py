"""The real bindings that the fake TensorRT is held against, as far as they are on this machine.

A process loads one version of a module. Those beside the installed one lie in directories of their own, named like
`tensorrt-lean-11.4.0.106`: in the environment's own directory, or where `REAL_BINDINGS` says.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from tests.support.real_signatures import Surface

PLACE = "REAL_BINDINGS"


@dataclass(frozen=True)
class Binding:
    """One version of one module.

    Attributes:
        module: to import.
        version: None takes the one that is installed.
        packages: what to install into its directory, or at all.
    """

    module: str
    version: str | None
    packages: str

    @property
    def name(self) -> str:
        """Of its directory."""
        library = self.module.removesuffix("_bindings").replace("_", "-")
        return library if self.version is None else f"{library}-{self.version}"

    @property
    def place(self) -> Path:
        """Its directory."""
        return Path(os.environ.get(PLACE) or sys.prefix) / self.name

    @property
    def how_to_get(self) -> str:
        """A command."""
        where = "" if self.version is None else f" --no-deps --target {self.place}"
        return f"pip install{where} {self.packages}"

    def surface(self) -> Surface:
        """What it shows; the test is not run where it is not there."""
        surface = _surface(self)
        if isinstance(surface, str):
            pytest.skip(f"not run: no {self.name} ({self.how_to_get}): {surface}")
        return surface


def _lean(version: str, cuda: int) -> Binding:
    return Binding("tensorrt_lean_bindings", version, f"tensorrt-lean-cu{cuda}-{{libs,bindings}}=={version}")


BINDINGS = (
    Binding("tensorrt_rtx", None, "starsd-edge[tensorrt-rtx]"),
    Binding("tensorrt_rtx", "1.4.0.76", "tensorrt-rtx-cu12{,-libs,-bindings}==1.4.0.76"),
    _lean("10.15.1.29", 12),
    _lean("11.4.0.106", 13),
    Binding("tensorrt", None, "tensorrt, or what a Jetson has"),
)


@functools.cache
def _surface(binding: Binding) -> Surface | str:
    """Read in a process of its own; why not, where it cannot be."""
    if binding.version is not None and not binding.place.is_dir():
        return "there is no such directory"
    first = [] if binding.version is None else [str(binding.place)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.real_signatures", binding.module],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*first, *sys.path])},
        capture_output=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    if done.returncode != 0:
        return done.stderr.decode(errors="replace").strip().splitlines()[-1]
    return msgspec.json.decode(done.stdout, type=Surface)
