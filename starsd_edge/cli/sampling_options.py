"""Options of `run-target` that say how tokens are chosen: those that typer cannot read by itself, and all of them as
data, so that an answer can be had again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from starsd_edge.errors import UsageError

if TYPE_CHECKING:
    from starsd_edge.speculation.sampling import SamplingParams


def parse_logit_bias(given: Sequence[str]) -> tuple[tuple[int, float], ...]:
    """Pairs of token id and bias from `ID=VALUE`; the value may be -inf.

    Raises:
        UsageError: it reads otherwise.
    """
    return tuple(_parse_bias(each) for each in given)


def _parse_bias(given: str) -> tuple[int, float]:
    token, _, bias = given.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise UsageError(f"--logit-bias takes ID=VALUE, like 42=-5 or 42=-inf, not {given!r}") from None


def sampling_record(sampling: SamplingParams) -> dict[str, object]:
    """Every option but the seed, by its name on the command line; biases as they are given there, since JSON has no
    infinity.
    """
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.penalties.repetition,
        "presence_penalty": sampling.penalties.presence,
        "frequency_penalty": sampling.penalties.frequency,
        "logit_bias": [f"{token}={bias}" for token, bias in sampling.logit_bias],
        "min_tokens": sampling.min_tokens,
    }
