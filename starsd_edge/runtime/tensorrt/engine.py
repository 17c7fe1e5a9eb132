"""The TensorRT engine on the `Engine` contract.

A pass: inputs go up, the context of the right profile runs, features come down, the host waits. Logits stay on the GPU
until somebody reads them where the graph also gives the two highest of every row; else they come with the features.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence as ListLike
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starsd_edge.bundles.engine_manifest import EngineManifest
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.errors import EngineError
from starsd_edge.runtime.cuda import Device
from starsd_edge.runtime.cuda_caches import FIRST_ROWS, AppendCaches, Caches, Half, InplaceCaches, KvShape
from starsd_edge.runtime.engine import Step
from starsd_edge.runtime.kv_engine import EngineSequence, KvEngine, PassRows, require_room
from starsd_edge.runtime.onnx_engine import graph_spec
from starsd_edge.runtime.tensorrt.captured import CapturedPasses, Context, Shape, make_workspace
from starsd_edge.runtime.tensorrt.passes import PassInputs, PassOutputs
from starsd_edge.runtime.tensorrt.plan import Plan


@dataclass(frozen=True)
class _Lent:
    """What a sequence works with, and the next one after it.

    Attributes:
        caches: its KV.
        captured: recorded passes over these caches; None where passes are not recorded.
    """

    caches: Caches
    captured: CapturedPasses | None


@dataclass(eq=False)
class TensorrtSequence(EngineSequence):
    """KV of one sequence on the GPU.

    Attributes:
        lent: what holds its rows.
    """

    lent: _Lent

    @property
    def new_keys(self) -> list[Half]:
        """Rows of the last pass, per layer [T, H_kv, D], read from the GPU."""
        return self.lent.caches.new_rows("k", self.length, self.pending)

    @property
    def new_values(self) -> list[Half]:
        """Rows of the last pass, per layer [T, H_kv, D], read from the GPU."""
        return self.lent.caches.new_rows("v", self.length, self.pending)


class TensorrtEngine(KvEngine[TensorrtSequence]):
    """An engine over a plan.

    Up to `spec.max_tree` rows of a pass all may have logits; of a longer pass one. An `inplace` engine commits rows in
    ascending order alone, as those of every path are.
    """

    def __init__(
        self,
        trt: Any,
        cuda: Any,
        plan: Path,
        engine: EngineManifest,
        bundle: Manifest,
        allow_inexact: bool = False,
        kv_on_demand: bool = False,
    ) -> None:
        """Args:
        trt: the module `tensorrt` or `tensorrt_rtx`.
        cuda: the module `cuda.bindings.runtime`.
        plan: its file, checked against the engine's manifest.
        engine: found to fit this machine and the bundle.
        bundle: the manifest of the bundle that it was built from.
        allow_inexact: let a bundle with coarse weights verify trees as well as chains.
        kv_on_demand: take memory for KV as sequences grow; caches of the `inplace` strategy have one size.

        Raises:
            EngineError: CUDA or the library refuses, or there is no memory.
        """
        limits, model = engine.limits, bundle.model
        spec = graph_spec(bundle, limits.max_context, allow_inexact)
        spec = replace(spec, max_tree=limits.max_tree, max_chunk=limits.max_chunk, digest=engine.plan_sha256)
        super().__init__(spec, TensorrtSequence)
        self._kv = KvShape(model.n_layers, model.n_kv_heads, model.head_dim)
        self._past = self._kv.names("past")
        self._capacity = bundle.graph.tensorrt.capacity if bundle.graph.tensorrt else 0
        self._is_inplace = engine.kv_strategy == "inplace"
        self._first_rows = FIRST_ROWS if kv_on_demand else None
        self._device = Device(cuda)
        self._plan = Plan(trt, plan, engine)
        self._inputs = PassInputs(self._device, self._spec, self._is_inplace)
        self._outputs = PassOutputs(self._device, self._spec, self._plan.names("output"))
        self._workspace = make_workspace(self._plan, self._device)
        self._profiles = {name: index for index, name in enumerate(engine.profiles)}
        self._contexts = {name: self._context(name) for name in self._profiles}
        self._idle: _Lent | None = None
        self._last: weakref.ref[Step] | None = None

    def _open(self, capacity: int) -> TensorrtSequence:
        """The sequence gets the caches of one that nobody holds any more where they are large enough."""
        lent, self._idle = self._idle, None
        if lent is None or lent.caches.capacity < capacity:
            lent = None  # given back before new memory is asked for
            lent = self._make_caches(capacity)
        lent.caches.clear()
        seq = TensorrtSequence(capacity, lent)
        weakref.finalize(seq, self._take_back, lent).atexit = False
        return seq

    def _require_pass(self, seq: TensorrtSequence, rows: PassRows) -> None:
        self._profile(rows.count, len(rows.wanted))
        if self._is_inplace:
            require_room(seq, rows.count, self._capacity)  # nobody else looks

    def _run(self, seq: TensorrtSequence, rows: PassRows) -> Step:
        self._save_last()
        count, logits = rows.count, len(rows.wanted)
        self._inputs.send(rows, seq.length)
        self._enqueue(seq, self._profile(count, logits), count, logits)
        step = self._outputs.step(count, logits)
        self._last = weakref.ref(step)
        return step

    def _keep(self, seq: TensorrtSequence, rows: ListLike[int]) -> None:
        seq.lent.caches.commit(seq.length, rows)

    def _copy(self, source: TensorrtSequence, length: int, target: TensorrtSequence) -> None:
        target.lent.caches.copy(source.lent.caches, length)

    def _make_caches(self, capacity: int) -> _Lent:
        spec = self._spec
        if self._is_inplace:
            caches = InplaceCaches(self._device, self._kv, self._capacity, self._capacity - spec.max_context)
            return _Lent(caches, CapturedPasses(self._device))
        most = max(spec.max_tree, spec.max_chunk)
        return _Lent(AppendCaches(self._device, self._kv, capacity, most, self._first_rows), None)

    def _take_back(self, lent: _Lent) -> None:
        self._idle = lent

    def _save_last(self) -> None:
        """Read the logits of the last pass before the next one overwrites them, if anybody might still ask."""
        last = self._last() if self._last else None
        if last is not None:
            last.fetch()

    def _profile(self, rows: int, logits: int) -> str:
        if logits == 1:
            return "token" if rows == 1 else "prefill" if rows <= self._spec.max_chunk else "verify"
        if 0 < logits <= self._spec.max_tree and rows <= self._spec.max_tree:
            return "verify"
        raise EngineError(
            f"this engine gives logits of 1 row, or of up to {self._spec.max_tree} of as many, and not of {logits} "
            f"rows of {rows}"
        )

    def _enqueue(self, seq: TensorrtSequence, profile: str, rows: int, logits: int) -> None:
        captured, key = seq.lent.captured, (rows, logits)
        if captured is not None:
            if captured.run(key):
                return
            if captured.is_due(key) and captured.record(
                key,
                lambda: self._set(self._context(profile), seq, rows, logits),
                lambda: self._outputs.read(rows, logits),
            ):
                return
        self._set(self._contexts[profile], seq, rows, logits).enqueue()

    def _set(self, context: Context, seq: TensorrtSequence, rows: int, logits: int) -> Context:
        """The context, ready for a pass."""
        context.bind(seq.lent.caches.addresses)
        context.shape(self._shapes(seq, rows, logits))
        return context

    def _context(self, profile: str) -> Context:
        context = Context(self._plan, self._device, self._profiles[profile], self._workspace)
        context.bind(self._inputs.addresses)
        context.bind(self._outputs.addresses)
        return context

    def _shapes(self, seq: TensorrtSequence, rows: int, logits: int) -> dict[str, Shape]:
        shapes: dict[str, Shape] = {
            "input_ids": (rows,),
            "position_ids": (rows,),
            "tree_mask": (rows, rows),
            "logits_idx": (logits,),
        }
        if self._is_inplace:
            return shapes
        past = (seq.length, self._kv.kv_heads, self._kv.head_dim)
        return shapes | dict.fromkeys(self._past, past)
