"""The options of `run-target`, in the groups of its help."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from starsd_edge.cli.completion import bundle_names
from starsd_edge.cli.logs import LogOptions
from starsd_edge.cli.options import MAX_THREADS, check_seconds
from starsd_edge.cli.sampling_options import SamplingOptions
from starsd_edge.errors import UsageError

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

    def __post_init__(self) -> None:
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
            help="Draft server, like ws://192.168.1.20:8317 (8317 where no port is named); an empty one is none.",
            show_default=False,
        ),
    ] = None
    token_file: Annotated[Path | None, typer.Option(help="File with the hub's bearer token.", show_default=False)] = (
        None
    )
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
            help="Show the hub only so many of the last tokens of a text; less goes up, and less is foreseen.",
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
        name = self.name or socket.gethostname()
        return name.encode(errors="replace").decode() or "target"


@dataclass(frozen=True, kw_only=True)
class LengthOptions:
    """Where an answer ends."""

    __panel__: ClassVar[str] = "Length"

    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 256
    context: Annotated[
        int | None, typer.Option(min=2, help="Most tokens of prompt and answer together.", show_default=False)
    ] = None
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

    def __post_init__(self) -> None:
        if "" in self.stop:
            raise UsageError("a stop string must not be empty: leave that --stop out")


@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """How far to guess ahead. None leaves a number to the program."""

    __panel__: ClassVar[str] = "Drafts"

    speculation: Annotated[
        bool,
        typer.Option(help="Decode token by token, and leave the hub alone.", show_default=False),
    ] = True
    draft_nodes: Annotated[
        int | None, typer.Option(min=1, help="Most guessed tokens per round. With a hub 8, on 4 levels, if not said.")
    ] = None
    draft_depth: Annotated[int | None, typer.Option(min=1, help="Most guessed tokens in a row.")] = None
    draft_branching: Annotated[int | None, typer.Option(min=1, help="Most alternatives at one place.")] = None
    draft_wait: Annotated[
        float | None,
        typer.Option(min=0, help="Wait so long for every draft, and verify all of it; without it, as far as it pays."),
    ] = None
    allow_inexact: Annotated[
        bool, typer.Option(help="Verify trees where only chains are exact (int8 weights).", show_default=False)
    ] = False

    def __post_init__(self) -> None:
        check_seconds("--draft-wait", self.draft_wait)


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How answers are written."""

    __panel__: ClassVar[str] = "Output"

    json: Annotated[bool, typer.Option(help="One JSON object per answer, nothing else.", show_default=False)] = False
    stream_json: Annotated[
        bool,
        typer.Option(help="JSON objects: the text piece by piece, then the answer as by --json.", show_default=False),
    ] = False
    tint: Annotated[bool, typer.Option(help="In a chat, colour tokens by what guessed them.", show_default=False)] = (
        False
    )

    def __post_init__(self) -> None:
        if self.json and self.stream_json:
            raise UsageError("--stream-json ends with what --json prints: leave out one of them")


@dataclass(frozen=True, kw_only=True)
class RunTargetOptions:
    """All of them."""

    bundle: Annotated[
        str,
        typer.Argument(
            help="Directory or name of a bundle that `starsd-edge export` wrote.", autocompletion=bundle_names
        ),
    ]
    prompts: PromptOptions
    hub: HubOptions
    length: LengthOptions
    sampling: SamplingOptions
    drafts: DraftOptions
    output: OutputOptions
    log: LogOptions
    device: Annotated[str, typer.Option(help="cpu, cuda or jetson: where the model runs.")] = "cpu"
    threads: Annotated[
        int | None, typer.Option(min=1, max=MAX_THREADS, help="Threads of the engine.", show_default=False)
    ] = None

    def __post_init__(self) -> None:
        if self.prompts.chat and (self.output.json or self.output.stream_json):
            raise UsageError("--chat writes for people: leave out --json and --stream-json")
        if self.prompts.chat and self.log.is_json:
            raise UsageError("--chat writes for people: give --log-format text")
        if self.hub.require_hub and not self.drafts.speculation:
            raise UsageError("--no-speculation leaves the hub alone: leave out --require-hub")
