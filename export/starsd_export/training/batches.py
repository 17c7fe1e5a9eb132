"""Padded batches of texts with the target's features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from starsd_export.training.features import FeatureStore

_POOL = 8
"""Batches whose texts are sorted by length together: little padding, and still a mixture."""


@dataclass(frozen=True)
class TrainingBatch:
    """Rows 0..T-1 of B texts; row i knows token i + 1 and the feature at position i, and foresees token i + 2.

    Attributes:
        next_ids: int64 [B, T], token i + 1.
        features: float32 [B, T, H], at position i.
        wanted: float32 [B, T, H], the feature at position i + 1.
        choices: int64 [B, T], what the target would choose as token i + 2.
        said: int64 [B, T], what stands there, -1 behind the end of a text.
        counts: bool [B, T], rows that are learned from: no padding, and no part that all texts share.
    """

    next_ids: torch.Tensor
    features: torch.Tensor
    wanted: torch.Tensor
    choices: torch.Tensor
    said: torch.Tensor
    counts: torch.Tensor


def shuffled(lengths: Sequence[int], batch_tokens: int, seed: int) -> list[list[int]]:
    """Numbers of texts, each once, in batches of about `batch_tokens` rows."""
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(lengths)).tolist()
    pool = max(1, _POOL * batch_tokens * len(lengths) // max(1, sum(lengths)))
    batches = [
        batch
        for first in range(0, len(order), pool)
        for batch in _cut(
            sorted(order[first : first + pool], key=lambda number: lengths[number]), lengths, batch_tokens
        )
    ]
    return [batches[i] for i in draw.permutation(len(batches))]


def _cut(numbers: Sequence[int], lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    batch: list[int] = []
    for number in numbers:
        if batch and (len(batch) + 1) * lengths[number] > batch_tokens:
            yield batch
            batch = []
        batch.append(number)
    yield batch


def load_batch(store: FeatureStore, numbers: Sequence[int]) -> TrainingBatch:
    """The batch of these texts."""
    lengths = [len(store.texts[number].ids) for number in numbers]
    count, longest = len(numbers), max(lengths)
    width = store.features.shape[1]
    ids = np.full((count, longest + 1), -1, dtype=np.int64)
    features = np.zeros((count, longest, width), dtype=np.float32)
    choices = np.zeros((count, longest), dtype=np.int64)
    counts = np.zeros((count, longest - 1), dtype=np.bool_)
    for row, (number, length) in enumerate(zip(numbers, lengths, strict=True)):
        first = store.offsets[number]
        ids[row, :length] = store.texts[number].ids
        features[row, :length] = store.features[first : first + length]
        choices[row, :length] = store.choices[first : first + length]
        counts[row, store.texts[number].start : length - 1] = True
    whole = torch.from_numpy(features)
    return TrainingBatch(
        next_ids=torch.from_numpy(ids[:, 1:-1].clip(min=0)),
        features=whole[:, :-1],
        wanted=whole[:, 1:],
        choices=torch.from_numpy(choices[:, 1:]),
        said=torch.from_numpy(ids[:, 2:]),
        counts=torch.from_numpy(counts),
    )
