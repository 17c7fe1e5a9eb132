"""The options of `run-target`, in the groups of its help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from starsd_edge.cli.logs import LogOptions
from starsd_edge.cli.options import check_seconds
from starsd_edge.cli.shared_options import (
    Context,
    Device,
    DraftBranching,
    DraftDepth,
    DraftWait,
    SystemPrompt,
    TargetBundle,
    Threads,
    TokenFile,
)
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


MAX_NAME = 256
"""Characters, as on the wire."""


class FeatureForm(str, Enum):
    """Of features on the wire."""

    AUTO = "auto"
    FP16 = "fp16"
    INT8 = "int8"


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """What is asked."""

    __panel__: ClassVar[str] = "Prompts"

    prompt: Annotated[
        tuple[str, ...], typer.Option(help="A prompt; may be given several times.", show_default=False)
    ] = ()
    prompts: Annotated[
        Path | None, typer.Option(help="File with one prompt per line; - is standard input.", show_default=False)
    ] = None
    raw: Annotated[
        bool, typer.Option(help="Take prompts as they are, without the chat template.", show_default=False)
    ] = False
    chat: Annotated[
        bool,
        typer.Option(help="Talk with the model, which reads what was said before.", show_default=False),
    ] = False
    system: SystemPrompt = ""

    def __post_init__(self) -> None:
        if self.raw and self.system:
            raise UsageError("--system stands in the chat template: leave out --raw")
        if not self.chat:
            return
        if self.prompt or self.prompts is not None:
            raise UsageError("--chat reads messages from standard input: leave out --prompt and --prompts")
        if self.raw:
            raise UsageError("--chat uses the model's chat template: leave out --raw")


@dataclass(frozen=True, kw_only=True)
class HubOptions:
    """The draft server, if any."""

    __panel__: ClassVar[str] = "Hub"

    hub: Annotated[
        str | None,
        typer.Option(
            help="The hub: its host, or a ws:// or wss:// address (8317 where no port is named), or auto for the one "
            "on the local network that shows your token. An empty one is none.",
            show_default=False,
        ),
    ] = None
    token_file: TokenFile = None
    require_hub: Annotated[bool, typer.Option(help="Fail if the hub cannot be reached.", show_default=False)] = False
    name: Annotated[
        str,
        typer.Option(help="Name of this target for the hub's monitor; without one the host's.", show_default=False),
    ] = ""
    features: Annotated[
        FeatureForm,
        typer.Option(
            help="How features travel to a hub that drafts with a head: int8 takes half the bytes of fp16; auto is "
            "int8 where the hub can read it."
        ),
    ] = FeatureForm.AUTO
    draft_window: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Show the hub only this number of last tokens: less is sent, and fewer draft tokens are accepted.",
            show_default=False,
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.hub is None and (self.require_hub or self.token_file is not None):
            raise UsageError("--require-hub and --token-file need --hub, the address of the hub")
        if len(self.name) > MAX_NAME:
            raise UsageError(f"--name has {len(self.name)} characters: give at most {MAX_NAME}")

    @property
    def target_name(self) -> str:
        """What the hub is told: every board has a host name, and a name that all share tells nobody apart."""
        from starsd_edge.device.host import name_of_target

        return name_of_target(self.name)


@dataclass(frozen=True, kw_only=True)
class LengthOptions:
    """Where an answer ends."""

    __panel__: ClassVar[str] = "Length"

    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 256
    context: Context = None
    stop: Annotated[
        tuple[str, ...],
        typer.Option(help="Text that ends an answer; may be given several times.", show_default=False),
    ] = ()
    ignore_eos: Annotated[
        bool,
        typer.Option(
            help="Go on after an end-of-sequence token, which becomes part of the answer.", show_default=False
        ),
    ] = False
    json_schema: Annotated[
        Path | None,
        typer.Option(help="File with a JSON schema: answers are JSON that fits it.", show_default=False),
    ] = None

    def __post_init__(self) -> None:
        if "" in self.stop:
            raise UsageError("a stop string must not be empty: leave that --stop out")
        if self.json_schema is not None and self.ignore_eos:
            raise UsageError("an answer held to a schema ends with it: leave out --ignore-eos")


@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """How drafts are asked for. None leaves a number to the program."""

    __panel__: ClassVar[str] = "Drafts"

    speculation: Annotated[
        bool,
        typer.Option(help="Decode token by token, and leave the hub alone.", show_default=False),
    ] = True
    draft_nodes: Annotated[
        int | None, typer.Option(min=1, help="Most draft tokens per round. Default with a hub: 8, on 4 levels.")
    ] = None
    draft_depth: DraftDepth = None
    draft_branching: DraftBranching = None
    draft_wait: DraftWait = None
    allow_inexact: Annotated[
        bool, typer.Option(help="Verify trees where only chains are exact (int8 weights).", show_default=False)
    ] = False

    def __post_init__(self) -> None:
        check_seconds("--draft-wait", self.draft_wait)


def check_hub_is_used(hub: HubOptions, drafts: DraftOptions) -> None:
    """Raises UsageError where a hub is required and left alone."""
    if hub.require_hub and not drafts.speculation:
        raise UsageError("--no-speculation leaves the hub alone: leave out --require-hub")


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How answers are written."""

    __panel__: ClassVar[str] = "Output"

    json: Annotated[bool, typer.Option(help="One JSON object per answer, nothing else.", show_default=False)] = False
    stream_json: Annotated[
        bool,
        typer.Option(help="JSON objects: the text piece by piece, then the answer as by --json.", show_default=False),
    ] = False
    tint: Annotated[bool, typer.Option(help="In a chat, colour tokens by what drafted them.", show_default=False)] = (
        False
    )

    def __post_init__(self) -> None:
        if self.json and self.stream_json:
            raise UsageError("--stream-json ends with what --json prints: leave out one of them")


@dataclass(frozen=True, kw_only=True)
class RunTargetOptions:
    """All of them."""

    bundle: TargetBundle
    prompts: PromptOptions
    hub: HubOptions
    length: LengthOptions
    sampling: SamplingOptions
    drafts: DraftOptions
    output: OutputOptions
    log: LogOptions
    device: Device = "cpu"
    threads: Threads = None

    def __post_init__(self) -> None:
        if self.prompts.chat and (self.output.json or self.output.stream_json):
            raise UsageError("--chat writes for people: leave out --json and --stream-json")
        if self.prompts.chat and self.log.is_json:
            raise UsageError("--chat writes for people: give --log-format text")
        check_hub_is_used(self.hub, self.drafts)
