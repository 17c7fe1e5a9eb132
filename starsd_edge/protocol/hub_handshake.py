"""HELLO and WELCOME at the hub: what a target and this hub settle, or why they cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from starsd_edge.protocol.codec import printable
from starsd_edge.protocol.codes import CODEC, VERSION
from starsd_edge.protocol.features import NO_FEATURES
from starsd_edge.protocol.hub_actions import HubLimits, Offer, Refusal
from starsd_edge.protocol.messages import MAX_TREE_NODES, WIRE_VERSION, Hello, Welcome
from starsd_edge.speculation.tree import DraftShape

VERSIONS = (WIRE_VERSION,)
"""Wire versions this hub speaks."""


@dataclass(frozen=True)
class Terms:
    """What HELLO and WELCOME settled: binds a session, and a connection that wants to go on with it must have settled
    the same.

    Attributes:
        max_nodes: most nodes of any draft for this target.
        max_depth: most levels, before the context's end is looked at.
        max_context: most tokens of a session, root included.
    """

    target: str
    vocab_size: int
    tokenizer_fp: str
    feature_fp: str
    feature_width: int
    drafter: str
    drafter_fp: str
    feature_codec: str
    max_nodes: int
    max_depth: int
    max_context: int
    chains_only: bool

    @classmethod
    def settle(cls, hello: Hello, offer: Offer, limits: HubLimits) -> Terms:
        """The terms between this target and a hub with these limits."""
        return cls(
            target=hello.target,
            vocab_size=hello.vocab_size,
            tokenizer_fp=hello.tokenizer_fp,
            feature_fp=hello.feature_fp,
            feature_width=hello.feature_width,
            drafter=offer.drafter,
            drafter_fp=offer.drafter_fp,
            feature_codec=offer.feature_codec,
            max_nodes=min(limits.max_nodes, MAX_TREE_NODES, hello.max_tree - 1),
            max_depth=min(limits.max_depth, hello.max_depth),
            max_context=min(limits.max_context, hello.max_context),
            chains_only=hello.chains_only,
        )

    def clamp(self, shape: DraftShape, base_len: int) -> DraftShape:
        """The shape that a draft under the root at `base_len` may have."""
        clamped = shape.clamp(self.max_nodes, min(self.max_depth, self.max_context - base_len - 1))
        return DraftShape(clamped.max_nodes, clamped.max_depth, 1 if self.chains_only else max(1, shape.branching))


def shake_hands(
    hello: Hello, hub_id: str, choose: Callable[[Hello], Offer | Refusal], limits: HubLimits
) -> tuple[Terms, Welcome] | Refusal:
    """The answer to a HELLO: the highest common version, the drafter that fits, the smaller of both sides' limits."""
    version = max(set(VERSIONS) & set(hello.versions), default=None)
    if version is None:
        ours, theirs = ", ".join(map(str, VERSIONS)), ", ".join(map(str, hello.versions))
        return Refusal(VERSION, f"no common wire version: the hub speaks {ours}, the target {theirs}")
    hello = _cleaned(hello)
    offer = choose(hello)
    if isinstance(offer, Refusal):
        return offer
    if offer.feature_codec not in {NO_FEATURES, *hello.codecs}:
        theirs = ", ".join(hello.codecs) or "none"
        return Refusal(
            CODEC, f"drafter {offer.drafter} wants {offer.feature_codec} features, the target sends {theirs}"
        )
    terms = Terms.settle(hello, offer, limits)
    welcome = Welcome(
        version=version,
        hub_id=hub_id,
        drafter=offer.drafter,
        drafter_fp=offer.drafter_fp,
        feature_codec=offer.feature_codec,
        heartbeat_s=limits.heartbeat_s,
        max_sessions=limits.max_sessions_per_connection,
        max_nodes=terms.max_nodes,
        max_depth=terms.max_depth,
        notice=offer.notice[:1024],
        reports=True,
        probes=True,
    )
    return terms, welcome


def _cleaned(hello: Hello) -> Hello:
    """The HELLO with names fit for logs and terminals."""
    return msgspec.structs.replace(
        hello,
        target=printable(hello.target),
        tokenizer_fp=printable(hello.tokenizer_fp),
        source_fp=printable(hello.source_fp),
        feature_fp=printable(hello.feature_fp),
        feature_kind=printable(hello.feature_kind),
        codecs=[printable(codec) for codec in hello.codecs],
    )
