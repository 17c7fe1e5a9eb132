"""What followed the last time that a text stood where it stands now: guesses that cost no pass of a head.

A head of one layer seldom foresees a name or a phrase that was said before; the text itself does. How likely it is to
go on as it did then depends on how much of it is the same.

`NgramIndex` finds the same places for drafters that have nothing else. It keeps some hundred bytes a token and forgets
none; beside a head, whose rows are bounded and forgotten, a search of the ids that its rows hold takes microseconds.
"""

from __future__ import annotations

from math import log

import numpy as np
import numpy.typing as npt

_RATES = {2: (0.4, 0.5, 0.6, 0.7), 3: (0.5, 0.6, 0.7), 4: (0.7, 0.8)}
"""By how many tokens the text repeats: how often the next token, then the one after it, and so on, is the same again;
the last holds for all that come after. Counted in 140 answers of the default model.
"""
_MOST = max(_RATES)
_LEAST = min(_RATES)


def repeated(ids: npt.NDArray[np.int32], depth: int) -> list[tuple[int, float]]:
    """Tokens that followed before what the text now ends with, and their log-probabilities; none where it is new.

    Args:
        ids: [N], the text.
        depth: tokens wanted; past the end of the text it copies itself, as a repetition goes on.
    """
    length, end = _longest_match(ids)
    if length < _LEAST or depth < 1:
        return []
    after = end + 1
    following = ids[after + np.arange(depth) % (len(ids) - after)].tolist()
    rates = _RATES[length]
    return [(token, log(rates[min(place, len(rates) - 1)])) for place, token in enumerate(following)]


def _longest_match(ids: npt.NDArray[np.int32]) -> tuple[int, int]:
    """How many tokens at the end of the text, up to `_MOST`, stood in it before, and where the last such place ends."""
    length, end = 0, 0
    ends = np.flatnonzero(ids[:-1] == ids[-1:])
    while len(ends):
        length, end = length + 1, int(ends[-1])
        if length == _MOST:
            break
        ends = ends[ends >= length]
        ends = ends[ids[ends - length] == ids[-1 - length]]
    return length, end
