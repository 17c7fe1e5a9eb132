"""A target: a bundle's engine and tokenizer, what it tells the hub of itself, and the drafts it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.errors import UsageError
from starsd_edge.protocol.features import FLOAT16, INT8
from starsd_edge.protocol.messages import WIRE_VERSION, Hello
from starsd_edge.runtime.engine import Engine
from starsd_edge.runtime.loading import open_engine
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.text.conversation import Conversation
from starsd_edge.text.tokenizer import Tokenizer

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
