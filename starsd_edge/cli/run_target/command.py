"""`starsd-edge run-target`: answer prompts with a target model, faster when a hub drafts for it.

options     every option, its default and its checks
setup       the target, its link, its drafts
answering   the prompts of one call, answered one after the other
output      how answers and figures are written
chat        a chat instead of prompts
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

from starsd_edge.cli.commands import add_command
from starsd_edge.cli.logs import logging_to
from starsd_edge.cli.run_target.options import RunTargetOptions

if TYPE_CHECKING:
    from starsd_edge.cli.run_target.output import AnswerOutput
    from starsd_edge.speculation.sampling import SamplingParams


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "run-target", run_target, RunTargetOptions)


def run_target(options: RunTargetOptions) -> None:
    """Answer prompts. The text is that of the model alone, whatever a hub does; only the speed changes."""
    from starsd_edge.bundles.catalogue import bundles_at
    from starsd_edge.running import listed
    from starsd_edge.runtime.loading import check_device

    check_device(options.device)
    try:
        with listed("run-target", bundles_at(options.bundle), hub=options.hub.hub):
            code = _chat(options) if options.prompts.chat else _answer_prompts(options)
    except BrokenPipeError:
        # Whoever read the answers has left; the interpreter must not trip over the same pipe at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    if code:
        raise typer.Exit(code)


def _answer_prompts(options: RunTargetOptions) -> int:
    from starsd_edge.cli.run_target.answering import AnswerRun, gather_prompts
    from starsd_edge.cli.run_target.chat_input import interruptible
    from starsd_edge.cli.run_target.setup import hub_address, target_setup

    with logging_to(sys.stderr, options.log), ExitStack() as stack:
        address = hub_address(options.hub)
        prompts = gather_prompts(options.prompts)
        sampling = options.sampling.params(seed=secrets.randbits(64))
        output = _output(options, sampling, stack)
        setup = stack.enter_context(target_setup(options, sampling, address, output.notice))
        interrupted = stack.enter_context(interruptible())
        return AnswerRun(setup, output, interrupted).answer_all(prompts, options.prompts.raw, options.prompts.system)


def _chat(options: RunTargetOptions) -> int:
    from starsd_edge.cli.run_target.chat import run_chat
    from starsd_edge.cli.run_target.setup import hub_address, target_setup
    from starsd_edge.cli.streams import LineWriter, TextStreams, printable

    streams = TextStreams(sys.stdout, sys.stderr)
    with logging_to(LineWriter(streams.say), options.log):
        address, sampling = hub_address(options.hub), options.sampling.params(seed=0)
        with target_setup(options, sampling, address, lambda line: streams.say(printable(line))) as setup:
            return run_chat(setup, options, streams)


def _output(options: RunTargetOptions, sampling: SamplingParams, stack: ExitStack) -> AnswerOutput:
    from starsd_edge.cli.run_target.output import LoggedOutput

    if not options.log.is_json:
        return _answer_output(options, sampling, sys.stderr)
    nowhere = stack.enter_context(Path(os.devnull).open("w"))  # noqa: SIM115 (the stack closes it)
    return LoggedOutput(_answer_output(options, sampling, nowhere))


def _answer_output(options: RunTargetOptions, sampling: SamplingParams, err: TextIO) -> AnswerOutput:
    from starsd_edge.cli.run_target.output import JsonOutput, StreamJsonOutput, TextOutput

    if options.output.stream_json:
        return StreamJsonOutput(sys.stdout, err, options.hub.target_name, sampling)
    if options.output.json:
        return JsonOutput(sys.stdout, err, options.hub.target_name, sampling)
    return TextOutput(sys.stdout, err, sampling.seed)
