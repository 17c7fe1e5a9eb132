"""What an EAGLE head is, as numbers.

EAGLE-1 and EAGLE-2 share their weights (arXiv 2401.15077, 2406.16858) and are "eagle" here; EAGLE-3 (2503.01840) is
"eagle3". Both are one decoder layer that takes, for every row i, the embedding of token i + 1 and the target's feature
at position i, and gives the feature at position i + 1.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]
HeadKind = Literal["eagle", "eagle3"]


class HeadSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shape of a head. Widths are in numbers, positions in rows."""

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
    """Ids that the head can guess: rows of its output matrix."""
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
