"""A session of ONNX Runtime on the fake device: KV lies in that device's memory, the graph is run on the processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from starsd_edge.runtime.onnx_cuda_engine import PROVIDER
from starsd_edge.runtime.onnx_engine import CPU_PROVIDER, open_session
from tests.support.fake_device import FakeDevice
from tests.support.fake_memory import Span

Arrays = dict[str, npt.NDArray[Any]]


class _Value:
    """An output that comes back to the host."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array

    def numpy(self) -> npt.NDArray[Any]:
        return self._array


class _Place:
    """Where a tensor lies in the device's memory."""

    def __init__(self, dtype: npt.DTypeLike, shape: tuple[int, ...], address: int) -> None:
        self.dtype, self.shape, self.address = np.dtype(dtype), shape, address

    @property
    def count(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize


class _Binding:
    """What of `IOBinding` is used."""

    def __init__(self) -> None:
        self.host: Arrays = {}
        self.places: dict[str, _Place] = {}
        self.outputs: dict[str, _Place | None] = {}
        self.results: list[_Value] = []

    def bind_cpu_input(self, name: str, array: npt.NDArray[Any]) -> None:
        self.host[name] = array

    def bind_input(
        self, name: str, kind: str, number: int, dtype: npt.DTypeLike, shape: tuple[int, ...], address: int
    ) -> None:
        assert (kind, number) == ("cuda", 0)
        self.places[name] = _Place(dtype, shape, address)

    def bind_output(
        self,
        name: str,
        kind: str = "cpu",
        number: int = 0,
        dtype: npt.DTypeLike = np.float32,
        shape: tuple[int, ...] = (),
        address: int = 0,
    ) -> None:
        assert number == 0
        self.outputs[name] = None if kind == "cpu" else _Place(dtype, shape, address)

    def get_outputs(self) -> list[_Value]:
        return self.results


class FakeGpuSession:
    """A session that says it runs on the GPU.

    Attributes:
        uploads: for each pass, the bytes of every input that came from the host.
    """

    def __init__(self, file: Path, device: FakeDevice) -> None:
        self._session = open_session(file, threads=1)
        self._device = device
        self.uploads: list[dict[str, int]] = []

    def get_providers(self) -> list[str]:
        return [PROVIDER, CPU_PROVIDER]

    def get_provider_graph_assignment_info(self) -> list[Any]:
        return []

    def io_binding(self) -> _Binding:
        return _Binding()

    def run(self, names: list[str], inputs: Arrays) -> list[npt.NDArray[Any]]:
        """Run on inputs from the host, all of which go up."""
        self.uploads.append({name: array.nbytes for name, array in inputs.items()})
        results: list[npt.NDArray[Any]] = self._session.run(names, inputs)
        return results

    def run_with_iobinding(self, binding: _Binding) -> None:
        """Run at once, on a stream of ONNX Runtime's own: nothing that the caller queued may be under way."""
        assert not self._device.scheduler.pending, "ONNX Runtime would not wait for this"
        memory = self._device.memory
        self.uploads.append({name: array.nbytes for name, array in binding.host.items()})
        past = {}
        for name, place in binding.places.items():
            content, _ = memory.read(self._span(name, place), whole=True)
            past[name] = content.view(place.dtype).reshape(place.shape)
        names = list(binding.outputs)
        results = dict(zip(names, self._session.run(names, binding.host | past), strict=True))
        for name, target in binding.outputs.items():
            if target is None:
                binding.results.append(_Value(results[name]))
            else:
                assert (results[name].dtype, results[name].shape) == (target.dtype, target.shape)
                memory.write(self._span(name, target), results[name].reshape(-1).view(np.uint8))

    def _span(self, name: str, place: _Place) -> Span:
        assert self._device.memory.is_device_address(place.address), name
        found = self._device.memory.span(place.address, place.count, name)
        assert isinstance(found, Span), found
        return found
