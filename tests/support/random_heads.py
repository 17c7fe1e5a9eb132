"""Tiny EAGLE heads with random weights, and what drafting with them needs."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from starsd_edge.heads.draft_bundle import DraftBundle
from starsd_edge.heads.engine import Floats, HeadEngine, HeadRows, HeadSpec, HeadStep, KvArray
from starsd_edge.heads.torch_captured import HeadInputs
from starsd_edge.heads.torch_engine import TorchHeadEngine, open_torch_head
from starsd_edge.heads.torch_head import TorchHead
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_server.drafters.contract import Drafter, draft_one, extend_one
from starsd_server.drafters.eagle import EagleDrafter

WIDTH = 32
VOCAB = 50
DRAFT_VOCAB = 20
FEATURE_FP = "f" * 64


def random_head(kind: str = "eagle", seed: int = 3, dtype: torch.dtype = torch.float32, **changes: object) -> TorchHead:
    """A head of either kind."""
    fields: dict[str, object] = {
        "kind": kind,
        "hidden_size": WIDTH,
        "intermediate_size": 64,
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_positions": 64,
        "fc_bias": kind == "eagle",
    }
    spec = HeadSpec(**(fields | changes))  # type: ignore[arg-type]
    draw = torch.Generator().manual_seed(seed)
    return TorchHead(spec, {name: _tensor(name, shape, draw).to(dtype) for name, shape in spec.tensor_shapes().items()})


def _tensor(name: str, shape: tuple[int, ...], draw: torch.Generator) -> torch.Tensor:
    """Sized like a trained one: what goes through a layer keeps its size, and a guess is neither sure nor blind."""
    noise = torch.randn(shape, generator=draw)
    if len(shape) == 1:
        return 1 + noise / 4 if "norm" in name else noise / 4
    gain = {"embed.weight": shape[1], "lm_head.weight": 0.2}.get(name, 0.7)
    return noise * (gain / shape[1]) ** 0.5


def random_engine(kind: str = "eagle", seed: int = 3, **changes: object) -> TorchHeadEngine:
    """The same under torch, with all candidates below each row."""
    return TorchHeadEngine(random_head(kind, seed, **changes), DRAFT_VOCAB)


def require_all_on_meta(bundle: DraftBundle) -> None:
    """What torch opens on a device that is no CPU is there with all that it has, and a pass runs there."""
    engine = open_torch_head(bundle, "meta", "float16", None)
    held = [*engine._head.named_parameters(), *engine._head.named_buffers()]
    assert {"frequencies", "embed_weight", "lm_head_weight"} <= {name for name, _ in held}
    assert {name: tensor.device.type for name, tensor in held if tensor.device.type != "meta"} == {}
    rows = line_of(engine, [1, 2, 3], np.zeros((3, engine.spec.hidden_size), np.float16))
    arrays = (torch.as_tensor(getattr(rows, name)).to("meta") for name in HeadInputs._fields)
    step = engine.run(HeadInputs(*arrays)._replace(features=torch.zeros(rows.features.shape).half().to("meta")))
    assert {tensor.device.type for tensor in step} == {"meta"}


def line_of(
    engine: HeadEngine,
    ids: list[int],
    features: Floats,
    first: int = 0,
    past: tuple[KvArray, KvArray] | None = None,
    wanted: list[int] | None = None,
) -> HeadRows:
    """Rows of one sequence from position `first` on, each of which sees those before it; candidates below all of them.

    Args:
        past: K and V of the rows before, [1, KV heads, S, D].
    """
    spec, rows = engine.spec, np.arange(len(ids))
    none = engine.zeros(1, spec.n_kv_heads, 0, spec.head_dim)
    keys, values = past or (none, none)
    return HeadRows(
        ids=np.array(ids, dtype=np.int64),
        features=features,
        positions=rows + first,
        slots=rows[None],
        places=rows,
        keys=keys,
        values=values,
        lengths=np.array([keys.shape[2]]),
        late_keys=none,
        late_values=none,
        seen=np.tri(len(ids), dtype=np.bool_)[None],
        wanted=rows if wanted is None else np.array(wanted),
    )


def log_probabilities(step: HeadStep, vocabulary: int) -> npt.NDArray[np.float64]:
    """float64 [W, draft vocabulary], of an engine that gives as many candidates."""
    assert step.tokens.shape[1] == vocabulary
    table = np.full((len(step.tokens), vocabulary), np.nan)
    np.put_along_axis(table, step.tokens, step.scores.astype(np.float64), axis=1)
    return table


def draft_ids(engine: HeadEngine) -> npt.NDArray[np.int64]:
    """The target's id of each guess: spread over its vocabulary, so that a guess is never its own id."""
    spec = engine.spec
    step = max(1, (spec.vocab_size - 1) // spec.draft_vocab_size)
    return np.arange(spec.draft_vocab_size, dtype=np.int64) * step + 1


def drafter_on(engine: HeadEngine, max_sessions: int = 64) -> EagleDrafter:
    """A drafter with this head."""
    command = "starsd-edge export MODEL --features-for HEAD"
    return EagleDrafter(engine, draft_ids(engine), "head", [FEATURE_FP], max_sessions, target_export=command)


def rows_of_text(count: int, seed: int = 0, width: int = WIDTH) -> tuple[list[int], npt.NDArray[np.float16]]:
    """Ids and features of this many rows of a random text."""
    draw = np.random.default_rng(seed)
    return draw.integers(0, VOCAB, count).tolist(), draw.standard_normal((count, width)).astype(np.float16)


def feed(drafter: Drafter, session: int, start: int, ids: list[int], features: npt.NDArray[np.float16]) -> None:
    """Rows from `start` on, as the queue hands them over."""
    extend_one(drafter, NewRows(session, start, ids, features))


def tree_of(drafter: Drafter, session: int, shape: DraftShape) -> DraftTree:
    """One draft."""
    return draft_one(drafter, session, shape)


def fresh_tree(engine: HeadEngine, ids: list[int], features: npt.NDArray[np.float16], shape: DraftShape) -> DraftTree:
    """The draft of a session that gets these rows at once."""
    drafter = drafter_on(engine)
    drafter.open(1, 0, 0)
    feed(drafter, 1, 0, ids, features)
    return tree_of(drafter, 1, shape)


@dataclass
class Pass:
    """One pass of a head: what went in that tells rows apart, and what came out.

    Attributes:
        lines: sequences in it.
        scores: float64 [W, draft vocabulary] where the engine gives all of them, else [W, K] by falling probability.
    """

    ids: list[int]
    positions: list[int]
    lines: int
    scores: npt.NDArray[np.float64]


class WatchedEngine:
    """An engine that notes its passes."""

    def __init__(self, engine: HeadEngine) -> None:
        self._engine = engine
        self.passes: list[Pass] = []

    @property
    def spec(self) -> HeadSpec:
        """See `HeadEngine`."""
        return self._engine.spec

    @property
    def kv_bytes(self) -> int:
        """See `HeadEngine`."""
        return self._engine.kv_bytes

    def zeros(self, *shape: int) -> KvArray:
        """See `HeadEngine`."""
        return self._engine.zeros(*shape)

    def forward(self, rows: HeadRows) -> HeadStep:
        """See `HeadEngine`."""
        step = self._engine.forward(rows)
        vocabulary = self.spec.draft_vocab_size
        whole = step.tokens.shape[1] == vocabulary
        scores = log_probabilities(step, vocabulary) if whole else step.scores.astype(np.float64)
        self.passes.append(Pass(rows.ids.tolist(), rows.positions.tolist(), len(rows.slots), scores))
        return step


class CountedEngine:
    """An engine that knows how much memory for K and V it has given out and not got back."""

    def __init__(self, engine: TorchHeadEngine) -> None:
        self._engine = engine
        self.bytes_held = 0

    @property
    def spec(self) -> HeadSpec:
        """See `HeadEngine`."""
        return self._engine.spec

    @property
    def kv_bytes(self) -> int:
        """See `HeadEngine`."""
        return self._engine.kv_bytes

    def zeros(self, *shape: int) -> KvArray:
        """See `HeadEngine`."""
        array = self._engine.zeros(*shape)
        self._count(array.nbytes)
        weakref.finalize(array, self._count, -array.nbytes)
        return array

    def forward(self, rows: HeadRows) -> HeadStep:
        """See `HeadEngine`."""
        return self._engine.forward(rows)

    def _count(self, change: int) -> None:
        self.bytes_held += change
