"""The inputs of a pass as they go up, and its outputs as they come down."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from starsd_edge.runtime.cuda import Device, HostMemory, aligned
from starsd_edge.runtime.engine import EngineSpec, Step, TopTwo
from starsd_edge.runtime.kv_engine import PassRows
from starsd_edge.runtime.onnx_engine import TOP_OUTPUTS


class SharedBlock:
    """One block.

    Args:
        sizes: bytes of every place, in the order in which they shall lie.
        purpose: for the error where there is no memory.
        apart: two pieces also where one would do: for what the GPU itself reads again, and the host seldom.
    """

    def __init__(self, device: Device, sizes: Mapping[str, int], purpose: str, *, apart: bool = False) -> None:
        self._device, self._purpose = device, purpose
        self._starts: dict[str, int] = {}
        self._size = 0
        for name, size in sizes.items():
            self._starts[name] = self._size
            self._size += aligned(size)
        self._is_one = device.has_unified_memory and not apart
        self._own = None if self._is_one else device.allocate(self._size, purpose)
        if self._own is not None:
            device.clear(self._own)

    @cached_property
    def _host(self) -> HostMemory:
        """The host's side, made when it is first used: of what stays on the GPU there is none."""
        return self._device.allocate_host(self._size, self._purpose, seen=self._is_one)

    @property
    def addresses(self) -> dict[str, int]:
        """Where the GPU finds every place."""
        base = self._host.address if self._own is None else self._own.address
        return {name: (base or 0) + start for name, start in self._starts.items()}

    def put(self, name: str, array: npt.NDArray[Any]) -> None:
        """Write an array into a place, on the host's side."""
        start = self._starts[name]
        self._host.bytes[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def upload(self, last: str, size: int) -> None:
        """Let the GPU see everything up to the first `size` bytes of one place, in the order of the stream."""
        if self._own is not None:
            self._device.upload(self._own.address, self._host.pointer, self._starts[last] + size)

    def download(self, name: str, size: int) -> None:
        """Let the host see the first `size` bytes of a place, once the device is synchronised."""
        if self._own is not None:
            start = self._starts[name]
            self._device.download(self._host.pointer + start, self._own.address + start, size)

    def take(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """A copy of what lies in a place on the host's side."""
        start, kind = self._starts[name], np.dtype(dtype)
        size = kind.itemsize * int(np.prod(shape))
        array: npt.NDArray[Any] = self._host.bytes[start : start + size].view(kind).reshape(shape).copy()
        return array


_INT64, _FLOAT32, _FLOAT16 = (np.dtype(kind).itemsize for kind in (np.int64, np.float32, np.float16))


class PassInputs:
    """Everything but the KV."""

    def __init__(self, device: Device, spec: EngineSpec, has_past_len: bool) -> None:
        rows = max(spec.max_tree, spec.max_chunk)
        sizes = {"input_ids": rows * _INT64, "position_ids": rows * _INT64, "logits_idx": spec.max_tree * _INT64}
        if has_past_len:
            sizes["past_len"] = _INT64
        self._has_past_len = has_past_len
        # The mask comes last: it alone is large, and a small pass sends little of it.
        self._block = SharedBlock(device, sizes | {"tree_mask": rows * rows}, "the inputs of a pass")
        self.addresses = self._block.addresses
        """By tensor."""

    def send(self, rows: PassRows, past_len: int) -> None:
        """Write a pass's inputs where the GPU sees them, in the order of the stream. The pass before has ended."""
        put = self._block.put
        put("input_ids", np.asarray(rows.tokens, np.int64))
        put("position_ids", np.asarray(rows.positions, np.int64))
        put("logits_idx", np.asarray(rows.wanted, np.int64))
        if self._has_past_len:
            put("past_len", np.array([past_len], np.int64))
        put("tree_mask", np.asarray(rows.tree_mask, np.bool_))
        self._block.upload("tree_mask", rows.count**2)


class PassOutputs:
    """Everything but the KV."""

    def __init__(self, device: Device, spec: EngineSpec, outputs: Collection[str]) -> None:
        """Args:
        outputs: names of what the graph gives.
        """
        self._device, self._spec = device, spec
        self._has_top = all(name in outputs for name in TOP_OUTPUTS)
        rows = max(spec.max_tree, spec.max_chunk)
        sizes = {"features": rows * spec.feature_width * _FLOAT16}
        if self._has_top:
            sizes |= {"top_ids": spec.max_tree * 2 * _INT64, "top_logits": spec.max_tree * 2 * _FLOAT32}
        self._block = SharedBlock(device, sizes, "the outputs of a pass")
        size = spec.max_tree * spec.vocab_size * _FLOAT32
        # The two highest are found by reading all of them: from memory that the GPU caches.
        self._logits_block = SharedBlock(device, {"logits": size}, "the logits of a pass", apart=self._has_top)
        self.addresses = self._block.addresses | self._logits_block.addresses
        """By tensor."""

    def step(self, rows: int, logits: int) -> Step:
        """Wait for the pass, and give what came of it."""
        self._order_features(rows)
        if not self._has_top:
            self._order_logits(logits)
            self._device.synchronize()
            return Step(self._logits(logits), self._features(rows))
        self._block.download("top_ids", logits * 2 * _INT64)
        self._block.download("top_logits", logits * 2 * _FLOAT32)
        self._device.synchronize()
        ids = self._block.take("top_ids", np.int64, (logits, 2))
        top = TopTwo(ids, self._block.take("top_logits", np.float32, (logits, 2)))
        return Step(lambda: self._late_logits(logits), self._features(rows), top)

    def read(self, rows: int, logits: int) -> list[npt.NDArray[Any]]:
        """Wait for the pass, and give its features and all of its logits."""
        self._order_features(rows)
        self._order_logits(logits)
        self._device.synchronize()
        return [self._features(rows), self._logits(logits)]

    def _late_logits(self, logits: int) -> npt.NDArray[np.float32]:
        self._order_logits(logits)
        self._device.synchronize()
        return self._logits(logits)

    def _order_features(self, rows: int) -> None:
        self._block.download("features", rows * self._spec.feature_width * _FLOAT16)

    def _order_logits(self, logits: int) -> None:
        self._logits_block.download("logits", logits * self._spec.vocab_size * _FLOAT32)

    def _features(self, rows: int) -> npt.NDArray[np.float16]:
        return self._block.take("features", np.float16, (rows, self._spec.feature_width))

    def _logits(self, logits: int) -> npt.NDArray[np.float32]:
        return self._logits_block.take("logits", np.float32, (logits, self._spec.vocab_size))
