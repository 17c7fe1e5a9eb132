"""Texts that go round in circles: easy to guess, so no figure of drafting may rest on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

WINDOW = 64
"""Last tokens of a text that are looked at."""
GRAM = 4
"""Tokens of a phrase."""
REPEATS = 3
"""Times that a phrase stands in the window of a text that loops."""


def is_looping(ids: Sequence[int]) -> bool:
    """Whether the last `WINDOW` tokens hold one phrase of `GRAM` tokens `REPEATS` times."""
    window = ids[-WINDOW:]
    phrases = Counter(tuple(window[i : i + GRAM]) for i in range(len(window) - GRAM + 1))
    return max(phrases.values(), default=0) >= REPEATS


def before_loop(ids: Sequence[int]) -> int:
    """How many tokens come before a text begins to loop: its length if it does not."""
    return next((end - 1 for end in range(1, len(ids) + 1) if is_looping(ids[:end])), len(ids))
