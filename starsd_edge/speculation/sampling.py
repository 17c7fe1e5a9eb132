"""How the target chooses its next token: sample-and-match with a keyed coin.

The choice at a position depends on the logits, the parameters and the coin of (seed, position) alone, never on a draft. So the text with
speculation is the text without it, token for token, whatever the drafter or the hub does.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SamplingParams:
    """How one request samples.

    Attributes:
        temperature: 0 chooses the highest logit, the lowest id among equals.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches this; 1 keeps all.
        seed: 64-bit key of the coins.
        choice_index: second half of the key, one per answer when a request asks for several.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    choice_index: int = 0


@dataclass(frozen=True)
class Choice:
    """A chosen token and how close the decision was.

    Attributes:
        token: the id.
        margin: for temperature 0 the gap between the two highest processed logits; else the distance in probability from the coin to the nearest
            boundary of the cumulative distribution, or of a filter cut. Small margins are where other arithmetic might choose otherwise.
    """

    token: int
    margin: float
