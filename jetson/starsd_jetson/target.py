"""A target: a bundle's engine and tokenizer, what it tells the hub of itself, and the drafts it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.errors import UsageError
from starsd_edge.planning.curve import VerifyCurve
from starsd_edge.planning.draft_shape import paying_shape, usual_acceptance
from starsd_edge.protocol.features import FLOAT16, INT8
from starsd_edge.protocol.messages import WIRE_VERSION, Hello
from starsd_edge.runtime.engine import Engine, EngineSpec
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.text.conversation import Conversation
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.acceptance import FIRST_ACCEPTANCE
from starsd_jetson.engines import open_engine

DEFAULT_TREE = DraftShape(8, 4, 4)
"""Draft shape (nodes, depth, branching) that a hub is asked for where the user names none. On a CPU a verify pass of
nine rows costs a third more than one of one row, and the hub sends less where less pays.
"""
DEFAULT_DRAFT_DEPTH = 4
"""Most draft tokens in a row where the user names no depth. On a CPU a verify pass of five rows costs little more than
one of one row.
"""
LARGEST_TREE, LARGEST_CHAIN = DraftShape(24, 6, 4), DraftShape(8, 8)
"""Largest tree and largest chain that are asked for where measured verify passes show that more rows cost nearly no
time. Draft tokens beyond them are hardly ever accepted.
"""

FeatureForm = Literal["auto", "fp16", "int8"]
CODECS_OF: Mapping[FeatureForm, tuple[str, ...]] = {"auto": (INT8, FLOAT16), "fp16": (FLOAT16,), "int8": (INT8,)}
"""Feature codecs for each setting, by preference. With "auto" features go as int8, in half the bytes, to a hub that
takes int8: measured, that changes the tokens of a round by less than 0.3 %.
"""


@dataclass(frozen=True)
class Target:
    """An opened bundle."""

    bundle: Bundle
    engine: Engine
    tokenizer: Tokenizer

    @classmethod
    def open(
        cls, bundle: Bundle, device: str = "cpu", threads: int | None = None, *, allow_inexact: bool = False
    ) -> Target:
        """Load the engine and the tokenizer.

        Args:
            allow_inexact: verify trees also with weights for which only chains are exact.

        Raises:
            BundleError: the bundle's files are broken.
            UsageError: no such device, or something is not installed.
            EngineError: the engine cannot be opened on this device.
        """
        tokenizer = Tokenizer.load(bundle.path, bundle.manifest.text)
        return cls(bundle, open_engine(bundle, device, threads, allow_inexact=allow_inexact), tokenizer)

    def encode(self, prompt: str, raw: bool, system: str = "") -> list[int]:
        """Token ids of a prompt: the user's turn of a chat where the bundle has a template, plain text if `raw`.

        Args:
            system: what the template says before that turn; without one it may say something of its own.

        Raises:
            UsageError: there is a system prompt and no template that takes it.
        """
        if not raw and self.tokenizer.has_chat_template:
            return self.tokenizer.encode_chat(Conversation(system).messages(prompt))
        if system:
            raise UsageError(f"{self.bundle.path.name} has no chat template: leave the system prompt out")
        return self.tokenizer.encode(prompt)

    def context(self, wanted: int | None) -> int:
        """Most tokens of prompt and answer together.

        Raises:
            UsageError: more is wanted than the bundle holds.
        """
        most = self.engine.spec.max_context
        if wanted is not None and wanted > most:
            raise UsageError(f"a context of {wanted} tokens is more than the {most} of {self.bundle.path.name}")
        return most if wanted is None else wanted

    def hello(self, name: str, shape: DraftShape, context: int, features: FeatureForm = "auto") -> Hello:
        """What the hub has to know.

        Args:
            name: for the hub's monitor and log.
            shape: the largest tree it asks for.
            context: most tokens of prompt and answer together.
            features: how features travel to a drafter that wants them.
        """
        spec, fingerprints = self.engine.spec, self.bundle.manifest.fingerprints
        return Hello(
            versions=[WIRE_VERSION],
            target=name,
            vocab_size=self.tokenizer.size,
            tokenizer_fp=fingerprints.tokenizer_fp,
            source_fp=fingerprints.source_fp,
            feature_fp=fingerprints.feature_fp,
            feature_kind=spec.feature_kind,
            feature_width=spec.feature_width,
            codecs=list(CODECS_OF[features]) if spec.feature_width else [],
            max_tree=min(shape.max_nodes + 1, spec.max_tree),
            max_depth=shape.max_depth,
            max_context=context,
            chains_only=shape.branching == 1,
            dedicated=True,
        )


def hub_draft_shape(
    spec: EngineSpec,
    depth: int | None,
    nodes: int | None,
    branching: int | None,
    measured: VerifyCurve | None = None,
) -> DraftShape:
    """The largest tree to ask a hub for; see `draft_shape`.

    Args:
        measured: times of verify passes. Where they show that a larger draft pays and the user names no shape, that
            larger draft is asked for.
    """
    shape = draft_shape(spec, depth, nodes, branching)
    if depth is not None or nodes is not None or branching is not None:
        return shape
    if spec.exact_trees and spec.max_tree > DEFAULT_TREE.max_nodes:
        shape = DEFAULT_TREE
    if measured is None:
        return shape
    most = LARGEST_TREE if spec.exact_trees else LARGEST_CHAIN
    limit = most.clamp(spec.max_tree - 1, spec.max_tree - 1)
    seconds = [measured.at(rows) for rows in range(1, limit.max_nodes + 2)]
    paying = paying_shape(seconds, usual_acceptance(FIRST_ACCEPTANCE), limit)
    return paying if paying.max_nodes > shape.max_nodes else shape


def draft_shape(spec: EngineSpec, depth: int | None, nodes: int | None, branching: int | None) -> DraftShape:
    """The largest tree to ask for; None leaves a number to us.

    Raises:
        UsageError: the engine cannot verify such a tree, or not exactly.
    """
    largest = spec.max_tree - 1
    if nodes is not None and nodes > largest:
        raise UsageError(f"this bundle verifies drafts of at most {largest} nodes: lower --draft-nodes from {nodes}")
    if (branching or 1) > 1 and not spec.exact_trees:
        raise UsageError(
            "this bundle's weights are exact for chains only: leave --draft-branching at 1, or give --allow-inexact"
        )
    branching = branching or 1
    depth = depth or (nodes if nodes is not None and branching == 1 else DEFAULT_DRAFT_DEPTH)
    return DraftShape(min(nodes or depth * branching, largest), depth, branching)
