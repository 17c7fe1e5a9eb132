"""The ONNX Runtime engine: runs a bundle's graph (`append` strategy) on the CPU.

Each sequence keeps one buffer per layer for K and one for V, token-major, so that its committed rows are one
contiguous block that goes to the session without a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as ListLike
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from starsd_edge.bundles.manifest import Manifest
from starsd_edge.errors import EngineError, install_extra
from starsd_edge.runtime.engine import (
    EngineSpec,
    Sequence,
    Step,
    own_sequence,
    require_capacity,
    require_committed,
    require_pending,
    require_rows,
)

if TYPE_CHECKING:
    import onnxruntime

CPU_PROVIDER = "CPUExecutionProvider"
GPU_OPTIONS = {"use_tf32": "0"}
"""For the CUDA provider, which by itself rounds factors of float32 products to 10 bits of mantissa."""
PASS_OUTPUTS = ("logits", "features")
TOP_OUTPUTS = ("top_ids", "top_logits")
"""What graphs for TensorRT give beside `graph_outputs`: the two highest logits of every row, int64 and float32 [R, 2].
"""


@dataclass
class OnnxSequence:
    """KV rows of one sequence on the host.

    Attributes:
        keys, values: per layer [capacity, H_kv, D] in the KV dtype; the first `length` rows are committed.
        new_keys, new_values: rows of the last forward pass, until they are committed or replaced.
    """

    capacity: int
    keys: list[npt.NDArray[np.generic]]
    values: list[npt.NDArray[np.generic]]
    length: int = 0
    new_keys: list[npt.NDArray[np.generic]] = field(default_factory=list)
    new_values: list[npt.NDArray[np.generic]] = field(default_factory=list)


class OnnxEngine:
    """An engine over an ONNX Runtime session; use it from one thread at a time."""

    def __init__(self, session: onnxruntime.InferenceSession, manifest: Manifest, allow_inexact: bool = False) -> None:
        """Args:
        session: of the bundle's graph.
        manifest: the bundle's.
        allow_inexact: let a bundle with coarse weights verify trees as well as chains.
        """
        graph, model = manifest.graph, manifest.model
        if graph.kv_strategy != "append":
            raise EngineError(f"this engine runs graphs with the KV strategy append, not {graph.kv_strategy}")
        self._session = session
        self._layers = range(model.n_layers)
        self._row = (model.n_kv_heads, model.head_dim)
        self._dtype = np.dtype(graph.kv_dtype)
        self._outputs = graph_outputs(model.n_layers)
        self._spec = graph_spec(manifest, model.max_context, allow_inexact)

    @property
    def spec(self) -> EngineSpec:
        """What this engine is."""
        return self._spec

    def open(self, capacity: int) -> OnnxSequence:
        """A new, empty sequence. Its buffers cost memory as they are written, and no row is read before that."""
        require_capacity(self._spec, capacity)
        shape = (capacity, *self._row)
        # Not zeroed: on memory that was used before, that takes longer than a prompt's own pass.
        keys = [np.empty(shape, self._dtype) for _ in self._layers]
        return OnnxSequence(capacity, keys, [np.empty(shape, self._dtype) for _ in self._layers])

    def forward(
        self,
        seq: Sequence,
        tokens: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        tree_mask: npt.NDArray[np.bool_],
        logits_rows: ListLike[int] | None = None,
    ) -> Step:
        """See `Engine.forward`."""
        seq = own_sequence(seq, OnnxSequence)
        rows = len(tokens)
        require_rows(self._spec, rows)
        feeds = pass_feeds(tokens, positions, tree_mask, logits_rows)
        for layer in self._layers:
            feeds[f"past_k_{layer}"] = seq.keys[layer][: seq.length]
            feeds[f"past_v_{layer}"] = seq.values[layer][: seq.length]
        logits, features, *new = self._run(feeds)
        seq.new_keys, seq.new_values = new[: len(self._layers)], new[len(self._layers) :]
        return Step(logits, features)

    def _run(self, feeds: dict[str, npt.NDArray[np.generic]]) -> list[npt.NDArray[Any]]:
        with graph_running():
            outputs: list[npt.NDArray[Any]] = self._session.run(self._outputs, feeds)
        return outputs

    def commit(self, seq: Sequence, rows: ListLike[int]) -> None:
        """See `Engine.commit`."""
        seq = own_sequence(seq, OnnxSequence)
        require_pending(seq, len(seq.new_keys[0]) if seq.new_keys else 0, rows)
        end = seq.length + len(rows)
        kept = slice(0, len(rows)) if list(rows) == list(range(len(rows))) else np.asarray(rows, np.int64)
        for layer in self._layers:
            seq.keys[layer][seq.length : end] = seq.new_keys[layer][kept]
            seq.values[layer][seq.length : end] = seq.new_values[layer][kept]
        seq.length = end
        seq.new_keys, seq.new_values = [], []

    def truncate(self, seq: Sequence, length: int) -> None:
        """See `Engine.truncate`."""
        seq = own_sequence(seq, OnnxSequence)
        require_committed(seq, length)
        seq.length = length
        seq.new_keys, seq.new_values = [], []


def graph_spec(manifest: Manifest, max_context: int, allow_inexact: bool) -> EngineSpec:
    """What an engine over a bundle's graph is, with the context that its caches allow."""
    graph = manifest.graph
    return EngineSpec(
        vocab_size=manifest.model.vocab_size,
        feature_kind=graph.feature_kind,
        feature_width=graph.feature_width,
        max_context=max_context,
        max_tree=graph.max_tree,
        max_chunk=graph.max_chunk,
        kv_dtype=graph.kv_dtype,
        exact_trees=graph.exact_trees or allow_inexact,
        source_fp=manifest.fingerprints.source_fp,
    )


def pass_feeds(
    tokens: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    tree_mask: npt.NDArray[np.bool_],
    logits_rows: ListLike[int] | None,
) -> dict[str, npt.NDArray[np.generic]]:
    """What every graph takes beside its KV, by name; arguments as of `Engine.forward`."""
    wanted = range(len(tokens)) if logits_rows is None else logits_rows
    return {
        "input_ids": np.ascontiguousarray(tokens, np.int64),
        "position_ids": np.ascontiguousarray(positions, np.int64),
        "tree_mask": np.ascontiguousarray(tree_mask, np.bool_),
        "logits_idx": np.fromiter(wanted, np.int64),
    }


@contextmanager
def graph_running() -> Iterator[None]:
    """Around a run of a session: whatever ONNX Runtime raises becomes an EngineError."""
    try:
        yield
    except Exception as error:  # ONNX Runtime's own exceptions share no useful base
        raise EngineError(f"ONNX Runtime cannot run the graph: {run_reason(error)}; export the bundle again") from error


def graph_inputs(layers: int) -> list[str]:
    """Names of the graph's inputs, in order."""
    past = [f"past_{kind}_{layer}" for kind in "kv" for layer in range(layers)]
    return ["input_ids", "position_ids", "tree_mask", "logits_idx", *past]


def graph_outputs(layers: int) -> list[str]:
    """Names of the graph's outputs, in order."""
    return [*PASS_OUTPUTS, *(f"new_{kind}_{layer}" for kind in "kv" for layer in range(layers))]


def open_session(
    model: Path, threads: int | None = None, spinning: bool = False, provider: str = CPU_PROVIDER
) -> onnxruntime.InferenceSession:
    """A session for a graph file.

    Args:
        threads: intra-op threads; None takes ONNX Runtime's choice, one per core.
        spinning: let idle pool threads spin. Several processes on one machine starve each other when they do.
        provider: what to run on, as far as it can; the session records where each node went unless it is the CPU's.

    Raises:
        EngineError: the graph cannot be loaded, or both ONNX Runtime distributions are installed.
    """
    import onnxruntime

    _refuse_two_distributions()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = threads or 0
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
    # By itself ONNX Runtime multiplies weights in blocks with activations rounded to int8, which no graph asks for.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    providers = [CPU_PROVIDER] if provider == CPU_PROVIDER else [(provider, GPU_OPTIONS), CPU_PROVIDER]
    if provider != CPU_PROVIDER:
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    try:
        return onnxruntime.InferenceSession(str(model), options, providers=providers)
    except Exception as error:  # ONNX Runtime's own exceptions share no useful base
        raise EngineError(f"ONNX Runtime cannot load {model}: {run_reason(error)}; export the bundle again") from error


def run_reason(error: Exception) -> str:
    """What ONNX Runtime says, in one line of moderate length."""
    return " ".join(str(error).split())[:300]


@cache  # looking through all that is installed takes longer than opening a small graph
def _refuse_two_distributions() -> None:
    # Both write the same package folder, and the CPU one wins silently.
    found = set(packages_distributions().get("onnxruntime", ()))
    if len(found) > 1:
        names = " and ".join(sorted(found))
        raise EngineError(
            f"{names} are both installed and overwrite each other: pip uninstall -y {' '.join(sorted(found))}, "
            f"then {install_extra('cpu')}, or with the extra cuda for a GPU"
        )
