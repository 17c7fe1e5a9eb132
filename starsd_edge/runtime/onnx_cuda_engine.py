"""ONNX Runtime on a GPU with the KV there: bundles for CPUs (`append` strategy) on `--device cuda`.

Committed rows are bound where they lie and new rows are written beside them, as for TensorRT; a commit copies within
the GPU. Token ids go up and logits and features come down with each pass.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as ListLike
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.device.gpus import cuda_devices
from starsd_edge.errors import EngineError, UsageError, install_extra
from starsd_edge.runtime.cuda import Device, import_cuda
from starsd_edge.runtime.cuda_caches import FIRST_ROWS, AppendCaches, KvShape
from starsd_edge.runtime.engine import Step
from starsd_edge.runtime.kv_engine import EngineSequence, KvEngine, PassRows
from starsd_edge.runtime.onnx_engine import (
    CPU_PROVIDER,
    graph_spec,
    open_session,
    pass_feeds,
    require_strategy,
    run_bound,
)

if TYPE_CHECKING:
    import onnxruntime


log = logging.getLogger(__name__)

PROVIDER = "CUDAExecutionProvider"
_HEAVY = frozenset({"MatMul", "Gemm", "MatMulNBits", "Softmax", "Attention"})
"""What a pass spends its time on. Arithmetic on shapes stays on the CPU by design."""


def open_cuda_session(file: Path) -> onnxruntime.InferenceSession:
    """A session for a graph file on the first GPU.

    Raises:
        UsageError: this ONNX Runtime knows no GPUs.
        EngineError: no driver or GPU, or ONNX Runtime does not run the graph there.
    """
    try:
        cuda_devices()
    except EngineError as error:
        raise EngineError(f"--device cuda: {error}") from None
    _require_provider()
    said = _load_libraries()
    session = open_session(file, provider=PROVIDER)
    require_gpu(session, said)
    return session


def _load_libraries() -> str:
    """Load the CUDA and cuDNN libraries that pip installed beside onnxruntime-gpu, which does not look for them there
    by itself; what it says about those that it did not find.
    """
    import onnxruntime

    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):  # it prints, where an answer is to stand
            onnxruntime.preload_dlls()
    except Exception as error:  # the session says whether it does without
        said.write(f"{type(error).__name__}: {error}")
    return " ".join(said.getvalue().split())[:300]


def require_gpu(session: onnxruntime.InferenceSession, said: str = "") -> None:
    """Check where a session runs.

    Args:
        said: by ONNX Runtime about the libraries of CUDA.

    Raises:
        EngineError: on the CPU, altogether or in parts that count.
    """
    if session.get_providers()[0] != PROVIDER:
        why = f" ({said})" if said else ""
        raise EngineError(
            f"--device cuda: ONNX Runtime could not load its CUDA provider and would run on the CPU{why}: "
            f"{install_extra('cuda')} brings the libraries of CUDA and cuDNN that it needs, and the driver has to be "
            "of the same major version of CUDA (see `nvidia-smi`); or use --device cpu"
        )
    left = _left_on_cpu(session)
    if left:
        raise EngineError(
            f"--device cuda: ONNX Runtime leaves parts of this graph on the CPU ({left}): use another --weights at "
            "export, or --device cpu"
        )


def _left_on_cpu(session: onnxruntime.InferenceSession) -> str:
    """Heavy operators that the CPU got, with their numbers. Needs a session that was told to record them."""
    assigned = getattr(session, "get_provider_graph_assignment_info", None)
    if assigned is None:  # before 1.24, which needs Python 3.11; answers are the same wherever a part runs
        log.warning(
            "this onnxruntime-gpu does not say which parts of a graph it leaves on the CPU, where they are slow: 1.24, "
            "which needs Python 3.11, does"
        )
        return ""
    nodes = [node for part in assigned() if part.ep_name == CPU_PROVIDER for node in part.get_nodes()]
    counts = Counter(node.op_type for node in nodes if node.op_type in _HEAVY)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def _require_provider() -> None:
    import onnxruntime

    if PROVIDER not in onnxruntime.get_available_providers():
        raise UsageError(
            "--device cuda: the installed onnxruntime is for CPUs: pip uninstall -y onnxruntime, then "
            f"{install_extra('cuda')}"
        )


def open_onnx_cuda(
    bundle: Bundle,
    *,
    allow_inexact: bool = False,
    kv_on_demand: bool = False,
    load: Callable[[str], Any] = importlib.import_module,
) -> OnnxCudaEngine:
    """Load a bundle's graph on the first GPU.

    Args:
        allow_inexact: let a bundle with coarse weights verify trees as well as chains.
        kv_on_demand: take memory for KV as sequences grow; see `runtime.loading.open_engine`.
        load: imports a module by its name.

    Raises:
        UsageError: a package is missing, or is one for CPUs.
        EngineError: no driver or GPU, or ONNX Runtime does not run the graph there.
    """
    session = open_cuda_session(bundle.path / bundle.manifest.graph.file)
    cuda = import_cuda("--device cuda", "cuda", load)
    return OnnxCudaEngine(session, cuda, bundle.manifest, allow_inexact, kv_on_demand)


@dataclass(eq=False)
class OnnxCudaSequence(EngineSequence):
    """KV of one sequence on the GPU.

    Attributes:
        caches: where it lies.
    """

    caches: AppendCaches


class OnnxCudaEngine(KvEngine[OnnxCudaSequence]):
    """An engine over a session on the first GPU."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        cuda: Any,
        manifest: Manifest,
        allow_inexact: bool = False,
        kv_on_demand: bool = False,
    ) -> None:
        """Args:
        session: of the bundle's graph, on the GPU.
        cuda: the module `cuda.bindings.runtime`.
        manifest: the bundle's.
        allow_inexact: let a bundle with coarse weights verify trees as well as chains.
        kv_on_demand: take memory for KV as sequences grow.

        Raises:
            EngineError: CUDA does not start, or the graph is of another kind.
        """
        model = manifest.model
        require_strategy(manifest, "append")
        super().__init__(graph_spec(manifest, model.max_context, allow_inexact), OnnxCudaSequence)
        self._session = session
        self._first_rows = FIRST_ROWS if kv_on_demand else None
        self._device = Device(cuda)
        self._dtype = np.dtype(manifest.graph.kv_dtype)
        self._kv = KvShape(model.n_layers, model.n_kv_heads, model.head_dim, self._dtype.itemsize)

    def _open(self, capacity: int) -> OnnxCudaSequence:
        most = max(self._spec.max_tree, self._spec.max_chunk)
        caches = AppendCaches(self._device, self._kv, capacity, most, self._first_rows)
        caches.clear()
        return OnnxCudaSequence(capacity, caches)

    def _run(self, seq: OnnxCudaSequence, rows: PassRows) -> Step:
        row, addresses = (self._kv.kv_heads, self._kv.head_dim), seq.caches.addresses

        def bind(binding: onnxruntime.IOBinding) -> None:
            for name in self._kv.names("past"):
                binding.bind_input(name, "cuda", 0, self._dtype, (seq.length, *row), addresses[name])
            for name in self._kv.names("new"):
                binding.bind_output(name, "cuda", 0, self._dtype, (rows.count, *row), addresses[name])

        self._device.synchronize()  # ONNX Runtime has a stream of its own, which knows nothing of the last commit
        return run_bound(self._session, pass_feeds(rows), bind)

    def _keep(self, seq: OnnxCudaSequence, rows: ListLike[int]) -> None:
        seq.caches.commit(seq.length, rows)

    def _copy(self, source: OnnxCudaSequence, length: int, target: OnnxCudaSequence) -> None:
        target.caches.copy(source.caches, length)
