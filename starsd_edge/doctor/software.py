"""Checks of Python and the libraries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from starsd_edge.doctor.findings import Finding, Level

LIBRARIES = ("numpy", "msgspec", "websockets", "tokenizers", "onnxruntime", "onnxruntime-gpu", "tensorrt", "torch")
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
        is_jetson: whether this is a Jetson.
        is_isolated: whether Python runs in a virtual environment that does not see the system's packages.
        sees_tensorrt: whether `import tensorrt` would find something.
        gpu: how an NVIDIA GPU shows itself here; "" where none does.
    """

    program: str
    python: str
    system: str
    versions: Mapping[str, str | None]
    broken: Mapping[str, str]
    onnxruntime_distributions: Sequence[str]
    providers: Sequence[str]
    is_jetson: bool
    is_isolated: bool
    sees_tensorrt: bool
    gpu: str


def check_software(facts: SoftwareFacts) -> Iterator[Finding]:
    """All of them."""
    yield Finding("python", Level.OK, f"starsd-edge {facts.program}, Python {facts.python} on {facts.system}")
    yield _libraries(facts)
    yield from _compiled(facts)
    yield _speedups(facts)
    yield _onnxruntime(facts)
    yield from _gpu_providers(facts)
    if facts.is_jetson:
        yield _system_packages(facts)


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
            f"pip uninstall -y {' '.join(found)}, then pip install {_wanted(facts)}",
        )
    if not found:
        return Finding(
            "onnxruntime",
            Level.WARNING,
            "not installed: no bundle runs here; a hub that drafts by n-grams needs none",
            "pip install 'starsd-edge[cpu]'",
        )
    return Finding("onnxruntime", Level.OK, f"one distribution: {found[0]}")


def _wanted(facts: SoftwareFacts) -> str:
    return "'starsd-edge[cuda]'" if facts.gpu else "'starsd-edge[cpu]'"


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
    """The devices whose engines were not tried."""
    here = facts.gpu or "no NVIDIA GPU on this machine"
    for device in devices:
        yield Finding(f"engine {device}", Level.NOT_RUN, f"not tried by this command; here: {here}")


def _system_packages(facts: SoftwareFacts) -> Finding:
    if facts.sees_tensorrt:
        return Finding("tensorrt", Level.OK, "Python sees the system's TensorRT")
    if facts.is_isolated:
        return Finding(
            "tensorrt",
            Level.WARNING,
            "this virtual environment does not see the system's packages, so TensorRT is invisible",
            "make it again: python3 -m venv --system-site-packages DIRECTORY, with the system's own python3",
        )
    return Finding(
        "tensorrt",
        Level.WARNING,
        "this Python does not find TensorRT",
        "sudo apt-get install python3-libnvinfer, and use the system's own python3",
    )
