"""Checks of Python and the libraries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from starsd_edge.device.board import JetsonSystem
from starsd_edge.device.import_probe import ProbedModule
from starsd_edge.doctor.findings import Finding, Level
from starsd_edge.doctor.tensorrt import CUDA_PACKAGES, check_cuda_bindings, check_python_tensorrt
from starsd_edge.errors import install_extra

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
"""What decides how the program runs, by names on the package index."""
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
    yield Finding("python", Level.OK, f"starsd-edge {facts.program}, Python {facts.python} on {facts.system}")
    yield _libraries(facts)
    yield from _compiled(facts)
    yield _speedups(facts)
    yield _onnxruntime(facts)
    yield from _gpu_providers(facts)
    yield from _tensorrt(facts)


def _libraries(facts: SoftwareFacts) -> Finding:
    found = [f"{name} {version}" for name, version in facts.versions.items() if version is not None]
    return Finding("libraries", Level.OK, ", ".join(found))


def _compiled(facts: SoftwareFacts) -> Iterator[Finding]:
    for module in COMPILED:
        if module in facts.broken:
            library = module.partition(".")[0]
            yield Finding(
                "libraries",
                Level.FAILURE,
                f"{library} cannot be loaded: {facts.broken[module]}",
                f"pip install --force-reinstall --no-cache-dir {library}",
            )


def _speedups(facts: SoftwareFacts) -> Finding:
    if SPEEDUPS in facts.broken:
        return Finding(
            "websockets",
            Level.WARNING,
            "without its compiled part: masking 64 KiB takes about 50 times as long",
            "pip install --force-reinstall --only-binary websockets websockets",
        )
    return Finding("websockets", Level.OK, "with its compiled part (speedups)")


def _onnxruntime(facts: SoftwareFacts) -> Finding:
    found = sorted(facts.onnxruntime_distributions)
    if len(found) > 1:
        return Finding(
            "onnxruntime",
            Level.FAILURE,
            f"{' and '.join(found)} are both installed and overwrite each other",
            f"pip uninstall -y {' '.join(found)}, then {_wanted(facts)}",
        )
    if not found and facts.tensorrt is not None and facts.gpu:
        text = "not installed: only engines of TensorRT run here"
        return Finding("onnxruntime", Level.NOTE, text, f"for --device cpu: {install_extra('cpu')}")
    if not found:
        return Finding(
            "onnxruntime",
            Level.WARNING,
            "not installed: no bundle runs here; a hub that drafts by n-grams needs none",
            install_extra("cpu"),
        )
    return Finding("onnxruntime", Level.OK, f"one distribution: {found[0]}")


def _wanted(facts: SoftwareFacts) -> str:
    return install_extra("cuda" if facts.gpu else "cpu")


def _gpu_providers(facts: SoftwareFacts) -> Iterator[Finding]:
    listed = [name for name in facts.providers if name.startswith(("CUDA", "Tensorrt", "NvTensorRT"))]
    if listed:
        yield Finding(
            "providers",
            Level.NOTE,
            f"onnxruntime lists {', '.join(listed)}, which says only that they were built in: what counts is an "
            "inference that ran",
        )


def check_gpu_engines(facts: SoftwareFacts, devices: Sequence[str]) -> Iterator[Finding]:
    """The devices on which none ran."""
    here = f"no bundle here has an engine for it ({facts.gpu})" if facts.gpu else "no NVIDIA GPU on this machine"
    for device in devices:
        yield Finding(f"engine {device}", Level.NOT_RUN, here)


def _tensorrt(facts: SoftwareFacts) -> Iterator[Finding]:
    sees = check_python_tensorrt(
        facts.tensorrt, facts.jetson, is_isolated=facts.is_isolated, python=facts.python, has_gpu=bool(facts.gpu)
    )
    if sees is not None:
        yield sees
    if facts.tensorrt is not None and facts.gpu:
        yield check_cuda_bindings(facts.versions, facts.cuda_of_driver, facts.jetson)
