"""Options of `run-target` that say how tokens are chosen: what needs more than typer to be read."""

from __future__ import annotations

from collections.abc import Sequence

from starsd_edge.errors import UsageError


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
