"""Tiny EAGLE heads with random weights, and what drafting with them needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from starsd_edge.heads.engine import Floats, HeadEngine, HeadRows, HeadStep
from starsd_edge.heads.spec import HeadSpec
from starsd_edge.heads.torch_engine import TorchHeadEngine
from starsd_edge.heads.torch_head import TorchHead
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape, DraftTree
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
    """The same under torch."""
    return TorchHeadEngine(random_head(kind, seed, **changes))


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


def feed(drafter: EagleDrafter, session: int, start: int, ids: list[int], features: npt.NDArray[np.float16]) -> None:
    """Rows from `start` on, as the queue hands them over."""
    drafter.extend([NewRows(session, start, ids, features)])


def tree_of(drafter: EagleDrafter, session: int, shape: DraftShape) -> DraftTree:
    """One draft."""
    return drafter.draft([session], [shape])[0]


def fresh_tree(engine: HeadEngine, ids: list[int], features: npt.NDArray[np.float16], shape: DraftShape) -> DraftTree:
    """The draft of a session that gets these rows at once."""
    drafter = drafter_on(engine)
    drafter.open(1, 0, 0)
    feed(drafter, 1, 0, ids, features)
    return tree_of(drafter, 1, shape)


@dataclass
class Pass:
    """One pass of a head: what went in that tells rows apart, and what came out."""

    ids: list[int]
    positions: list[int]
    logits: Floats


class WatchedEngine:
    """An engine that notes its passes."""

    def __init__(self, engine: HeadEngine) -> None:
        self._engine = engine
        self.passes: list[Pass] = []

    @property
    def spec(self) -> HeadSpec:
        """See `HeadEngine`."""
        return self._engine.spec

    def forward(self, rows: HeadRows) -> HeadStep:
        """See `HeadEngine`."""
        step = self._engine.forward(rows)
        self.passes.append(Pass(rows.ids.tolist(), rows.positions.tolist(), step.logits))
        return step
