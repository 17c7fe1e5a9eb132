"""Our own ways of decoding, as `bench decode` runs them: what `run-target` does, for a given number of tokens."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from starsd_edge.bench.runs import Run
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.rounds import Round
from starsd_edge.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from starsd_jetson.drafting import DraftSource
    from starsd_jetson.hub_link import HubLink
    from starsd_jetson.target import Target

_CONNECT_S = 30.0
"""The hub is on this machine and listens already; more than this is a fault."""


@dataclass(frozen=True)
class OurMode:
    """One draft source on one target.

    Attributes:
        name: see `starsd_edge.bench.runs.Mode`.
        target: one whose tokenizer knows no end of sequence (`without_end`).
        source: where its drafts come from.
        shape: largest draft.
    """

    name: str
    target: Target
    source: DraftSource
    shape: DraftShape

    def run(self, prompt: Sequence[int], new_tokens: int) -> Run:
        """See `Mode`."""
        from starsd_jetson.decoder import Request, decode

        rounds: list[Round] = []
        context = self.target.context(None)
        answer = decode(
            self.target.engine,
            self.target.tokenizer,
            Request(prompt, SamplingParams(), new_tokens, context, self.shape),
            self.source,
            clock=time.perf_counter,
            on_round=rounds.append,
        )
        return Run(answer.token_ids, answer.prefill_s, answer.decode_s, tuple(rounds))


def without_end(target: Target) -> Target:
    """The same target, for which no token ends an answer: all ways of decoding must do the same work."""
    from starsd_jetson.target import Target

    rules = msgspec.structs.replace(target.bundle.manifest.text, eos_ids=[])
    return Target(target.bundle, target.engine, Tokenizer.load(target.bundle.path, rules))


@contextmanager
def hub_link(url: str, target: Target, shape: DraftShape) -> Iterator[HubLink]:
    """A link to the hub there, welcomed.

    Raises:
        HubError: the hub refuses the target.
    """
    from starsd_jetson.hub_address import HubAddress
    from starsd_jetson.hub_link import HubLink

    hello = target.hello("bench", shape, target.context(None))
    with HubLink(HubAddress.parse(url), hello, lambda line: None, time.monotonic, random.random) as link:
        link.wait_for_hub(_CONNECT_S)
        yield link


def hub_drafts(link: HubLink, draft_wait_s: float | None) -> DraftSource:
    """Drafts as `run-target --hub --draft-wait` takes them."""
    from starsd_jetson.drafting import NgramDrafts
    from starsd_jetson.hub_drafting import HubDrafts
    from starsd_jetson.patience import Patience

    return HubDrafts(link.open_channel, NgramDrafts(), Patience(draft_wait_s), time.monotonic)
