"""The engines of ONNX Runtime with their KV on the host, one for each KV strategy of a graph, and the sessions that all
engines of ONNX Runtime run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from starsd_edge.runtime.engine import EngineSpec, Step
from starsd_edge.runtime.kv_engine import EngineSequence, KvEngine, PassRows, require_room

if TYPE_CHECKING:
    import onnxruntime

CPU_PROVIDER = "CPUExecutionProvider"
GPU_OPTIONS = {"use_tf32": "0"}
"""For the CUDA provider, which by itself rounds factors of float32 products to 10 bits of mantissa."""
PASS_OUTPUTS = ("logits", "features")
TOP_OUTPUTS = ("top_ids", "top_logits")
"""What graphs for TensorRT give beside `graph_outputs`: the two highest logits of every row, int64 and float32 [R, 2].
"""


@dataclass(eq=False)
class OnnxSequence(EngineSequence):
    """KV rows of one sequence on the host.

    Attributes:
        keys, values: per layer [capacity, H_kv, D] in the KV dtype; the first `length` rows are committed.
        new_keys, new_values: rows of the last forward pass, until they are committed or replaced.
    """

    keys: list[npt.NDArray[np.generic]]
    values: list[npt.NDArray[np.generic]]
    new_keys: list[npt.NDArray[np.generic]] = field(default_factory=list)
    new_values: list[npt.NDArray[np.generic]] = field(default_factory=list)


class OnnxEngine(KvEngine[OnnxSequence]):
    """An engine for graphs with the KV strategy `append`.

    Each sequence keeps one buffer per layer for K and one for V, token-major, so that its committed rows are one
    contiguous block that goes to the session without a copy.
    """

    def __init__(self, session: onnxruntime.InferenceSession, manifest: Manifest, allow_inexact: bool = False) -> None:
        """Args:
        session: of the bundle's graph.
        manifest: the bundle's.
        allow_inexact: let a bundle with coarse weights verify trees as well as chains.

        Raises:
            EngineError: the graph has another KV strategy.
        """
        model = manifest.model
        require_strategy(manifest, "append")
        super().__init__(graph_spec(manifest, model.max_context, allow_inexact), OnnxSequence)
        self._session = session
        self._layers = range(model.n_layers)
        self._row = (model.n_kv_heads, model.head_dim)
        self._dtype = np.dtype(manifest.graph.kv_dtype)
        self._outputs = graph_outputs(model.n_layers)

    def _open(self, capacity: int) -> OnnxSequence:
        # Not zeroed: on memory that was used before, that takes longer than a prompt's own pass. Buffers cost memory as
        # they are written, and no row is read before that.
        shape = (capacity, *self._row)
        keys, values = ([np.empty(shape, self._dtype) for _ in self._layers] for _ in "kv")
        return OnnxSequence(capacity, keys, values)

    def _run(self, seq: OnnxSequence, rows: PassRows) -> Step:
        feeds = pass_feeds(rows)
        for layer in self._layers:
            feeds[f"past_k_{layer}"] = seq.keys[layer][: seq.length]
            feeds[f"past_v_{layer}"] = seq.values[layer][: seq.length]
        with graph_running():
            logits, features, *new = self._session.run(self._outputs, feeds)
        seq.new_keys, seq.new_values = new[: len(self._layers)], new[len(self._layers) :]
        return Step(logits, features)

    def _keep(self, seq: OnnxSequence, rows: ListLike[int]) -> None:
        end = seq.length + len(rows)
        kept = slice(0, len(rows)) if list(rows) == list(range(len(rows))) else np.asarray(rows, np.int64)
        for layer in self._layers:
            seq.keys[layer][seq.length : end] = seq.new_keys[layer][kept]
            seq.values[layer][seq.length : end] = seq.new_values[layer][kept]
        seq.new_keys, seq.new_values = [], []

    def _copy(self, source: OnnxSequence, length: int, target: OnnxSequence) -> None:
        for held, taken in zip((*source.keys, *source.values), (*target.keys, *target.values), strict=True):
            taken[:length] = held[:length]

    def _forget(self, seq: OnnxSequence, length: int) -> None:
        seq.new_keys, seq.new_values = [], []


@dataclass(eq=False)
class InplaceSequence(EngineSequence):
    """The caches of one sequence on the host.

    Attributes:
        keys, values: per layer float16 [1, H_kv, C, D]; the first `length` rows are committed.
    """

    keys: list[npt.NDArray[np.float16]]
    values: list[npt.NDArray[np.float16]]

    @property
    def new_keys(self) -> list[npt.NDArray[np.float16]]:
        """Rows of the last pass, per layer [T, H_kv, D]."""
        return [self._rows(cache) for cache in self.keys]

    @property
    def new_values(self) -> list[npt.NDArray[np.float16]]:
        """Rows of the last pass, per layer [T, H_kv, D]."""
        return [self._rows(cache) for cache in self.values]

    def _rows(self, cache: npt.NDArray[np.float16]) -> npt.NDArray[np.float16]:
        return np.swapaxes(cache[0, :, self.length : self.length + self.pending], 0, 1)


class OnnxInplaceEngine(KvEngine[InplaceSequence]):
    """An engine for graphs with the KV strategy `inplace`: caches of a fixed size that each pass writes into.

    Every cache is bound as input and as output at one address, so a pass costs no copy of it. The rows of a pass lie
    behind the committed ones until the next pass overwrites them; a commit that keeps the first of them only counts
    them, another moves them together.
    """

    def __init__(self, session: onnxruntime.InferenceSession, manifest: Manifest, allow_inexact: bool = False) -> None:
        """Args:
        session: of the bundle's graph.
        manifest: the bundle's.
        allow_inexact: let a bundle with coarse weights verify trees as well as chains.

        Raises:
            EngineError: the graph has another KV strategy, or caches that hold no context.
        """
        graph, model = manifest.graph, manifest.model
        require_strategy(manifest, "inplace")
        if graph.tensorrt is None or graph.tensorrt.capacity <= graph.max_tree:
            raise EngineError("the manifest names no caches that hold a tree and a context: export the bundle again")
        room = min(model.max_context, graph.tensorrt.capacity - graph.max_tree)
        super().__init__(graph_spec(manifest, room, allow_inexact), InplaceSequence)
        self._session = session
        self._layers = range(model.n_layers)
        self._places = graph.tensorrt.capacity
        self._shape = (1, model.n_kv_heads, self._places, model.head_dim)

    def _open(self, capacity: int) -> InplaceSequence:
        # Zero: rows out of sight weigh nothing, but nothing times NaN is NaN.
        keys, values = ([np.zeros(self._shape, np.float16) for _ in self._layers] for _ in "kv")
        return InplaceSequence(capacity, keys, values)

    def _require_pass(self, seq: InplaceSequence, rows: PassRows) -> None:
        require_room(seq, rows.count, self._places)  # the runtime would write beyond the cache

    def _run(self, seq: InplaceSequence, rows: PassRows) -> Step:
        def bind(binding: Any) -> None:
            for kind, caches in (("k", seq.keys), ("v", seq.values)):
                for layer, held in enumerate(caches):
                    place = ("cpu", 0, np.float16, self._shape, held.ctypes.data)
                    binding.bind_input(f"past_{kind}_{layer}", *place)
                    binding.bind_output(f"present_{kind}_{layer}", *place)

        return run_bound(self._session, pass_feeds(rows) | {"past_len": np.array([seq.length], np.int64)}, bind)

    def _keep(self, seq: InplaceSequence, rows: ListLike[int]) -> None:
        if list(rows) == list(range(len(rows))):
            return
        kept = seq.length + np.asarray(rows, np.int64)
        for held in (*seq.keys, *seq.values):
            held[:, :, seq.length : seq.length + len(rows)] = held[:, :, kept]

    def _copy(self, source: InplaceSequence, length: int, target: InplaceSequence) -> None:
        for held, taken in zip((*source.keys, *source.values), (*target.keys, *target.values), strict=True):
            taken[:, :, :length] = held[:, :, :length]


def require_strategy(manifest: Manifest, strategy: str) -> None:
    """Raises EngineError unless the bundle's graph has the KV strategy that an engine runs."""
    found = manifest.graph.kv_strategy
    if found != strategy:
        raise EngineError(f"this engine runs graphs with the KV strategy {strategy}, not {found}")


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


def pass_feeds(rows: PassRows) -> dict[str, npt.NDArray[np.generic]]:
    """What every graph takes beside its KV, by name."""
    return {
        "input_ids": np.ascontiguousarray(rows.tokens, np.int64),
        "position_ids": np.ascontiguousarray(rows.positions, np.int64),
        "tree_mask": np.ascontiguousarray(rows.tree_mask, np.bool_),
        "logits_idx": np.asarray(rows.wanted, np.int64),
    }


def run_bound(
    session: onnxruntime.InferenceSession,
    feeds: dict[str, npt.NDArray[np.generic]],
    bind_caches: Callable[[onnxruntime.IOBinding], None],
) -> Step:
    """A pass whose K and V stay where they are bound; all else comes from the host and goes back there.

    Args:
        feeds: inputs on the host, by name.
        bind_caches: binds every KV input and output.

    Raises:
        EngineError: the graph cannot be run.
    """
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for name in PASS_OUTPUTS:
        binding.bind_output(name)
    bind_caches(binding)
    with graph_running():
        session.run_with_iobinding(binding)
    logits, features = (value.numpy() for value in binding.get_outputs()[: len(PASS_OUTPUTS)])
    return Step(logits, features)


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
