"""Options that say how tokens are chosen, and all of them as data, so that an answer can be had again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from starsd_edge.errors import UsageError

if TYPE_CHECKING:
    from starsd_edge.speculation.sampling import SamplingParams


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """The options. Their ranges are checked by `SamplingParams`."""

    __panel__: ClassVar[str] = "Sampling"

    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0
    top_k: Annotated[int, typer.Option(help="Sample from so many likeliest tokens; 0: from all.")] = 0
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest tokens of this total probability.")] = 1.0
    min_p: Annotated[
        float, typer.Option(help="Sample from tokens at least this fraction as likely as the likeliest; 0: from all.")
    ] = 0.0
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1 makes tokens of prompt and answer less likely to come again.")
    ] = 1.0
    presence_penalty: Annotated[
        float, typer.Option(help="Taken from the logit of a token that stands in the answer.")
    ] = 0.0
    frequency_penalty: Annotated[
        float, typer.Option(help="Taken from the logit of a token for each time that it stands in the answer.")
    ] = 0.0
    logit_bias: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="ID=VALUE",
            help="Added to a token's logit, -inf forbids it; may be given several times.",
            show_default=False,
        ),
    ] = ()
    min_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens that come before an end of sequence or a stop text ends the answer.")
    ] = 0
    seed: Annotated[
        int | None, typer.Option(help="Makes sampled answers repeatable; random and shown if not given.")
    ] = None

    def params(self, seed: int) -> SamplingParams:
        """What the sampler takes; `seed` in place of one that was not given.

        Raises:
            UsageError: an option is out of its range.
        """
        from starsd_edge.speculation.penalties import Penalties
        from starsd_edge.speculation.sampling import SamplingParams

        return SamplingParams(
            self.temperature,
            self.top_k,
            self.top_p,
            seed if self.seed is None else self.seed,
            min_p=self.min_p,
            penalties=Penalties(self.repetition_penalty, self.presence_penalty, self.frequency_penalty),
            logit_bias=parse_logit_bias(self.logit_bias),
            min_tokens=self.min_tokens,
        )


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
