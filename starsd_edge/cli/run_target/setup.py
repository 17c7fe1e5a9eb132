"""What stands before the first answer of `run-target`: options become an opened target that is linked to its hub."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starsd_edge.errors import UsageError

if TYPE_CHECKING:
    from starsd_edge.cli.run_target.options import DraftOptions, HubOptions, RunTargetOptions
    from starsd_edge.speculation.sampling import SamplingParams
    from starsd_jetson.answers import Request
    from starsd_jetson.api import Answers, DraftSettings, OpenTarget
    from starsd_jetson.hub_address import HubAddress

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TargetSetup:
    """Ready to answer.

    Attributes:
        opened: the target with its link.
        request: what all answers have in common; it has no prompt.
        answers: answers them, in a chat each with what is left of the one before.
    """

    opened: OpenTarget
    request: Request
    answers: Answers


def hub_address(hub: HubOptions) -> HubAddress | None:
    """Where the hub is; None where none is to be asked.

    Raises:
        UsageError: the address or the token file cannot be used.
    """
    if not hub.hub:
        return None
    from starsd_jetson.api import hub_address

    return hub_address(hub.hub, hub.token_file)


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
    from starsd_edge.bundles.bundle import load_bundle
    from starsd_edge.bundles.catalogue import find_bundle
    from starsd_edge.cli.progress import loading_shown
    from starsd_edge.text.grammar import json_grammar_of_file
    from starsd_jetson.api import HubAccess, OpenTarget

    is_chat, length = options.prompts.chat, options.length
    grammar = None if length.json_schema is None else json_grammar_of_file(length.json_schema)
    path = find_bundle(options.bundle)
    is_for_programs = options.output.json or options.output.stream_json
    say = _unsaid if is_for_programs else log.info
    with loading_shown([path], say, draws=not (is_for_programs or options.log.is_json)):
        bundle = load_bundle(path)
        if is_chat and bundle.manifest.text.chat_template is None:
            raise UsageError(f"{bundle.path.name} has no chat template: leave out --chat, and give --prompt")
        drafts = draft_settings(options.drafts, options.hub)
        has_hub = bool(options.hub.hub)
        target = OpenTarget.load(bundle, options.device, options.threads, length.context, drafts, has_hub=has_hub)
    with target as opened:
        request = opened.request((), sampling, length.max_tokens, length.stop, length.ignore_eos, grammar)
        if address is not None:
            opened.connect(HubAccess(address, options.hub.target_name, options.hub.require_hub, notice))
        yield TargetSetup(opened, request, opened.answers(keeps_text=is_chat))


def _unsaid(line: str) -> None:
    """Who asked for JSON is not told how far the loading is."""


def draft_settings(drafts: DraftOptions, hub: HubOptions) -> DraftSettings:
    """How drafts are asked for."""
    from starsd_jetson.api import DraftSettings

    return DraftSettings(
        drafts.speculation,
        drafts.draft_nodes,
        drafts.draft_depth,
        drafts.draft_branching,
        drafts.draft_wait,
        hub.draft_window,
        hub.features.value,
        drafts.allow_inexact,
    )
