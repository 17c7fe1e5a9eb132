"""The options of `starsd-edge export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starsd_edge.cli.shared_options import model_names
from starsd_edge.errors import UsageError

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, kw_only=True)
class ExportCommandOptions:
    """The options of the command."""

    model: Annotated[
        str,
        typer.Argument(
            help="Name of a model (`pull --list`), hf:ORG/NAME, a GGUF file or a safetensors directory.",
            autocompletion=model_names,
        ),
    ]
    runtime: Annotated[
        str, typer.Option(help="What the graph is for: onnxruntime (CPUs), or tensorrt (engines are built from it).")
    ] = "onnxruntime"
    weights: Annotated[
        str | None,
        typer.Option(
            help="fp32, or int8 (weight-only, for the CPU); for tensorrt fp16, int8 or int4. Default: fp32 for a model "
            "(tensorrt: fp16), int8 for a head."
        ),
    ] = None
    block: Annotated[
        int, typer.Option(help="For tensorrt: weights in a row that share a scale in int8 and int4: 32, 64 or 128.")
    ] = 32
    kv_strategy: Annotated[
        str,
        typer.Option(
            help="For tensorrt: append (TensorRT 10.3 and newer), or inplace (10.15 and newer, caches of a fixed size)."
        ),
    ] = "append"
    head_weights: Annotated[
        str | None,
        typer.Option(
            help="For tensorrt: weights of the output head, fp16, int8 or int4. Default: int8 with int4, else fp16."
        ),
    ] = None
    embedding_weights: Annotated[
        str | None,
        typer.Option(help="For tensorrt: weights of the embedding, fp16 or int8. Default: int8 with int4, else fp16."),
    ] = None
    keep_int8: Annotated[
        str | None,
        typer.Option(
            metavar="PARTS",
            help="For tensorrt and int4: parts of the layers that are int8 all the same, none or some of "
            "q,k,v,o,gate,up,down. Default: v,o,down.",
        ),
    ] = None
    calibration: Annotated[
        str | None,
        typer.Option(
            help="For tensorrt and int4: none, or own-text to search scales on text that the model writes. Default: "
            "own-text."
        ),
    ] = None
    kv: Annotated[str, typer.Option(help="KV cache: float16, or float32 as a CPU reference.")] = "float16"
    draft_head: Annotated[
        str | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Instead, make a draft bundle for hubs: this head, of `train-draft` or published, with what it needs "
            "of the model; shipped takes the one that comes with this program.",
        ),
    ] = None
    features_for: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Let the target give the features that this published EAGLE-3 head reads. Heads of EAGLE-1, EAGLE-2 "
            "and `train-draft` need no such thing.",
        ),
    ] = None
    engine: Annotated[
        str | None,
        typer.Option(
            help="Build an engine: tensorrt (on the device that shall run it) or tensorrt-rtx (for RTX GPUs, on any "
            "machine). MODEL may then be a bundle made with --runtime tensorrt, on another machine too."
        ),
    ] = None
    compute_capability: Annotated[
        tuple[str, ...],
        typer.Option(
            help="For --engine tensorrt-rtx: the kind of GPU, sm75 to sm121; given several times, one engine serves "
            "them all. Default: this machine's."
        ),
    ] = ()
    context: Annotated[
        int | None,
        typer.Option(
            help="For --engine and --kv-strategy inplace: tokens of a sequence at most. Default: the model's."
        ),
    ] = None
    chat_template: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Which of the checkpoint's chat templates, where it has several. Default: its default one.",
        ),
    ] = None
    also_end: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="TOKEN",
            help="Text of a token that ends answers beside those that the checkpoint lists, such as '<|im_end|>'; can "
            "be given several times.",
        ),
    ] = ()
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Directory of the bundle, or of the engine. Default: in the cache, found by its name later.",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.draft_head is not None and self.features_for is not None:
            raise UsageError(
                "--draft-head makes the hub's bundle and --features-for the target's: run export once with each"
            )
        if self.draft_head is not None and (self.chat_template is not None or self.also_end):
            raise UsageError("--chat-template and --also-end are for the target's bundle: leave out --draft-head")
