"""`starsd-edge run-target`: answer prompts with a target model, faster when a hub drafts for it.

run_target_options   every option, its default and its checks
prompt_input         what is asked
target_setup         the target, its link, its drafts
answer_run           the answers
answer_output        how they leave
chat                 a chat instead
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from typing import TYPE_CHECKING

import typer

from starsd_edge.cli.options import as_command
from starsd_edge.cli.run_target_options import OutputOptions, RunTargetOptions

if TYPE_CHECKING:
    from starsd_edge.cli.answer_output import AnswerOutput
    from starsd_edge.speculation.sampling import SamplingParams


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run-target")(as_command(run_target, RunTargetOptions))


def run_target(options: RunTargetOptions) -> None:
    """Answer prompts. The text is that of the model alone, whatever a hub does; only the speed changes."""
    from starsd_edge.runtime.loading import check_device

    check_device(options.device)
    try:
        code = _chat(options) if options.prompts.chat else _answer_prompts(options)
    except BrokenPipeError:
        # Whoever read the answers has left; the interpreter must not trip over the same pipe at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    if code:
        raise typer.Exit(code)


def _answer_prompts(options: RunTargetOptions) -> int:
    from starsd_edge.cli.answer_run import AnswerRun
    from starsd_edge.cli.interrupt import interruptible
    from starsd_edge.cli.prompt_input import gather_prompts
    from starsd_edge.cli.target_setup import hub_address, target_setup

    address = hub_address(options)
    prompts = gather_prompts(options.prompts)
    sampling = options.sampling.params(seed=secrets.randbits(64))
    output = _output(options.output, options.hub.name, sampling)
    with target_setup(options, sampling, address, output.notice) as setup, interruptible() as interrupted:
        return AnswerRun(setup, output, interrupted).answer_all(prompts, options.prompts.raw)


def _chat(options: RunTargetOptions) -> int:
    from starsd_edge.cli.chat import run_chat
    from starsd_edge.cli.target_setup import hub_address, target_setup
    from starsd_edge.cli.text_streams import TextStreams, printable

    address = hub_address(options)
    streams = TextStreams(sys.stdout, sys.stderr)
    with target_setup(
        options, options.sampling.params(seed=0), address, lambda line: streams.say(printable(line))
    ) as setup:
        return run_chat(setup, options, streams)


def _output(options: OutputOptions, name: str, sampling: SamplingParams) -> AnswerOutput:
    from starsd_edge.cli.answer_output import JsonOutput, StreamJsonOutput, TextOutput

    if options.stream_json:
        return StreamJsonOutput(sys.stdout, sys.stderr, name, sampling)
    if options.json:
        return JsonOutput(sys.stdout, sys.stderr, name, sampling)
    return TextOutput(sys.stdout, sys.stderr, sampling.seed)
