"""What runs a head: the contract that drafting rests on, whatever library multiplies, and the engine of ONNX Runtime,
which needs no torch and is several times as fast on a CPU.

One pass takes rows of several sequences. What works on single rows (nearly all of a head) sees them as one list without
gaps; attention sees them by sequence, as B lines of equal length with spare places at their ends. K and V stay where
the engine computes: it hands out their arrays, and nobody else looks into them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

if TYPE_CHECKING:
    import onnxruntime


Positive = Annotated[int, Meta(ge=1)]
HeadKind = Literal["eagle", "eagle3"]


class HeadSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shape of an EAGLE head. Widths are in numbers, positions in rows.

    EAGLE-1 and EAGLE-2 share their weights (arXiv 2401.15077, 2406.16858) and are "eagle" here; EAGLE-3 (arXiv
    2503.01840) is "eagle3". Both are one decoder layer. For every row i it takes the embedding of token i + 1 and the
    target's feature at position i, and gives the feature at position i + 1.
    """

    kind: HeadKind
    hidden_size: Positive
    """Width of a feature, and of the head's own hidden state."""
    intermediate_size: Positive
    n_heads: Positive
    n_kv_heads: Positive
    head_dim: Positive
    vocab_size: Positive
    """Ids of the target's vocabulary, padding included: rows of the embedding."""
    draft_vocab_size: Positive
    """Ids that the head can draft: rows of its output matrix."""
    rms_norm_eps: float
    rope_theta: float
    max_positions: Positive
    """Rows that the head was trained for."""
    rope_factor: float = 1.0
    """Linear RoPE scaling: positions are divided by it."""
    fc_bias: bool = False
    qkv_bias: bool = False
    norm_before_residual: bool = False
    """"eagle3": the residual is the normed feature."""
    norm_output: bool = False
    """"eagle3": the predicted feature is the normed one that the output matrix reads."""

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors of the head and their shapes, by our names; embedding and output matrix included."""
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        attention_in = hidden if self.kind == "eagle" else 2 * hidden
        shapes: dict[str, tuple[int, ...]] = {
            "embed.weight": (self.vocab_size, hidden),
            "q.weight": (queries, attention_in),
            "k.weight": (keys, attention_in),
            "v.weight": (keys, attention_in),
            "o.weight": (hidden, queries),
            "gate.weight": (inner, hidden),
            "up.weight": (inner, hidden),
            "down.weight": (hidden, inner),
            "post_norm.weight": (hidden,),
            "lm_head.weight": (self.draft_vocab_size, hidden),
        }
        if self.kind == "eagle":
            shapes["fc.weight"] = (hidden, 2 * hidden)
            if self.fc_bias:
                shapes["fc.bias"] = (hidden,)
        else:
            shapes |= dict.fromkeys(("hidden_norm.weight", "input_norm.weight", "norm.weight"), (hidden,))
        if self.qkv_bias:
            shapes |= {"q.bias": (queries,), "k.bias": (keys,), "v.bias": (keys,)}
        return shapes

    @property
    def kv_row_numbers(self) -> int:
        """Numbers of K and V in one row of a session."""
        return 2 * self.n_kv_heads * self.head_dim


Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
KvArray = Any
"""Numbers of K or V, [..., rows, D], in the engine's memory: slices of it can be read from and assigned to."""

MOST_CANDIDATES = 10
"""Tokens that a pass gives below each row, where the head's draft vocabulary has so many."""


@dataclass(frozen=True)
class HeadRows:
    """What goes into one pass: T rows of B sequences, at most R of each, on top of S true ones and G draft tokens.

    Attributes:
        ids: int64 [T], the token that follows each feature.
        features: float32 [T, H], true or predicted.
        positions: int64 [T], of the features.
        slots: int64 [B, R], the row at each place of a line. Spare places repeat a row of the same sequence, so that
            what is no number in one sequence stays there; a sequence without rows may repeat any.
        places: int64 [T], the place of each row, counted through all lines.
        keys, values: [B, KV heads, S, D], of true rows that have run; behind a line's own they are zero.
        lengths: int64 [B], how many of them are each line's own: all its rows see these.
        late_keys, late_values: [B, KV heads, G, D], of draft tokens that have run.
        seen: bool [B, R, G + R]: which draft tokens, and which of these rows, each place sees; itself always.
        wanted: int64 [W], the rows below which candidates are wanted.
    """

    ids: Ids
    features: Floats
    positions: Ids
    slots: Ids
    places: Ids
    keys: KvArray
    values: KvArray
    lengths: Ids
    late_keys: KvArray
    late_values: KvArray
    seen: npt.NDArray[np.bool_]
    wanted: Ids


@dataclass(frozen=True)
class HeadStep:
    """What one pass gave.

    Attributes:
        predicted: float32 [T, H], the feature after each row.
        keys, values: [B, KV heads, R, D], of these rows, by place; keys rotated.
        tokens: int64 [W, K], the likeliest below each wanted row, the lowest among equals first; numbers of the draft
            vocabulary.
        scores: float32 [W, K], their log-probabilities; no numbers where the head has overflown.
    """

    predicted: Floats
    keys: KvArray
    values: KvArray
    tokens: Ids
    scores: Floats


class HeadEngine(Protocol):
    """A loaded head; used from one thread at a time."""

    @property
    def spec(self) -> HeadSpec:
        """Its shape."""

    @property
    def kv_bytes(self) -> int:
        """Of one number of K or V."""

    def zeros(self, *shape: int) -> KvArray:
        """Memory for K or V."""

    def forward(self, rows: HeadRows) -> HeadStep:
        """Run rows on top of those that have run."""


# The fields of `HeadRows` and `HeadStep` in their order, as the graph calls them; ids go in as their embeddings.
INPUTS = (
    "embedded",
    "features",
    "position_ids",
    "slots",
    "places",
    "past_keys",
    "past_values",
    "lengths",
    "late_keys",
    "late_values",
    "seen",
    "wanted",
)
OUTPUTS = ("predicted", "new_keys", "new_values", "tokens", "scores")


class OnnxHeadEngine:
    """A head run by ONNX Runtime; see `HeadEngine`.

    Args:
        session: of the head's graph, whose inputs and outputs are `INPUTS` and `OUTPUTS`.
        embedding: float16 [V, H].
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, spec: HeadSpec, embedding: npt.NDArray[np.float16]
    ) -> None:
        self._session = session
        self._spec = spec
        self._embedding = np.asarray(embedding)  # numpy reads from its class of mapped arrays several times slower

    @property
    def spec(self) -> HeadSpec:
        """See `HeadEngine`."""
        return self._spec

    @property
    def kv_bytes(self) -> int:
        """See `HeadEngine`."""
        return 4

    def zeros(self, *shape: int) -> Floats:
        """See `HeadEngine`."""
        return np.zeros(shape, dtype=np.float32)

    def forward(self, rows: HeadRows) -> HeadStep:
        """See `HeadEngine`."""
        _, *others = vars(rows).values()
        inputs = (self._embedding[rows.ids].astype(np.float32), *others)
        return HeadStep(*self._session.run(OUTPUTS, dict(zip(INPUTS, inputs, strict=True))))
