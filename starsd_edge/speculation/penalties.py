"""Penalties: logits of tokens that the text already holds are changed, and the text is that of one path.

What a node of a draft tree chooses counts the prompt, the emitted tokens and the node's own ancestors-or-self, never
its siblings: otherwise the answer would depend on the draft. The counts of what is emitted grow token by token; the few
tokens of a path are laid over them, so nothing has to be taken back when a draft is rejected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from starsd_edge.errors import UsageError

_LARGEST_REPETITION = 100.0
"""Largest repetition penalty that is allowed."""
_LARGEST_SUBTRACTED = 2.0
"""Largest absolute value of the presence and frequency penalties, in logits: the range that HTTP APIs with these two
penalties allow.
"""


@dataclass(frozen=True)
class Penalties:
    """How tokens that the text already holds are made less likely, or more.

    Attributes:
        repetition: positive logits of tokens of prompt and answer are divided by it, negative ones multiplied; 1
            changes nothing, less than 1 favours repetition. Source: Keskar et al., "CTRL" (2019), section 4.1.
        presence: subtracted from the logits of tokens of the answer.
        frequency: subtracted from the logit of a token once for each time that it stands in the answer.

    Raises:
        UsageError: a value is out of range.
    """

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    def __post_init__(self) -> None:
        if not 1 / _LARGEST_REPETITION <= self.repetition <= _LARGEST_REPETITION:
            raise UsageError(
                f"a repetition penalty lies between {1 / _LARGEST_REPETITION} and {_LARGEST_REPETITION:.0f} "
                f"(1 changes nothing), not {self.repetition}"
            )
        for name, value in (("presence", self.presence), ("frequency", self.frequency)):
            if not abs(value) <= _LARGEST_SUBTRACTED:
                raise UsageError(
                    f"a {name} penalty lies between -{_LARGEST_SUBTRACTED:.0f} and {_LARGEST_SUBTRACTED:.0f} "
                    f"(0 changes nothing), not {value}"
                )

    @property
    def active(self) -> bool:
        """Whether these penalties change any logit."""
        return self != Penalties()


class TextPenalties:
    """Penalties of one answer, with the counts of the text so far.

    A pass over a row costs as much as the text has different tokens, however long it is.

    Args:
        penalties: how to change logits.
        tokenizer_size: ids from here on are never chosen, and not counted.
        prompt: token ids.
    """

    def __init__(self, penalties: Penalties, tokenizer_size: int, prompt: Sequence[int]) -> None:
        self._penalties = penalties
        self._times = np.zeros(tokenizer_size, dtype=np.int64)
        """How often each token stands in the answer."""
        self._seen = np.zeros(tokenizer_size, dtype=np.bool_)
        self._ids = np.empty(tokenizer_size, dtype=np.int64)
        self._different = 0
        if penalties.repetition != 1.0:  # nothing else asks for the prompt
            self._list(prompt)

    def append(self, tokens: Iterable[int]) -> None:
        """Count emitted tokens."""
        for token in self._list(tokens):
            self._times[token] += 1

    def apply(self, logits: npt.NDArray[np.float64], path: Sequence[int]) -> None:
        """Change the logits, float64 [tokenizer_size], in place, for the text so far followed by `path`."""
        along = Counter(token for token in path if 0 <= token < len(self._times))
        ids = np.fromiter(along.keys(), np.int64, len(along))
        added = np.fromiter(along.values(), np.int64, len(along))
        unchanged = logits[ids]
        seen = self._ids[: self._different]
        logits[seen] = self._changed(logits[seen], self._times[seen])
        logits[ids] = self._changed(unchanged, self._times[ids] + added)

    def _changed(self, logits: npt.NDArray[np.float64], times: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Logits of tokens that stand in the text, `times` of them in the answer."""
        penalties = self._penalties
        repeated = np.where(logits > 0.0, logits / penalties.repetition, logits * penalties.repetition)
        changed: npt.NDArray[np.float64] = repeated - penalties.presence * (times > 0) - penalties.frequency * times
        return changed

    def _list(self, tokens: Iterable[int]) -> list[int]:
        """Remember the different tokens of the text; returns those of `tokens` that can be chosen at all."""
        known = [token for token in tokens if 0 <= token < len(self._times)]
        for token in known:
            if not self._seen[token]:
                self._seen[token] = True
                self._ids[self._different] = token
                self._different += 1
        return known
