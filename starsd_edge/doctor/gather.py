"""The facts of this machine, read where they are. Nothing here judges."""

from __future__ import annotations

import importlib
import platform
import resource
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

import psutil

from starsd_edge import __version__
from starsd_edge.bench.figures import installed_version, usable_cores
from starsd_edge.device.facts import DeviceFacts
from starsd_edge.device.gpus import driver_version
from starsd_edge.device.host import Host, read
from starsd_edge.device.import_probe import probe_module
from starsd_edge.doctor.machine import MachineFacts
from starsd_edge.doctor.software import COMPILED, LIBRARIES, SPEEDUPS, SoftwareFacts


def gather_software(device: DeviceFacts, host: Host) -> SoftwareFacts:
    """What runs here.

    Args:
        device: of this machine.
        host: the same, to run commands on.
    """
    gpus = device.gpus
    distributions = sorted(set(packages_distributions().get("onnxruntime", ())))
    return SoftwareFacts(
        program=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        versions={name: installed_version(name) for name in LIBRARIES},
        broken=_broken([*COMPILED, SPEEDUPS]),
        onnxruntime_distributions=distributions,
        providers=_providers() if distributions else (),
        jetson=device.system,
        is_isolated=_is_isolated(Path(sys.prefix), Path(sys.base_prefix)),
        tensorrt=probe_module("tensorrt", host.run),
        tensorrt_rtx=probe_module("tensorrt_rtx", host.run),
        gpu=gpus.found[0].name if gpus.found else f"an NVIDIA GPU ({gpus.device})" if gpus.device else "",
        cuda_of_driver=driver_version(),
    )


def gather_machine(cache: Path, hub_files: int) -> MachineFacts:
    """What the machine has.

    Args:
        cache: its directory, which need not exist yet.
        hub_files: see `MachineFacts`.
    """
    memory = psutil.virtual_memory()
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    return MachineFacts(
        cores=usable_cores(),
        memory_bytes=memory.total,
        available_bytes=memory.available,
        cache=str(cache),
        cache_free_bytes=shutil.disk_usage(existing).free,
        open_files=_open_files(),
        hub_files=hub_files,
    )


def available_memory() -> int:
    """Bytes free for use now."""
    return int(psutil.virtual_memory().available)


def _open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _broken(modules: Sequence[str]) -> dict[str, str]:
    broken = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            broken[name] = " ".join(str(error).split())
    return broken


def _providers() -> Sequence[str]:
    """None where it cannot be loaded, as may happen where two distributions overwrote each other."""
    try:
        return tuple(importlib.import_module("onnxruntime").get_available_providers())
    except (ImportError, AttributeError):
        return ()


def _is_isolated(prefix: Path, base: Path) -> bool:
    if prefix == base:
        return False
    settings = read(prefix / "pyvenv.cfg") or ""
    pairs = (line.partition("=") for line in settings.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}.get("include-system-site-packages") != "true"
