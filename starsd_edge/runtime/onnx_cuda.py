"""ONNX Runtime on an NVIDIA GPU. It falls back to the CPU without an error, so what it did is looked at afterwards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from starsd_edge.errors import EngineError, UsageError, install_extra
from starsd_edge.runtime.cuda_driver import cuda_devices
from starsd_edge.runtime.onnx_engine import CPU_PROVIDER, open_session

if TYPE_CHECKING:
    import onnxruntime

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
    session = open_session(file, provider=PROVIDER)
    require_gpu(session)
    return session


def require_gpu(session: onnxruntime.InferenceSession) -> None:
    """Check where a session runs.

    Raises:
        EngineError: on the CPU, altogether or in parts that count.
    """
    if session.get_providers()[0] != PROVIDER:
        raise EngineError(
            "--device cuda: ONNX Runtime could not load its CUDA provider and would run on the CPU: install the CUDA "
            "and cuDNN versions that this onnxruntime-gpu names, or use --device cpu"
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
    if assigned is None:
        raise EngineError(
            "--device cuda: this ONNX Runtime does not say where it runs a graph: install onnxruntime-gpu 1.24 or newer"
        )
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
