"""The two libraries of engines: TensorRT (built and run on one device) and TensorRT-RTX (built anywhere)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from starsd_edge.device.host import Host
from starsd_edge.device.jetson import full_tensorrt_version
from starsd_edge.errors import UsageError, install_extra, one_line

ENGINES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
"""Names of `--engine`, and the Python module of each."""
_HOW_TO_GET = {
    "tensorrt": "it comes with JetPack (make the virtual environment with --system-site-packages, with the system's "
    "own Python), or from NVIDIA's package index",
    "tensorrt_rtx": f"{install_extra('tensorrt-rtx')} (about 100 MB, under NVIDIA's own licence)",
}
_OLDEST = {"tensorrt": (10, 3), "tensorrt_rtx": (1, 4)}
_VERSION_PARTS = 4
_DTYPES = {"HALF": "float16", "FLOAT": "float32", "BOOL": "bool", "INT64": "int64", "INT32": "int32"}
_CALLED = {"Builder": "builder", "Runtime": "runtime"}


def import_library(
    name: str,
    wish: str,
    part: str,
    load: Callable[[str], Any] = importlib.import_module,
    host: Host | None = None,
) -> tuple[Any, str]:
    """Import one of them.

    Args:
        name: "tensorrt" or "tensorrt_rtx".
        wish: the option that needs it, for the error.
        part: what is needed of it, "Builder" or "Runtime".
        load: imports a module by its name.
        host: machine whose packages say what the module leaves out of its version; None takes this one.

    Returns:
        The module, and all four parts of its version.

    Raises:
        UsageError: not installed, incomplete, or of a version that this program was not made for.
    """
    try:
        module = load(name)
    except (ImportError, OSError) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        why = "is not installed" if missing else f"cannot be loaded ({one_line(error)[:200]})"
        raise UsageError(f"{wish} needs the Python module {name}, which {why}: {_HOW_TO_GET[name]}") from None
    if not hasattr(module, part):
        # An empty directory of that name is a module too, and packages of type stubs leave one.
        raise UsageError(f"the Python module {name} that is installed holds no {_CALLED[part]}: {_HOW_TO_GET[name]}")
    version = str(module.__version__)
    if name == "tensorrt":
        version = full_tensorrt_version(version, host or Host())
    parts = version.split(".")
    if len(parts) < _VERSION_PARTS or not all(part.isdigit() for part in parts[:_VERSION_PARTS]):
        raise UsageError(f"{name} gives its version as {version!r}, and an engine is bound to all four parts of it")
    if tuple(map(int, parts[:2])) < _OLDEST[name]:
        oldest = ".".join(map(str, _OLDEST[name]))
        raise UsageError(f"{name} {version} is too old: engines take {oldest} and newer; {_HOW_TO_GET[name]}")
    return module, version


def tensor_dtype(dtype: Any) -> str:
    """The name of a library's `DataType` in engine manifests, like "float16"."""
    name = str(dtype.name)
    return _DTYPES.get(name, name.lower())


def make_log(trt: Any, kept: int) -> Any:
    """An `ILogger` that keeps the last errors in `errors`, one line each, for whoever has to explain a failure.

    Args:
        trt: the module.
        kept: how many.
    """

    class Log(trt.ILogger):  # type: ignore[misc]
        """See `make_log`."""

        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
                self.errors[:] = [*self.errors, " ".join(message.split())][-kept:]

    return Log()
