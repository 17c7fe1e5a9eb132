"""`starsd-edge run-target`: answer prompts with a target model, faster when a hub drafts for it."""

from __future__ import annotations

import io
import math
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from starsd_edge.cli.sampling_options import parse_logit_bias
from starsd_edge.cli.token_file import read_token
from starsd_edge.errors import UsageError

if TYPE_CHECKING:
    from starsd_edge.cli.answer_output import AnswerOutput
    from starsd_edge.speculation.sampling import SamplingParams
    from starsd_jetson.decoder import Answer, Request
    from starsd_jetson.drafting import DraftSource
    from starsd_jetson.hub_address import HubAddress
    from starsd_jetson.hub_link import HubLink
    from starsd_jetson.reporting import Reporter
    from starsd_jetson.target import Target

_FIRST_CONNECT_S = 1.0
"""A hub that is there answers sooner; one that is not must not hold up the first answer."""
_REQUIRED_CONNECT_S = 10.0
_INTERRUPTED = 128 + signal.SIGINT


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run-target")(run_target)


def run_target(
    bundle: Annotated[str, typer.Argument(help="Directory or name of a bundle that `starsd-edge export` wrote.")],
    device: Annotated[str, typer.Option(help="cpu; cuda and jetson come with a later version.")] = "cpu",
    hub: Annotated[
        str | None, typer.Option(help="Draft server, like ws://192.168.1.20:8317.", show_default=False)
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the hub's bearer token.", show_default=False)
    ] = None,
    require_hub: Annotated[bool, typer.Option("--require-hub", help="Fail if the hub cannot be reached.")] = False,
    name: Annotated[str, typer.Option(help="Name of this target for the hub's monitor.")] = "target",
    prompt: Annotated[
        list[str] | None, typer.Option(help="A prompt; may be given several times.", show_default=False)
    ] = None,
    prompts: Annotated[
        str | None, typer.Option(help="File with one prompt per line; - is standard input.", show_default=False)
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Take prompts as they are, without the chat template.")] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample from so many likeliest tokens; 0: from all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest tokens of this total probability.")] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Sample from tokens at least this fraction as likely as the likeliest; 0: from all.")
    ] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1 makes tokens of prompt and answer less likely to come again.")
    ] = 1.0,
    presence_penalty: Annotated[
        float, typer.Option(help="Taken from the logit of a token that stands in the answer.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="Taken from the logit of a token for each time that it stands in the answer.")
    ] = 0.0,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=VALUE",
            help="Added to a token's logit, -inf forbids it; may be given several times.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Makes sampled answers repeatable; random and shown if not given.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends an answer; may be given several times.", show_default=False)
    ] = None,
    min_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens that come before an end of sequence or a stop text ends the answer.")
    ] = 0,
    ignore_eos: Annotated[
        bool,
        typer.Option("--ignore-eos", help="Go on after an end-of-sequence token, which becomes part of the answer."),
    ] = False,
    context: Annotated[
        int | None, typer.Option(min=2, help="Most tokens of prompt and answer together.", show_default=False)
    ] = None,
    no_speculation: Annotated[bool, typer.Option("--no-speculation", help="Decode token by token.")] = False,
    draft_nodes: Annotated[int | None, typer.Option(min=1, help="Most guessed tokens per round.")] = None,
    draft_depth: Annotated[int | None, typer.Option(min=1, help="Most guessed tokens in a row.")] = None,
    draft_branching: Annotated[int | None, typer.Option(min=1, help="Most alternatives at one place.")] = None,
    draft_wait: Annotated[
        float | None,
        typer.Option(min=0, help="Most seconds to wait for a draft; without it, as long as waiting pays."),
    ] = None,
    allow_inexact: Annotated[
        bool, typer.Option("--allow-inexact", help="Verify trees where only chains are exact (int8 weights).")
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the engine.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per answer, nothing else.")] = False,
    stream_json: Annotated[
        bool, typer.Option("--stream-json", help="JSON objects: the text piece by piece, then the answer as by --json.")
    ] = False,
) -> None:
    """Answer prompts. The text is that of the model alone, whatever a hub does; only the speed changes."""
    _check_options(device, hub, token_file, require_hub, no_speculation, draft_wait)
    address = _hub_address(hub, token_file)
    asked = _gather_prompts(prompt or [], prompts)
    seed = secrets.randbits(64) if seed is None else seed

    from starsd_edge.bundles.bundle import load_bundle
    from starsd_edge.bundles.cache import find_bundle
    from starsd_edge.speculation.penalties import Penalties
    from starsd_edge.speculation.sampling import SamplingParams
    from starsd_jetson.decoder import Request
    from starsd_jetson.target import Target, draft_shape

    sampling = SamplingParams(
        temperature,
        top_k,
        top_p,
        seed,
        min_p=min_p,
        penalties=Penalties(repetition_penalty, presence_penalty, frequency_penalty),
        logit_bias=parse_logit_bias(logit_bias or ()),
        min_tokens=min_tokens,
    )
    output = _output(as_json, stream_json, name, sampling)
    target = Target.open(load_bundle(find_bundle(bundle)), device, threads, allow_inexact=allow_inexact)
    shape = draft_shape(target.engine.spec, draft_depth, draft_nodes, draft_branching)
    sampling.check_tokens(target.tokenizer.size)
    request = Request((), sampling, max_tokens, target.context(context), shape, tuple(stop or ()), ignore_eos)
    with ExitStack() as stack:
        interrupted = stack.enter_context(_interruptible())
        link = None
        if address is not None:
            notices = _Notices(output)
            link = stack.enter_context(_hub_link(address, target, name, request, notices))
            _wait_for_hub(link, require_hub)
            notices.release()
        source = _draft_source(link, no_speculation, draft_wait)
        try:
            code = _Run(target, request, source, link, _reporter(link, source), output, interrupted).answer_all(
                asked, raw
            )
        except BrokenPipeError:
            # Whoever read the answers has left; the interpreter must not trip over the same pipe at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 128 + signal.SIGPIPE
    if code:
        raise typer.Exit(code)


def _output(as_json: bool, stream_json: bool, name: str, sampling: SamplingParams) -> AnswerOutput:
    from starsd_edge.cli.answer_output import JsonOutput, StreamJsonOutput, TextOutput

    if stream_json:
        return StreamJsonOutput(sys.stdout, sys.stderr, name, sampling)
    if as_json:
        return JsonOutput(sys.stdout, sys.stderr, name, sampling)
    return TextOutput(sys.stdout, sys.stderr, sampling.seed)


class _Interrupt:
    """Whether Ctrl-C was pressed."""

    def __init__(self) -> None:
        self.pressed = False

    def __call__(self) -> bool:
        return self.pressed


class _Notices:
    """Lines about the link, held back until it is clear that the command goes on: if not, the error says it all."""

    def __init__(self, output: AnswerOutput) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._held: list[str] | None = []

    def __call__(self, line: str) -> None:
        with self._lock:
            if self._held is not None:
                self._held.append(line)
                return
        self._output.notice(line)

    def release(self) -> None:
        """Show those held back, and all that follow at once."""
        with self._lock:
            held, self._held = self._held or [], None
        for line in held:
            self._output.notice(line)


@dataclass
class _Run:
    """The prompts of one call, one after the other."""

    target: Target
    request: Request
    source: DraftSource
    link: HubLink | None
    reporter: Reporter | None
    output: AnswerOutput
    interrupted: _Interrupt

    def answer_all(self, prompts: Sequence[str], raw: bool) -> int:
        """Answer what can be answered; the exit code."""
        from starsd_edge.telemetry.summary import Figures, LinkFigures

        code = 0
        total = Figures()
        link_figures = LinkFigures()
        for number, prompt in enumerate(prompts, 1):
            if self.interrupted():
                break
            self.output.begin(number, len(prompts), prompt)
            try:
                answer = self._answer(prompt, raw)
            except UsageError as error:
                self.output.failure(number, len(prompts), str(error))
                code = error.exit_code
                continue
            link_figures = self.link.figures if self.link else link_figures
            figures = Figures()
            for sums in (figures, total):
                sums.add(len(answer.token_ids), answer.prefill_s, answer.decode_s, answer.stats)
            self.output.end(number, answer, figures, link_figures)
        self.output.total(total, link_figures)
        return _INTERRUPTED if self.interrupted() else code

    def _answer(self, prompt: str, raw: bool) -> Answer:
        from starsd_jetson.decoder import decode

        request = replace(self.request, prompt=self.target.encode(prompt, raw))
        try:
            return decode(
                self.target.engine,
                self.target.tokenizer,
                request,
                self.source,
                clock=time.monotonic,
                on_piece=self.output.piece,
                on_round=self.reporter.round if self.reporter else lambda done: None,
                cancelled=self.interrupted,
            )
        finally:
            if self.reporter:
                self.reporter.idle()


def _check_options(
    device: str,
    hub: str | None,
    token_file: Path | None,
    require_hub: bool,
    no_speculation: bool,
    draft_wait: float | None,
) -> None:
    from starsd_edge.runtime.loading import check_device

    check_device(device)
    if hub is None and (require_hub or token_file is not None):
        raise UsageError("--require-hub and --token-file need --hub, the address of the hub")
    if draft_wait is not None and not math.isfinite(draft_wait):
        raise UsageError(f"--draft-wait is a number of seconds, not {draft_wait}")
    if hub is not None and no_speculation:
        raise UsageError("--no-speculation uses no drafts: leave out --hub, or leave out --no-speculation")


def _gather_prompts(given: Sequence[str], source: str | None) -> list[str]:
    prompts = list(given)
    if source is not None:
        prompts += [line for line in _read_lines(source) if line.strip()]
        if len(prompts) == len(given):
            raise UsageError(f"there is no prompt in {_name_of(source)}: write one per line")
    if not prompts:
        raise UsageError("no prompt: give --prompt TEXT, or --prompts FILE with one per line (- is standard input)")
    if not all(prompt.strip() for prompt in prompts):
        raise UsageError("a prompt is empty: give it some text")
    return prompts


def _read_lines(source: str) -> list[str]:
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        # Not str.splitlines: it also cuts at form feeds and Unicode's separators, which may stand in a prompt.
        return [line.rstrip("\n") for line in io.StringIO(data.decode("utf-8-sig"), newline=None)]
    except OSError as error:
        raise UsageError(f"cannot read the prompts in {source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{_name_of(source)} is not UTF-8 text (byte {error.start}): convert it") from error


def _name_of(source: str) -> str:
    return "standard input" if source == "-" else source


def _hub_address(url: str | None, token_file: Path | None) -> HubAddress | None:
    if url is None:
        return None
    from starsd_jetson.hub_address import HubAddress

    return HubAddress.parse(url, None if token_file is None else read_token(token_file))


def _hub_link(address: HubAddress, target: Target, name: str, request: Request, notices: _Notices) -> HubLink:
    import random

    from starsd_jetson.hub_link import HubLink

    hello = target.hello(name, request.shape, request.context)
    return HubLink(address, hello, notices, time.monotonic, random.random)


def _wait_for_hub(link: HubLink, required: bool) -> None:
    """A hub that is there drafts from the first answer on; one that is not may come later, unless it is required."""
    from starsd_jetson.hub_endings import HubError

    try:
        link.wait_for_hub(_REQUIRED_CONNECT_S if required else _FIRST_CONNECT_S)
    except HubError:
        if required:
            raise


def _draft_source(link: HubLink | None, no_speculation: bool, draft_wait: float | None) -> DraftSource:
    from starsd_jetson.drafting import NgramDrafts, NoDrafts
    from starsd_jetson.hub_drafting import HubDrafts
    from starsd_jetson.patience import Patience

    if no_speculation:
        return NoDrafts()
    if link is None:
        return NgramDrafts()
    return HubDrafts(link.open_channel, NgramDrafts(), Patience(draft_wait), time.monotonic)


def _reporter(link: HubLink | None, source: DraftSource) -> Reporter | None:
    from starsd_jetson.hub_drafting import HubDrafts
    from starsd_jetson.reporting import Reporter

    if link is None or not isinstance(source, HubDrafts):
        return None
    return Reporter(link.report, lambda: source.why_off, time.monotonic)


@contextmanager
def _interruptible() -> Iterator[_Interrupt]:
    """Ctrl-C ends the answer after the pass that is running; pressed again, it ends the program at once."""
    interrupt = _Interrupt()
    before = signal.getsignal(signal.SIGINT)

    def press(signum: int, frame: FrameType | None) -> None:
        interrupt.pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, press)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
