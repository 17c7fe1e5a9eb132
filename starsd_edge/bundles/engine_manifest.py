"""The manifest of an engine: what it was built from, by what and for which GPU, checked before anything opens it.

An engine is a directory:

    engine.json    this schema
    engine.plan    what the builder wrote

A plan runs on the GPU kind and with the library version that it was built for, and nowhere else; opened elsewhere it
may take the process down with it. So nothing deserialises a plan before `require_fit` and its sha256 have agreed.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from starsd_edge.bundles.checked_files import file_digest
from starsd_edge.bundles.manifest import Manifest, Positive
from starsd_edge.errors import EngineError

ENGINE_NAME = "engine.json"
PLAN_NAME = "engine.plan"
_MAX_MANIFEST_BYTES = 1 << 20


class EngineLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What its profiles take: committed tokens, rows of a verify pass, rows of a prefill chunk."""

    max_context: Positive
    max_tree: Positive
    max_chunk: Positive


class EngineTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One input or output. Dimensions that a pass chooses are -1."""

    name: str
    mode: Literal["input", "output"]
    dtype: str
    shape: list[int]


class EngineManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """engine.json."""

    schema_version: Literal[1]
    bundle: str
    """Name of the bundle whose graph it was built from."""
    graph_digest: str
    """`graph_digest` of that bundle."""
    library: Literal["tensorrt", "tensorrt_rtx"]
    version: str
    """Of the library, all four parts."""
    compute_capability: str
    """Like "sm87"."""
    platform: str
    """`platform_name` of the machine that can run it."""
    weights: str
    kv_strategy: Literal["append", "inplace"]
    limits: EngineLimits
    profiles: list[str]
    """Their names, in the order of their indices."""
    tensors: list[EngineTensor]
    aliases: dict[str, str]
    """Outputs that have to lie where an input lies, by their names."""
    plan_bytes: Positive
    plan_sha256: str
    created_by: str
    build_seconds: float
    build_memory_bytes: int
    """The most that the builder's process had in memory."""
    further_capabilities: list[str] = []
    """Kinds of GPU that the same plan runs on beside `compute_capability`."""

    @property
    def compute_capabilities(self) -> tuple[str, ...]:
        """Every kind of GPU that it runs on."""
        return (self.compute_capability, *self.further_capabilities)


@dataclass(frozen=True)
class EngineHost:
    """What is here to run an engine.

    Attributes:
        library: "tensorrt" or "tensorrt_rtx".
        version: of it, all four parts.
        compute_capability: of the GPU, like "sm87".
        platform: `platform_name()`.
    """

    library: str
    version: str
    compute_capability: str
    platform: str


def platform_name() -> str:
    """Operating system and processor of this machine, like "linux-aarch64"."""
    return f"{platform.system().lower()}-{platform.machine()}"


def graph_digest(manifest: Manifest) -> str:
    """What names a bundle's graph and its weights: their sha256, as the bundle vouches for them."""
    graph = manifest.graph
    return f"{manifest.files[graph.file]}-{manifest.files[graph.weights_file]}"


def is_engine_of(engine: EngineManifest, bundle: Manifest) -> bool:
    """Whether an engine was built of a bundle's graph, or of another one of its name."""
    return engine.bundle == bundle.name or engine.graph_digest == graph_digest(bundle)


def read_engine_manifest(directory: Path) -> EngineManifest:
    """The manifest of an engine's directory.

    Raises:
        EngineError: none there, or damaged.
    """
    file = directory / ENGINE_NAME
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_MANIFEST_BYTES + 1)
    except OSError:
        raise EngineError(
            f"there is no engine at {directory} ({ENGINE_NAME} cannot be read): build one with "
            "`starsd-edge export BUNDLE --engine ...`"
        ) from None
    if len(data) > _MAX_MANIFEST_BYTES:
        raise EngineError(f"{file} is far too long for an engine's manifest: build the engine again")
    try:
        return msgspec.json.decode(data, type=EngineManifest)
    except msgspec.DecodeError as error:
        raise EngineError(f"{file} is damaged ({error}): build the engine again") from None


def rebuild_command(engine: EngineManifest, host: EngineHost | None = None) -> str:
    """The command that builds this engine again, for another machine where one is given."""
    where = host or EngineHost(engine.library, engine.version, engine.compute_capability, engine.platform)
    kind = where.library.replace("_", "-")
    wanted = engine.compute_capabilities if host is None else (host.compute_capability,)
    capabilities = [f" --compute-capability {name}" for name in wanted if kind == "tensorrt-rtx"]
    return f"starsd-edge export {engine.bundle} --engine {kind}{''.join(capabilities)}"


def require_fit(directory: Path, engine: EngineManifest, host: EngineHost, manifest: Manifest) -> None:
    """Check that an engine belongs to a bundle and runs here.

    Raises:
        EngineError: names the first thing that differs, and the command that builds one that fits.
    """
    kinds = engine.compute_capabilities
    kind = host.compute_capability if host.compute_capability in kinds else ", ".join(kinds)
    differences = (
        ("is of another kind of library", engine.library, host.library),
        (f"was built by another version of {engine.library}", engine.version, host.version),
        ("was built for another kind of GPU", kind, host.compute_capability),
        ("was built for another kind of machine", engine.platform, host.platform),
        ("was built from another graph", engine.graph_digest, graph_digest(manifest)),
    )
    for what, built, here in differences:
        if built != here:
            values = "" if what.endswith("graph") else f" ({built}; here it is {here})"
            raise EngineError(
                f"the engine at {directory} {what}{values}: build it again with `{rebuild_command(engine, host)}`"
            )


def require_plan(directory: Path, engine: EngineManifest, *, anew: bool = False) -> Path:
    """The plan's file, checked against the manifest.

    Args:
        anew: read it also where it was read before and has not changed since.

    Raises:
        EngineError: missing, cut short or altered.
    """
    plan = directory / PLAN_NAME
    again = f"build it again with `{rebuild_command(engine)}`"
    if not plan.is_file():
        raise EngineError(f"the engine at {directory} is incomplete ({PLAN_NAME} is missing): {again}")
    size = plan.stat().st_size
    if size != engine.plan_bytes:
        raise EngineError(f"{plan} has {size} bytes and not the {engine.plan_bytes} that were built: {again}")
    if file_digest(plan, anew=anew) != engine.plan_sha256:
        raise EngineError(f"{plan} is not the file that was built (its sha256 differs): {again}")
    return plan
