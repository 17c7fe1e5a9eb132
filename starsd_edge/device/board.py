"""Which board this is, as its device tree says."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starsd_edge.device.host import Host
from starsd_edge.device.jetpack import RELEASE

_TREE = ("proc/device-tree", "sys/firmware/devicetree/base")
_PART = re.compile(r"p\d{4}-\d{4}(?!.*p\d{4}-\d{4})")
"""The last part number of a name: the module stands behind the board that carries it."""

# SoCs, as the last name of a board's `compatible` gives them: family and compute capability of the GPU.
_SOCS = {
    "tegra194": ("Xavier", "sm72"),
    "tegra234": ("Orin", "sm87"),
    "tegra23x": ("Orin", "sm87"),
    "tegra264": ("Thor", "sm110"),
}
# Modules by their part numbers, from NVIDIA's developer guides.
_MODULES = {
    "p3701-0000": "AGX Orin",
    "p3701-0004": "AGX Orin 32GB",
    "p3701-0005": "AGX Orin 64GB",
    "p3701-0008": "AGX Orin Industrial",
    "p3767-0000": "Orin NX 16GB",
    "p3767-0001": "Orin NX 8GB",
    "p3767-0003": "Orin Nano 8GB",
    "p3767-0004": "Orin Nano 4GB",
    "p3767-0005": "Orin Nano 8GB (developer kit)",
    "p3834-0008": "AGX Thor",
}


@dataclass(frozen=True)
class Board:
    """A Jetson. "" where its device tree, or this program, does not know.

    Attributes:
        model: as it calls itself.
        module: what is plugged into it.
        soc: like "tegra234".
        family: of it: "Xavier", "Orin" or "Thor".
        compute_capability: of its GPU, like "sm87".
    """

    model: str
    module: str = ""
    soc: str = ""
    family: str = ""
    compute_capability: str = ""

    def __str__(self) -> str:
        told = ", ".join(part for part in (self.module, self.soc, self.compute_capability) if part)
        return f"{self.model} ({told})" if told else self.model


def read_board(host: Host) -> Board | None:
    """The board; None on any other machine.

    A container sees no device tree, but may see the release file: it runs on a Jetson that cannot be told further.
    """
    model, compatible = _property(host, "model"), _property(host, "compatible") or ""
    names = [name for name in re.split(r"[\0\n ]+", compatible) if name]
    soc = next((name.partition(",")[2] for name in reversed(names) if name.startswith("nvidia,tegra")), "")
    if not soc and "jetson" not in (model or "").lower() and not host.exists(RELEASE):
        return None
    family, capability = _SOCS.get(soc, ("", ""))
    parts = [found[0] for found in map(_PART.search, names) if found]
    module = next((_MODULES[part] for part in parts if part in _MODULES), parts[0] if parts else "")
    return Board(model or "Jetson", module, soc, family, capability)


def _property(host: Host, name: str) -> str | None:
    return next((text for text in (host.read(f"{tree}/{name}") for tree in _TREE) if text is not None), None)
