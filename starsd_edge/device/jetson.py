"""What a Jetson is: its board, as the device tree says; its release and the installed
packages that decide which engines run. All from files that anybody may read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from starsd_edge.device.host import Host

RELEASE = "etc/nv_tegra_release"
"""The file that every Jetson Linux has."""
_STATUS = "var/lib/dpkg/status"
_CORE, _JETPACK = "nvidia-l4t-core", "nvidia-jetpack"
TENSORRT_PACKAGES = ("tensorrt", "libnvinfer10", "libnvinfer11", "libnvinfer8")
"""Of these the first that is installed tells the version."""
PYTHON_TENSORRT = "python3-libnvinfer"
_WATCHED = {_CORE, _JETPACK, PYTHON_TENSORRT, *TENSORRT_PACKAGES}

# Releases of Jetson Linux and the JetPack that brought them, from NVIDIA's release notes; used where the package
# nvidia-jetpack is not installed.
_JETPACKS = {
    "36.3.0": "6.0",
    "36.4.0": "6.1",
    "36.4.3": "6.2",
    "36.4.4": "6.2.1",
    "38.2.0": "7.0",
    "38.2.1": "7.0",
    "38.4.0": "7.1",
    "39.2.0": "7.2",
    "39.2.1": "7.2.1",
}


@dataclass(frozen=True)
class JetsonSystem:
    """The system of a Jetson. "" for what is not installed or not known.

    Attributes:
        l4t: release of Jetson Linux, like "36.4.3".
        jetpack: like "6.2".
        packages: versions of the installed packages that decide which engines run, by their names.
    """

    l4t: str
    jetpack: str
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def tensorrt(self) -> str:
        """Version of TensorRT's package, like "10.3.0.30"."""
        found = (self.packages.get(name, "") for name in TENSORRT_PACKAGES)
        return next((_upstream(version) for version in found if version), "")

    def full_version(self, version: str) -> str:
        """All four parts of a version of TensorRT of which Python tells fewer, as JetPack 6's does ("10.3.0")."""
        full = self.tensorrt
        return full if full.startswith(f"{version}.") else version

    def __str__(self) -> str:
        names = (f"JetPack {self.jetpack}" if self.jetpack else "", f"L4T {self.l4t}" if self.l4t else "")
        return ", ".join(name for name in names if name) or "an unknown JetPack"


def read_jetson_system(host: Host) -> JetsonSystem:
    """What is installed. Needs no privileges and runs no command."""
    packages = installed_packages(host, _WATCHED)
    l4t = _release(host.read(RELEASE)) or _upstream(packages.get(_CORE, ""))
    jetpack = _upstream(packages.get(_JETPACK, "")) or _JETPACKS.get(l4t, "")
    return JetsonSystem(l4t, jetpack, packages)


def full_tensorrt_version(version: str, host: Host) -> str:
    """All four parts of the version of TensorRT, which an engine is bound to.

    Args:
        version: as the Python module gives it. That of JetPack 6 gives three parts ("10.3.0"), and the package says the
            fourth; it is left as it is where no package of that version is installed.
    """
    return read_jetson_system(host).full_version(version)


def installed_packages(host: Host, names: Iterable[str]) -> dict[str, str]:
    """Versions of those of these packages that are installed, by their names, from dpkg's own file."""
    wanted = set(names)
    found = {}
    for block in _blocks(host):
        if block.get("Package") in wanted and block.get("Status", "").endswith(" installed"):
            found[block["Package"]] = block.get("Version", "")
    return found


def _blocks(host: Host) -> Iterator[dict[str, str]]:
    """The fields of one line of each package."""
    try:
        with (host.root / _STATUS).open(errors="replace") as file:
            block: dict[str, str] = {}
            for line in file:
                key, colon, value = line.partition(": ")
                if colon and not line.startswith(" "):
                    block[key] = value.strip()
                elif line == "\n":
                    yield block
                    block = {}
            yield block
    except OSError:
        return


def _release(text: str | None) -> str:
    found = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", text or "")
    return f"{found[1]}.{found[2]}" if found else ""


def _upstream(version: str) -> str:
    """A package's version without what the packager added."""
    return re.split(r"[-+~]", version.partition(":")[2] or version)[0]


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
        model: of the board, as its device tree says.
        module: name of the module on the board, or its part number.
        soc: name of its chip, like "tegra234".
        family: of the chip: "Xavier", "Orin" or "Thor".
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
