"""What a chat's commands can change of how answers are made: the options of the same names, checked as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from typer.models import OptionInfo

from starsd_edge.cli.run_target_options import LengthOptions
from starsd_edge.cli.sampling_options import SamplingOptions
from starsd_edge.errors import UsageError

if TYPE_CHECKING:
    from starsd_jetson.decoder import Request

RANDOM = "random"
_SEED = "seed"
_MAX_TOKENS = "max_tokens"
_NO_COMMAND = ("logit_bias",)


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
def setting_options() -> Mapping[str, tuple[Any, OptionInfo]]:
    """Type and option of every setting that has a command, by the name of its field."""
    options = _options(SamplingOptions) | {_MAX_TOKENS: _options(LengthOptions)[_MAX_TOKENS]}
    return {name: option for name, option in options.items() if name not in _NO_COMMAND}


def _options(group: type[Any]) -> dict[str, tuple[Any, OptionInfo]]:
    hints = get_type_hints(group, include_extras=True)
    return {field.name: get_args(hints[field.name]) for field in fields(group)}


def _number(name: str, text: str) -> Any:
    kind, info = setting_options()[name]
    try:
        value = float(text) if kind is float else int(text)
    except ValueError:
        wanted = "a number" if kind is float else "a whole number"
        raise UsageError(f"/{name.replace('_', '-')} takes {wanted}, not {text!r}") from None
    if info.min is not None and value < info.min:
        raise UsageError(f"{name.replace('_', ' ')} must be at least {info.min:g}, not {value}")
    return value
