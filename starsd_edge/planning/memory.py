"""How many targets an accelerator holds, with the draft model beside each of them and with the draft model on a hub.

    n = floor(M / (W + context * k + o + [co-located] (D + a + context * d)))

M is what the accelerator has for it, W the target's weights, k its KV per token, o what a process takes beside both; D,
a and d are the draft model's weights, activations and KV per token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GIB = 1 << 30
"""Bytes of a gibibyte."""
MIB = 1 << 20
"""Bytes of a mebibyte."""
KIB = 1 << 10
"""Bytes of a kibibyte."""
PROCESS_BYTES = 0.35 * GIB
"""Bytes that a process takes on an accelerator beside models: contexts, kernels, buffers."""
ACTIVATION_BYTES = 0.15 * GIB
"""Bytes of a draft model's activations while it drafts."""


@dataclass(frozen=True)
class TargetMemory:
    """A target model in use, in bytes.

    Attributes:
        weights: bytes of the weights as they are held in memory.
        kv_per_token: bytes of keys and values for one token.
        context: tokens that its KV has places for.
        process: bytes that the process takes beside both.
    """

    weights: float
    kv_per_token: float
    context: int
    process: float = PROCESS_BYTES

    @property
    def total(self) -> float:
        """Bytes of one target: weights, KV of the whole context, process."""
        return self.weights + self.context * self.kv_per_token + self.process


@dataclass(frozen=True)
class DraftMemory:
    """A draft model or head in use, in bytes.

    Attributes:
        weights: bytes of the weights that drafting adds to a target.
        kv_per_token: bytes of its own keys and values for one token.
        copies: bytes of the target's embedding and head, which only a hub has to hold once more.
        activations: bytes of activations while it drafts.
    """

    weights: float
    kv_per_token: float
    copies: float = 0.0
    activations: float = ACTIVATION_BYTES

    def beside_target(self, context: int) -> float:
        """Bytes that the draft model takes in a target's own process."""
        return self.weights + self.activations + context * self.kv_per_token

    def hub(self, sessions: int, context: int) -> float:
        """Bytes that a hub with this many sessions takes."""
        return self.weights + self.copies + sessions * context * self.kv_per_token


@dataclass(frozen=True)
class Fit:
    """How many targets one accelerator holds.

    Attributes:
        co_located: number of targets with the draft model beside each.
        star: number of targets with the draft model on a hub elsewhere.
        star_context: tokens of KV that the accelerator has room for with one target and a hub; 0 where not even its
            weights fit.
        co_located_context: the same with the draft model beside it.
    """

    co_located: int
    star: int
    co_located_context: int
    star_context: int


def fit(accelerator_bytes: float, target: TargetMemory, draft: DraftMemory) -> Fit:
    """How many targets of one kind an accelerator of this size holds, with and without the draft model beside them."""
    beside = draft.beside_target(target.context)
    bare = target.weights + target.process
    return Fit(
        co_located=math.floor(accelerator_bytes / (target.total + beside)),
        star=math.floor(accelerator_bytes / target.total),
        co_located_context=_tokens(
            accelerator_bytes - bare - draft.weights - draft.activations, target.kv_per_token + draft.kv_per_token
        ),
        star_context=_tokens(accelerator_bytes - bare, target.kv_per_token),
    )


def _tokens(room: float, per_token: float) -> int:
    return max(0, math.floor(room / per_token)) if per_token else 0
