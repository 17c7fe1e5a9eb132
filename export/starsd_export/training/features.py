"""The target's features of every token of the training texts, on disk (they take more memory than a machine may have),
and the padded batches that are cut from them.

Two files in the working directory: `features.f2` (float16 [tokens, H]) and `choices.i4` (int32 [tokens]: the token that
the target would choose next at temperature 0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from starsd_edge.runtime.torch_features import saturated
from starsd_export.training.texts import TrainingText

FEATURES_NAME = "features.f2"
CHOICES_NAME = "choices.i4"
_TOKENS_AT_ONCE = 4096


@dataclass(frozen=True)
class FeatureStore:
    """Texts and the target's view of them.

    Attributes:
        texts: in the order of the rows.
        offsets: int64 [texts + 1]: rows offsets[i] to offsets[i + 1] belong to text i.
        features: float16 [tokens, H].
        choices: int32 [tokens].
    """

    texts: Sequence[TrainingText]
    offsets: npt.NDArray[np.int64]
    features: npt.NDArray[np.float16]
    choices: npt.NDArray[np.int32]


def gather_features(
    model: PreTrainedModel, texts: Sequence[TrainingText], directory: Path, progress: Callable[[int], None]
) -> FeatureStore:
    """Run the target over all texts; what a directory has for the same number of tokens is used again.

    Args:
        model: in evaluation mode.
        progress: called with the number of tokens done.
    """
    offsets = np.concatenate(([0], np.cumsum([len(text.ids) for text in texts]))).astype(np.int64)
    total, width = int(offsets[-1]), model.config.hidden_size
    paths = (directory / FEATURES_NAME, directory / CHOICES_NAME)
    sizes = (total * width * 2, total * 4)
    if not all(path.exists() and path.stat().st_size == size for path, size in zip(paths, sizes, strict=True)):
        _compute(model, texts, offsets, [path.with_suffix(".part") for path in paths], progress)
        for path in paths:
            path.with_suffix(".part").rename(path)
    return FeatureStore(
        texts,
        offsets,
        np.memmap(paths[0], dtype="<f2", mode="r", shape=(total, width)),
        np.memmap(paths[1], dtype="<i4", mode="r", shape=(total,)),
    )


def _compute(
    model: PreTrainedModel,
    texts: Sequence[TrainingText],
    offsets: npt.NDArray[np.int64],
    paths: Sequence[Path],
    progress: Callable[[int], None],
) -> None:
    total, width = int(offsets[-1]), model.config.hidden_size
    features = np.memmap(paths[0], dtype="<f2", mode="w+", shape=(total, width))
    choices = np.memmap(paths[1], dtype="<i4", mode="w+", shape=(total,))
    done = 0
    for batch in _batches(texts):
        progress(done)
        for number, hidden, chosen in _run(model, texts, batch):
            first, last = offsets[number], offsets[number + 1]
            features[first:last] = hidden
            choices[first:last] = chosen
            done += int(last - first)
    progress(done)
    features.flush()
    choices.flush()


def _batches(texts: Sequence[TrainingText]) -> list[list[int]]:
    """Numbers of texts of similar length, together."""
    order = sorted(range(len(texts)), key=lambda number: len(texts[number].ids))
    batches: list[list[int]] = [[]]
    for number in order:
        if (len(batches[-1]) + 1) * len(texts[number].ids) > _TOKENS_AT_ONCE and batches[-1]:
            batches.append([])
        batches[-1].append(number)
    return batches


def _run(
    model: PreTrainedModel, texts: Sequence[TrainingText], batch: Sequence[int]
) -> list[tuple[int, npt.NDArray[np.float16], npt.NDArray[np.int32]]]:
    """Padding stands after a text, where nothing of it looks."""
    width = max(len(texts[number].ids) for number in batch)
    ids = torch.zeros((len(batch), width), dtype=torch.int64)
    for row, number in enumerate(batch):
        ids[row, : len(texts[number].ids)] = torch.tensor(texts[number].ids)
    with torch.inference_mode():
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        found = []
        for row, number in enumerate(batch):
            rows = hidden[row, : len(texts[number].ids)]
            chosen = model.get_output_embeddings()(rows).argmax(dim=-1)
            found.append((number, saturated(rows.float()).numpy(), chosen.to(torch.int32).numpy()))
    return found


_POOL = 8
"""Batches whose texts are sorted by length together: little padding, and still a mixture."""


@dataclass(frozen=True)
class TrainingBatch:
    """Rows 0..T-1 of B texts; row i knows token i + 1 and the feature at position i, and predicts token i + 2.

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
