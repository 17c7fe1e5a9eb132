"""The target's features of every token of the training texts, on disk: they take more memory than a machine may have.

Two files in the working directory: `features.f2` (float16 [tokens, H]) and `choices.i4` (int32 [tokens]: the token that
the target would choose next at temperature 0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from starsd_export.ranges import LARGEST_FLOAT16
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
            kept = rows.float().clamp(-LARGEST_FLOAT16, LARGEST_FLOAT16).to(torch.float16)
            found.append((number, kept.numpy(), chosen.to(torch.int32).numpy()))
    return found
