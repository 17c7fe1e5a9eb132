"""Checks of Python and the libraries, TensorRT among them: what its version can run, and whether Python sees the
library or only something of its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from starsd_edge.device.gpus import older_cuda_python, wanted_cuda_python
from starsd_edge.device.import_probe import ProbedModule
from starsd_edge.device.jetson import PYTHON_TENSORRT, JetsonSystem
from starsd_edge.doctor.findings import Finding, failure, not_run, note, ok, warning
from starsd_edge.errors import install_extra

_APPEND, _INPLACE = (10, 3), (10, 15, 1)
"""Oldest versions of TensorRT that run append and inplace graphs."""
_NOT_ON_JETSON = ((11, 0), (11, 4, 1))
"""Versions of TensorRT that support no Jetson: from the first of these on, and before the second."""
_GOOD_JETPACKS = "JetPack 6.2 or 7.2"
CUDA_PACKAGES = ("cuda-bindings", "cuda-python")
"""Distributions with the CUDA calls. The second one counts only up to CUDA 12.6, which has no first one."""
_CUDA_OF_L4T = {36: (12, 6), 38: (13, 0), 39: (13, 2)}
"""Versions of CUDA by the major version of Jetson Linux."""


def kv_strategies(version: str) -> tuple[str, ...]:
    """Which graphs a version of TensorRT runs: "append", "inplace", both or none."""
    parts = _parts(version)
    if parts < _APPEND:
        return ()
    return ("append", "inplace") if parts >= _INPLACE else ("append",)


def check_jetson_tensorrt(system: JetsonSystem) -> Finding:
    """Whether the TensorRT that this JetPack brought runs engines of ours, and which."""
    version = system.tensorrt
    if not version:
        return warning(
            "engines",
            "TensorRT is not installed, so no engine can be built or run here",
            "sudo apt-get install nvidia-jetpack",
        )
    strategies = kv_strategies(version)
    if not strategies:
        return warning(
            "engines",
            f"TensorRT {version} is too old: engines need 10.3",
            f"install {_GOOD_JETPACKS}, which brings its own TensorRT",
        )
    if _NOT_ON_JETSON[0] <= _parts(version) < _NOT_ON_JETSON[1]:
        return warning(
            "engines",
            f"TensorRT {version} supports no Jetson (from 11.4.1 on it does again)",
            f"install the TensorRT 10 of {_GOOD_JETPACKS}",
        )
    if "inplace" in strategies:
        return ok("engines", f"TensorRT {version} runs append and inplace graphs")
    return ok("engines", f"TensorRT {version} runs append graphs; inplace ones need 10.15.1 (JetPack 7.2)")


def check_python_tensorrt(
    module: ProbedModule | None, system: JetsonSystem | None, *, is_isolated: bool, python: str, has_gpu: bool
) -> Finding | None:
    """Whether `import tensorrt` gives the library. None where it is of no use.

    Args:
        module: what the import gave; None where nothing of that name is found.
        system: of a Jetson.
        is_isolated: Python runs in a virtual environment that does not see the system's packages.
        python: version.
        has_gpu: whether an NVIDIA GPU is here.
    """
    if module is None:
        if system is not None:
            return _missing_on_jetson(system, is_isolated=is_isolated, python=python)
        if not has_gpu:
            return None
        text = "not installed: this GPU runs no TensorRT engine"
        return note("tensorrt", text, "pip install tensorrt, from NVIDIA's package index")
    if module.is_empty:
        where = module.paths[0] if module.paths else "a folder"
        text = f"`import tensorrt` finds {where}, a folder without the library, as packages of type stubs leave one"
        return warning("tensorrt", text, "pip uninstall tensorrt-stubs, or remove that folder")
    if module.error:
        remedy = "install TensorRT and its libraries from one source, in one version"
        return warning("tensorrt", f"it cannot be imported: {module.error}", remedy)
    if system is not None and system.tensorrt and _parts(module.version)[:3] != _parts(system.tensorrt)[:3]:
        text = f"Python sees TensorRT {module.version}, the system has {system.tensorrt}"
        return warning("tensorrt", text, "pip uninstall tensorrt: on a Jetson the system's own counts")
    return ok("tensorrt", f"Python sees TensorRT {module.version}")


def check_cuda_bindings(
    versions: Mapping[str, str | None], driver: tuple[int, int] | None, system: JetsonSystem | None
) -> Finding:
    """Whether the CUDA calls of a TensorRT engine can be made.

    Args:
        versions: of `CUDA_PACKAGES`; None for one that is not installed.
        driver: major and minor version of CUDA that it is of; None where it does not say, and then that of the JetPack
            counts.
        system: of a Jetson.
    """
    told = driver or (None if system is None else _CUDA_OF_L4T.get(_parts(system.l4t)[0] if system.l4t else 0))
    found = [(name, version) for name in CUDA_PACKAGES if (version := versions.get(name)) is not None]
    if not found:
        remedy = f"pip install {wanted_cuda_python(told)}"
        return warning("cuda", "cuda-python is not installed: no engine can run", remedy)
    name, version = found[0]
    if told is not None and _parts(version)[:2] > told:
        text = f"{name} {version} has a newer runtime than this machine's driver, which is of CUDA {told[0]}.{told[1]}"
        # Beside a Jetson's, a driver takes most of what a newer one of its own major version calls.
        works = system is None and _parts(version)[0] == told[0]
        return (note if works else warning)("cuda", text, older_cuda_python(told))
    if told is not None and system is not None and _parts(version)[0] != told[0]:
        text = f"{name} {version} is not for the CUDA {told[0]} of this JetPack"
        return warning("cuda", text, older_cuda_python(told))
    return ok("cuda", f"{name} {version}")


def _missing_on_jetson(system: JetsonSystem, *, is_isolated: bool, python: str) -> Finding:
    remake = "make it again: python3 -m venv --system-site-packages DIRECTORY, with the system's own python3"
    if is_isolated:
        text = "this virtual environment does not see the system's packages, so TensorRT is invisible"
        return warning("tensorrt", text, remake)
    if PYTHON_TENSORRT in system.packages:
        text = f"this Python ({python}) is not the system's own, for which TensorRT was made"
        return warning("tensorrt", text, "use /usr/bin/python3 for the virtual environment")
    text = "this Python does not find TensorRT"
    return warning("tensorrt", text, f"sudo apt-get install {PYTHON_TENSORRT}, and use the system's own python3")


def _parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


LIBRARIES = (
    "numpy",
    "msgspec",
    "websockets",
    "tokenizers",
    "onnxruntime",
    "onnxruntime-gpu",
    "tensorrt",
    *CUDA_PACKAGES,
    "torch",
)
"""Libraries that decide how the program runs, by their names on the package index."""
COMPILED = ("msgspec.msgpack", "tokenizers", "numpy")
"""Modules with compiled parts, which fail to load where they were built for another machine."""
SPEEDUPS = "websockets.speedups"


@dataclass(frozen=True)
class SoftwareFacts:
    """What runs here.

    Attributes:
        program: version of starsd-edge.
        python: version.
        system: name, release and machine.
        versions: of `LIBRARIES`; None where one is not installed.
        broken: why a module of `COMPILED` or `SPEEDUPS` cannot be imported, by its name.
        onnxruntime_distributions: those that wrote the package folder `onnxruntime`.
        providers: what onnxruntime says it can use; none where it is not installed.
        jetson: system of a Jetson; None on other machines.
        is_isolated: whether Python runs in a virtual environment that does not see the system's packages.
        tensorrt, tensorrt_rtx: what importing them gives; None where nothing is found.
        gpu: how an NVIDIA GPU shows itself here; "" where none does.
        cuda_of_driver: major and minor version of CUDA that NVIDIA's driver is of; None where it does not say.
    """

    program: str
    python: str
    system: str
    versions: Mapping[str, str | None]
    broken: Mapping[str, str]
    onnxruntime_distributions: Sequence[str]
    providers: Sequence[str]
    jetson: JetsonSystem | None
    is_isolated: bool
    tensorrt: ProbedModule | None
    gpu: str
    tensorrt_rtx: ProbedModule | None = None
    cuda_of_driver: tuple[int, int] | None = None

    @property
    def has_cuda_provider(self) -> bool:
        """Whether this onnxruntime was built for NVIDIA GPUs."""
        return "CUDAExecutionProvider" in self.providers


def check_software(facts: SoftwareFacts) -> Iterator[Finding]:
    """All of them."""
    yield ok("python", f"starsd-edge {facts.program}, Python {facts.python} on {facts.system}")
    yield _libraries(facts)
    yield from _compiled(facts)
    yield _speedups(facts)
    yield _onnxruntime(facts)
    yield from _gpu_providers(facts)
    yield from _tensorrt(facts)


def _libraries(facts: SoftwareFacts) -> Finding:
    found = [f"{name} {version}" for name, version in facts.versions.items() if version is not None]
    return ok("libraries", ", ".join(found))


def _compiled(facts: SoftwareFacts) -> Iterator[Finding]:
    for module in COMPILED:
        if module in facts.broken:
            library = module.partition(".")[0]
            yield failure(
                "libraries",
                f"{library} cannot be loaded: {facts.broken[module]}",
                f"pip install --force-reinstall --no-cache-dir {library}",
            )


def _speedups(facts: SoftwareFacts) -> Finding:
    if SPEEDUPS in facts.broken:
        return warning(
            "websockets",
            "without its compiled part: masking 64 KiB takes about 50 times as long",
            "pip install --force-reinstall --only-binary websockets websockets",
        )
    return ok("websockets", "with its compiled part (speedups)")


def _onnxruntime(facts: SoftwareFacts) -> Finding:
    found = sorted(facts.onnxruntime_distributions)
    if len(found) > 1:
        return failure(
            "onnxruntime",
            f"{' and '.join(found)} are both installed and overwrite each other",
            f"pip uninstall -y {' '.join(found)}, then {_wanted(facts)}",
        )
    if not found and facts.tensorrt is not None and facts.gpu:
        text = "not installed: only engines of TensorRT run here"
        return note("onnxruntime", text, f"for --device cpu: {install_extra('cpu')}")
    if not found:
        return warning(
            "onnxruntime",
            "not installed: no bundle runs here; a hub that drafts by n-grams needs none",
            install_extra("cpu"),
        )
    return ok("onnxruntime", f"one distribution: {found[0]}")


def _wanted(facts: SoftwareFacts) -> str:
    return install_extra("cuda" if facts.gpu else "cpu")


def _gpu_providers(facts: SoftwareFacts) -> Iterator[Finding]:
    listed = [name for name in facts.providers if name.startswith(("CUDA", "Tensorrt", "NvTensorRT"))]
    if listed:
        yield note(
            "providers",
            f"onnxruntime lists {', '.join(listed)}, which says only that they were built in: what counts is an "
            "inference that ran",
        )


def check_gpu_engines(facts: SoftwareFacts, devices: Sequence[str]) -> Iterator[Finding]:
    """The devices on which none ran."""
    here = f"no bundle here has an engine for it ({facts.gpu})" if facts.gpu else "no NVIDIA GPU on this machine"
    for device in devices:
        yield not_run(f"engine {device}", here)


def _tensorrt(facts: SoftwareFacts) -> Iterator[Finding]:
    sees = check_python_tensorrt(
        facts.tensorrt, facts.jetson, is_isolated=facts.is_isolated, python=facts.python, has_gpu=bool(facts.gpu)
    )
    if sees is not None:
        yield sees
    if facts.tensorrt is not None and facts.gpu:
        yield check_cuda_bindings(facts.versions, facts.cuda_of_driver, facts.jetson)
