"""What stands before the first answer of `run-target`: the target, its link to a hub, its drafts, its reports."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starsd_edge.errors import UsageError
from starsd_edge.key_file import read_token

if TYPE_CHECKING:
    from starsd_edge.cli.run_target.options import HubOptions, RunTargetOptions
    from starsd_edge.planning.curve import VerifyCurves
    from starsd_edge.speculation.sampling import SamplingParams
    from starsd_edge.speculation.tree import DraftShape
    from starsd_jetson.decoder import Answer, Piece, Request
    from starsd_jetson.drafting import DraftSource
    from starsd_jetson.hub_address import HubAddress
    from starsd_jetson.hub_drafting import OpenChannel
    from starsd_jetson.hub_link import HubLink
    from starsd_jetson.kept_sequence import KeptSequence
    from starsd_jetson.reporting import Reporter
    from starsd_jetson.target import Target

log = logging.getLogger(__name__)

_FIRST_CONNECT_S = 1.0
"""A hub that is there answers sooner; one that is not must not hold up the first answer."""
_REQUIRED_CONNECT_S = 10.0
_HUB_LEFT_ALONE = "the hub is left alone: --no-speculation decodes token by token"


@dataclass(frozen=True)
class TargetSetup:
    """Ready to answer.

    Attributes:
        request: what all answers have in common; it has no prompt.
        source: where drafts come from.
        link: to the hub, None without one.
        reporter: tells the hub of every round, None without one.
    """

    target: Target
    request: Request
    source: DraftSource
    link: HubLink | None
    reporter: Reporter | None

    def answer(
        self,
        request: Request,
        on_piece: Callable[[Piece], None],
        cancelled: Callable[[], bool],
        kept: KeptSequence | None = None,
    ) -> Answer:
        """Answer one request; see `starsd_jetson.decoder.decode`."""
        from starsd_jetson.decoder import decode

        try:
            return decode(
                self.target.engine,
                self.target.tokenizer,
                request,
                self.source,
                clock=time.monotonic,
                kept=kept,
                on_piece=on_piece,
                on_round=self.reporter.round if self.reporter else lambda done: None,
                cancelled=cancelled,
            )
        finally:
            if self.reporter:
                self.reporter.idle()


def hub_address(options: RunTargetOptions) -> HubAddress | None:
    """Where the hub is; None where none is to be asked.

    Raises:
        UsageError: the address or the token file cannot be used.
    """
    if not options.hub.hub:
        return None
    from starsd_jetson.hub_address import HubAddress

    token_file = options.hub.token_file
    return HubAddress.parse(options.hub.hub, None if token_file is None else read_token(token_file))


@contextmanager
def target_setup(
    options: RunTargetOptions,
    sampling: SamplingParams,
    address: HubAddress | None,
    notice: Callable[[str], None],
) -> Iterator[TargetSetup]:
    """Open the target and connect it; the link ends with the block.

    Args:
        notice: takes a line about the link, from any thread, once it is clear that the command goes on.

    Raises:
        StarsdError: the bundle or the engine cannot be opened, or a required hub cannot be reached.
    """
    target, request, measured = _open(options, sampling)
    with ExitStack() as stack:
        link = None
        if address is not None and options.drafts.speculation:
            notices = _Notices(notice)
            link = stack.enter_context(_hub_link(address, target, options.hub, request, notices))
            _wait_for_hub(link, options.hub)
            notices.release()
        elif address is not None:
            notice(_HUB_LEFT_ALONE)
        source = _draft_source(_open_channel(link, options, stack) if link else None, options, measured)
        yield TargetSetup(target, request, source, link, _reporter(link, source))


def _open(options: RunTargetOptions, sampling: SamplingParams) -> tuple[Target, Request, VerifyCurves | None]:
    """The target, what its answers have in common, and the measured times of its verify passes."""
    from starsd_edge.bundles.bundle import load_bundle
    from starsd_edge.bundles.catalogue import find_bundle
    from starsd_edge.doctor.curve_store import kept_curves
    from starsd_jetson.decoder import Request
    from starsd_jetson.target import Target

    drafts, length = options.drafts, options.length
    bundle = load_bundle(find_bundle(options.bundle))
    if options.prompts.chat and bundle.manifest.text.chat_template is None:
        raise UsageError(f"{bundle.path.name} has no chat template: leave out --chat, and give --prompt")
    log.debug("loading %s", bundle.manifest.name)
    target = Target.open(bundle, options.device, options.threads, allow_inexact=drafts.allow_inexact)
    kept = kept_curves(bundle.manifest, options.threads, options.device, target.engine.spec.digest)
    measured = None if kept is None else kept.curves
    if kept is not None:
        log.debug("first drafts by the times of verify passes measured at %s UTC", kept.stored.measured_at)
    shape = _shape(options, target, measured)
    sampling.check_tokens(target.tokenizer.size)
    context = target.context(length.context)
    request = Request((), sampling, length.max_tokens, context, shape, length.stop, length.ignore_eos)
    return target, request, measured


def _shape(options: RunTargetOptions, target: Target, measured: VerifyCurves | None) -> DraftShape:
    """The largest draft that is ever asked for: with a hub, by the times that were measured on a short text."""
    from starsd_jetson.target import draft_shape, hub_draft_shape

    drafts, spec = options.drafts, target.engine.spec
    said = (drafts.draft_depth, drafts.draft_nodes, drafts.draft_branching)
    if not options.hub.hub:
        return draft_shape(spec, *said)
    return hub_draft_shape(spec, *said, None if measured is None else measured.at(0))


class _Notices:
    """Lines about the link, held back until it is clear that the command goes on: if not, the error says it all."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._lock = threading.Lock()
        self._held: list[str] | None = []

    def __call__(self, line: str) -> None:
        with self._lock:
            if self._held is not None:
                self._held.append(line)
                return
        self._notice(line)

    def release(self) -> None:
        """Show those held back, and all that follow at once."""
        with self._lock:
            held, self._held = self._held or [], None
        for line in held:
            self._notice(line)


def _hub_link(address: HubAddress, target: Target, options: HubOptions, request: Request, notices: _Notices) -> HubLink:
    import random

    from starsd_jetson.hub_link import HubLink

    hello = target.hello(options.target_name, request.shape, request.context, options.features.value)
    return HubLink(address, hello, notices, time.monotonic, random.random, options.draft_window)


def _wait_for_hub(link: HubLink, options: HubOptions) -> None:
    """A hub that is there drafts from the first answer on; one that is not may come later, unless it is required."""
    from starsd_jetson.hub_endings import HubError

    try:
        link.wait_for_hub(_REQUIRED_CONNECT_S if options.require_hub else _FIRST_CONNECT_S)
    except HubError as error:
        if options.require_hub:
            raise HubError(f"{error}; without --require-hub the target goes on by itself") from None


def _open_channel(link: HubLink, options: RunTargetOptions, stack: ExitStack) -> OpenChannel:
    """A chat goes on with the hub's session of the answer before."""
    from starsd_jetson.kept_channel import KeptChannels

    if not options.prompts.chat:
        return link.open_channel
    channels = KeptChannels(link.open_channel)
    stack.callback(channels.close)
    return channels.open


def _draft_source(
    open_channel: OpenChannel | None, options: RunTargetOptions, measured: VerifyCurves | None
) -> DraftSource:
    from starsd_jetson.drafting import NgramDrafts, NoDrafts
    from starsd_jetson.hub_drafting import HubDrafts
    from starsd_jetson.wait_policy import WaitPolicy

    if not options.drafts.speculation:
        return NoDrafts()
    if open_channel is None:
        return NgramDrafts(measured)
    wait_policy = WaitPolicy(options.drafts.draft_wait, measured)
    return HubDrafts(open_channel, NgramDrafts(measured), wait_policy, time.monotonic)


def _reporter(link: HubLink | None, source: DraftSource) -> Reporter | None:
    from starsd_jetson.hub_drafting import HubDrafts
    from starsd_jetson.reporting import Reporter

    if link is None or not isinstance(source, HubDrafts):
        return None
    return Reporter(link.report, lambda: source.why_off, time.monotonic)
