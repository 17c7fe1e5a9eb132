"""A deserialised plan: the library's objects, kept together, and held to what the engine's manifest says of them.

TensorRT's Python objects do not own what they were made with, so all of them are kept here. Where it cannot do
something it says so in its log and returns None or False; `Plan.require` turns that into an error.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starsd_edge.bundles.engine_manifest import EngineManifest, EngineTensor, rebuild_command
from starsd_edge.errors import EngineError
from starsd_edge.runtime.tensorrt_library import make_log, tensor_dtype

_KEPT_MESSAGES = 8


class Plan:
    """An engine of TensorRT or TensorRT-RTX.

    Attributes:
        trt: the module.
        engine: its `ICudaEngine`.
        manifest: what was built.
    """

    def __init__(self, trt: Any, file: Path, manifest: EngineManifest) -> None:
        """Args:
        trt: the module `tensorrt` or `tensorrt_rtx`.
        file: the plan, checked against its manifest.
        manifest: the engine's, found to fit this machine.

        Raises:
            EngineError: the library does not take the plan, or it is not what the manifest says.
        """
        self.trt, self.manifest = trt, manifest
        self._log = make_log(trt, _KEPT_MESSAGES)
        self._runtime = trt.Runtime(self._log)
        # Mapped, not read: where processor and GPU share their memory, a copy would count twice.
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as plan:
            self.engine = self._runtime.deserialize_cuda_engine(plan)
        self.require(self.engine is not None, f"open {file}")
        for difference in self._differences():
            raise EngineError(f"{file} {difference}: build it again with `{rebuild_command(manifest)}`")

    def require(self, done: bool, what: str) -> None:
        """Raises EngineError, with what the library has logged, unless `done`."""
        if not done:
            said = "; ".join(dict.fromkeys(self._log.errors)) or "it does not say why"
            self._log.errors.clear()
            raise EngineError(
                f"{self.manifest.library} {self.manifest.version} cannot {what}: {said}; close other programs that use "
                f"the GPU, or build it again with `{rebuild_command(self.manifest)}`"
            )

    def names(self, mode: str) -> list[str]:
        """Of its inputs, or of its outputs."""
        return [tensor.name for tensor in self.manifest.tensors if tensor.mode == mode]

    def _differences(self) -> Iterator[str]:
        """How the engine is not what its manifest says."""
        engine, manifest = self.engine, self.manifest
        found = {tensor.name: tensor for tensor in map(self._tensor, range(engine.num_io_tensors))}
        for name in sorted(found.keys() ^ {tensor.name for tensor in manifest.tensors}):
            yield f"has {'a' if name in found else 'no'} tensor {name}, unlike its manifest"
            return
        for tensor in manifest.tensors:
            if not _agree(found[tensor.name], tensor):
                yield f"has another tensor {tensor.name} than its manifest"
            if engine.get_tensor_location(tensor.name) != self.trt.TensorLocation.DEVICE:
                yield f"wants {tensor.name} in the host's memory"
        if engine.num_optimization_profiles != len(manifest.profiles):
            yield f"has {engine.num_optimization_profiles} profiles, unlike its manifest ({len(manifest.profiles)})"
        if hasattr(engine, "get_aliased_input_tensor"):  # from TensorRT 10.15 on
            for output, place in manifest.aliases.items():
                if engine.get_aliased_input_tensor(output) != place:
                    yield f"does not write {output} where {place} lies"

    def _tensor(self, index: int) -> EngineTensor:
        engine = self.engine
        name = engine.get_tensor_name(index)
        return EngineTensor(
            name=name,
            mode="input" if engine.get_tensor_mode(name) == self.trt.TensorIOMode.INPUT else "output",
            dtype=tensor_dtype(engine.get_tensor_dtype(name)),
            shape=[int(size) for size in engine.get_tensor_shape(name)],
        )


def _agree(found: EngineTensor, stated: EngineTensor) -> bool:
    """Whether two descriptions are of one tensor; either may leave open what a pass chooses."""
    if (found.mode, found.dtype, len(found.shape)) != (stated.mode, stated.dtype, len(stated.shape)):
        return False
    return all(a == b or -1 in (a, b) for a, b in zip(found.shape, stated.shape, strict=True))
