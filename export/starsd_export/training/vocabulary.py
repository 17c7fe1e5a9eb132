"""The draft vocabulary: the ids that a head can guess. Most of a vocabulary is hardly ever said, and the product with
the output matrix is most of what a head of a small model costs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from starsd_export.training.texts import Text


def choose_vocabulary(
    texts: Sequence[Text], size: int, vocab_size: int, always: Collection[int]
) -> npt.NDArray[np.int64]:
    """int64 [size]: the ids said most often, ascending; of those said as often as each other the lower.

    Args:
        texts: what was said, the part that is the same in all of them left out.
        vocab_size: of the target.
        always: ids that are among them in any case: those that end a text.
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    for text in texts:
        np.add.at(counts, text.ids[text.start :], 1)
    counts[list(always)] = np.iinfo(np.int64).max
    return np.sort(np.argsort(-counts, kind="stable")[: min(size, vocab_size)])


def coverage(texts: Sequence[Text], vocabulary: npt.NDArray[np.int64]) -> float:
    """Share of what was said that the vocabulary holds."""
    said = np.concatenate([text.ids[text.start :] for text in texts])
    return float(np.isin(said, vocabulary).mean())
