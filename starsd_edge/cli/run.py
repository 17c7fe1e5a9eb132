"""`starsd-edge run`: from a model to its answer in one command.

Each step is that of the command that does it alone: `pull` fetches the checkpoint, `export` makes the bundle, and
`run-target` answers. A step whose result is there already is left out. Standard output has the answers, and nothing
else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from starsd_edge.cli.commands import add_command
from starsd_edge.cli.logs import LogOptions
from starsd_edge.cli.run_target.options import (
    DraftOptions,
    HubOptions,
    LengthOptions,
    OutputOptions,
    PromptOptions,
    RunTargetOptions,
    SamplingOptions,
)
from starsd_edge.cli.shared_options import Device, SystemPrompt, Threads, model_and_bundle_names
from starsd_edge.errors import StarsdError, UsageError, did_you_mean, install_extra, missing_extra


@dataclass(frozen=True, kw_only=True)
class MessageOptions:
    """What is asked."""

    __panel__: ClassVar[str] = "Prompt"

    prompt: Annotated[
        tuple[str, ...],
        typer.Argument(
            help="What to ask. Without it: a chat on a terminal; elsewhere standard input is the prompt.",
            show_default=False,
        ),
    ] = ()
    system: SystemPrompt = ""
    raw: Annotated[
        bool, typer.Option(help="Take the prompt as it is, without the chat template.", show_default=False)
    ] = False


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of the command."""

    model: Annotated[
        str,
        typer.Argument(
            help="Name of a model (`pull --list`), hf:ORG/NAME, a GGUF file, a safetensors directory, or a bundle.",
            autocompletion=model_and_bundle_names,
        ),
    ]
    message: MessageOptions
    weights: Annotated[
        str | None, typer.Option(help="Of the bundle that is made of a model; see `export`. Default: fp32.")
    ] = None
    device: Device = "cpu"
    threads: Threads = None
    hub: HubOptions
    length: LengthOptions
    sampling: SamplingOptions
    drafts: DraftOptions
    output: OutputOptions
    log: LogOptions


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "run", run, RunOptions)


def run(options: RunOptions) -> None:
    """Answer a prompt, or chat, with a model; what it needs is fetched and exported first, once.

    It is `pull`, `export` and `run-target` in one. With --hub, the hub's drafts make it faster.
    """
    from starsd_edge.cli.run_target.command import run_target
    from starsd_edge.running import listed
    from starsd_edge.runtime.loading import check_device

    check_device(options.device)
    prompts = _prompts(options.message)
    target = RunTargetOptions(
        bundle=options.model,
        prompts=prompts,
        hub=options.hub,
        length=options.length,
        sampling=options.sampling,
        drafts=options.drafts,
        output=options.output,
        log=options.log,
        device=options.device,
        threads=options.threads,
    )
    options.sampling.params(seed=0)  # a value out of its range is told before minutes of work
    with listed("run", model=options.model):
        bundle = ready_bundle(options.model, options.weights, options.device)
    with listed("run", [bundle], hub=options.hub.hub):
        run_target(replace(target, bundle=str(bundle)))


def _prompts(message: MessageOptions) -> PromptOptions:
    if message.prompt:
        text = " ".join(message.prompt)
    elif sys.stdin.isatty():
        return PromptOptions(chat=True, raw=message.raw, system=message.system)
    else:
        text = _standard_input()
    return PromptOptions(prompt=(text,), raw=message.raw, system=message.system)


def _standard_input() -> str:
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8 text (byte {error.start}): convert it") from None
    if not text:
        raise UsageError("no prompt: write it after the model's name, or on standard input")
    return text


def ready_bundle(model: str, weights: str | None, device: str) -> Path:
    """The bundle to answer with, made first unless it is there and what `export` writes now.

    Args:
        model: a bundle, or what `export` takes.
        weights: of a bundle that is made; None takes what `export` does.
        device: "jetson" gets an engine, too.

    Raises:
        UsageError: no such model, or a bundle that has other weights.
        StarsdError: it cannot be made; where libraries are missing the line says which extra brings them.
    """
    from starsd_edge.bundles.catalogue import bundle_at
    from starsd_edge.cli.export.make import make_engine
    from starsd_edge.cli.export.options import ExportCommandOptions
    from starsd_edge.runtime.loading import JETSON

    say: Callable[[str], None] = partial(typer.echo, err=True)
    bundle = bundle_at(model)
    if bundle is not None and weights is not None:
        raise UsageError(f"{model} is a bundle, whose weights are what they are: leave --weights out")
    if bundle is None:
        _require_model(model)
    if device == JETSON:
        with _with_libraries(model):
            return make_engine(ExportCommandOptions(model=model, weights=weights, engine="tensorrt"), say)
    return bundle or _bundle_of(model, weights, say)


def _bundle_of(model: str, weights: str | None, say: Callable[[str], None]) -> Path:
    """A model's bundle for ONNX Runtime."""
    from starsd_edge.bundles.bundle import why_make
    from starsd_edge.cli.export.make import make_bundle, place_in_cache
    from starsd_edge.cli.export.options import ExportCommandOptions
    from starsd_edge.cli.progress import loading_shown

    place = place_in_cache(model, weights)
    with _with_libraries(model):
        with loading_shown([place], say, only_checks=True):
            why = why_make(place)
        why = why or _why_not_of(model, place)
        if why and place.exists():
            say(f"making {place.name} again: {why}")
        if why:
            make_bundle(ExportCommandOptions(model=model, weights=weights), say)
    return place


def _why_not_of(model: str, place: Path) -> str:
    """Why the bundle at this place is not this model's, since two models can have one short name; "" where it is."""
    from starsd_edge.bundles.bundle import load_bundle
    from starsd_edge.bundles.catalogue import find_entry, resolve_model
    from starsd_edge.bundles.hugging_face import parse_hub_name

    manifest = load_bundle(place, check_files=False).manifest
    entry, hub_name = find_entry(model), parse_hub_name(model)
    if entry is not None:
        is_same = manifest.source == entry.path.name
    elif hub_name is not None:
        repository, _, commit = manifest.source.partition("@")
        is_same = repository == hub_name.repository and (
            not hub_name.names_revision or commit == resolve_model(model).name
        )
    else:
        from starsd_export.checkpoint import open_checkpoint

        is_same = manifest.fingerprints.source_fp == open_checkpoint(resolve_model(model)).source_fp
    return "" if is_same else f"the one that is there is of another model ({manifest.source})"


def _require_model(name: str) -> None:
    """Refuse a name that means nothing before libraries are loaded for it."""
    from starsd_edge.bundles.cache import bundle_names, expanded
    from starsd_edge.bundles.catalogue import CATALOGUE
    from starsd_edge.bundles.hugging_face import parse_hub_name

    if name in CATALOGUE or parse_hub_name(name) is not None or expanded(name).exists():
        return
    known = [*CATALOGUE, *bundle_names()]
    meant = did_you_mean(name, known) or f": known are {', '.join(known)}"
    raise UsageError(f"no model or bundle is named {name!r}{meant}; hf:ORG/NAME and paths are taken, too")


@contextmanager
def _with_libraries(model: str) -> Iterator[None]:
    """One line about all that is to be installed where making the model's bundle needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if missing_extra(error.name) is None:
            raise
        raise StarsdError(
            f"{model} has to be exported first, which needs {error.name}: {install_extra('export', 'cpu')}"
        ) from None
