"""What was said in a chat, and how much of it the model reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

from typer.models import OptionInfo

from starsd_edge.cli.options import OptionField, option_fields
from starsd_edge.cli.run_target.options import LengthOptions, SamplingOptions
from starsd_edge.errors import UsageError

if TYPE_CHECKING:
    from starsd_jetson.decoder import Request


RANDOM = "random"
_SEED = "seed"
_MAX_TOKENS = "max_tokens"


@dataclass(frozen=True)
class ChatSettings:
    """Attributes:
    base: what no command changes.
    sampling: without a seed, every answer gets a random one.
    max_tokens: of an answer.
    """

    base: Request = field(repr=False)
    sampling: SamplingOptions
    max_tokens: int

    def request(self, prompt: list[int], seed: int) -> Request:
        """For one answer.

        Raises:
            UsageError: a setting is out of its range, or two contradict each other.
        """
        sampling = self.sampling.params(seed)
        return replace(self.base, prompt=prompt, sampling=sampling, max_tokens=self.max_tokens)

    def shown(self, name: str) -> str:
        """The value of a setting, for people."""
        value = self.max_tokens if name == _MAX_TOKENS else getattr(self.sampling, name)
        return f"{RANDOM} for each answer" if value is None else str(value)

    def changed(self, name: str, text: str) -> ChatSettings:
        """With a setting read from this text.

        Raises:
            UsageError: it is no such value; the settings stay as they were.
        """
        if name == _MAX_TOKENS:
            new = replace(self, max_tokens=_number(name, text))
        elif name == _SEED and text.lower() == RANDOM:
            new = replace(self, sampling=replace(self.sampling, seed=None))
        else:
            new = replace(self, sampling=replace(self.sampling, **{name: _number(name, text)}))
        new.request([], seed=0)
        return new


@cache
def setting_options() -> Mapping[str, OptionField]:
    """The options that have a command, by name."""
    options = {option.name: option for option in option_fields(SamplingOptions) if not option.repeated}
    lengths = {option.name: option for option in option_fields(LengthOptions)}
    return {**options, _MAX_TOKENS: lengths[_MAX_TOKENS]}


def usage(option: OptionField) -> str:
    """How its command is written."""
    value = f"N|{RANDOM}" if option.name == _SEED else "X" if option.type is float else "N"
    return f"/{option.key} {value}"


def help_of(option: OptionField) -> str:
    """What it does."""
    return str(_info(option).help)


def _info(option: OptionField) -> OptionInfo:
    info: OptionInfo = get_args(option.parameter.annotation)[1]
    return info


def _number(name: str, text: str) -> Any:
    option = setting_options()[name]
    try:
        value = option.type(text)
    except ValueError:
        wanted = "a number" if option.type is float else "a whole number"
        raise UsageError(f"/{option.key} takes {wanted}, not {text!r}") from None
    least = _info(option).min
    if least is not None and value < least:
        raise UsageError(f"{option.key} must be at least {least:g}, not {value}")
    return value
