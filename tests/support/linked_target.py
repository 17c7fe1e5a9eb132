"""A target over the numpy engine with a real link to whatever hub its address leads to."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from starsd_edge.protocol.messages import WIRE_VERSION, Hello
from starsd_edge.telemetry.rounds import Round
from starsd_jetson.decoder import Answer, Piece, Request, decode
from starsd_jetson.drafting import DraftSource, NgramDrafts
from starsd_jetson.hub_address import HubAddress
from starsd_jetson.hub_drafting import HubDrafts
from starsd_jetson.hub_link import HubLink
from starsd_jetson.wait_policy import WaitPolicy
from tests.support.decoding import WORDS, Plain, letters, plain_answer
from tests.support.hub_client import TOKENIZER_FP
from tests.support.prefix_engine import PrefixEngine

HUB_IN_S = 30.0
"""Generous: only a broken link waits this long."""


class SlowEngine(PrefixEngine):
    """A pass takes longer than a hub on the same machine needs, as with any real model."""

    pass_s = 0.003

    def forward(self, *arguments, **named):  # type: ignore[no-untyped-def]
        time.sleep(self.pass_s)
        return super().forward(*arguments, **named)


class LinkedTarget:
    """Use as a context manager: the link runs inside.

    Args:
        url: of the hub, or of what stands in its way.
        wanted: its shape and context are what the hub is told.
        fallback: drafts when the hub does not.
        wait_s: fixed wait for drafts; None lets the target decide.
        codecs: how it can send the features of its engine.
        window: rows that it shows the hub of a text that it joins; None for all.
    """

    def __init__(
        self,
        url: str,
        wanted: Request,
        *,
        engine: PrefixEngine | None = None,
        fallback: DraftSource | None = None,
        wait_s: float | None = None,
        name: str = "target",
        codecs: Sequence[str] = (),
        window: int | None = None,
    ) -> None:
        self.engine = engine or SlowEngine(1, max_context=wanted.context)
        self.wanted = wanted
        self.notices: list[str] = []
        self.link = HubLink(
            HubAddress(url),
            self._hello(name, list(codecs)),
            self.notices.append,
            time.monotonic,
            random.Random(name).random,
            window,
        )
        self._source = HubDrafts(self.link.open_channel, fallback or NgramDrafts(), WaitPolicy(wait_s), time.monotonic)

    def __enter__(self) -> LinkedTarget:
        self.link.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.link.stop()
        assert not self.link._thread.is_alive(), "the link did not end"

    async def __aenter__(self) -> LinkedTarget:
        return self.__enter__()

    async def __aexit__(self, *exception: object) -> None:
        # Parting takes both ends, and the hub may live on this very event loop.
        await asyncio.to_thread(self.__exit__, *exception)

    def connect(self) -> None:
        """Wait until the hub has welcomed this target."""
        self.link.wait_for_hub(HUB_IN_S)

    def answer(
        self,
        wanted: Request | None = None,
        on_piece: Callable[[Piece], None] = lambda piece: None,
        on_round: Callable[[Round], None] = lambda done: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """What a target process does with one prompt; blocks."""
        return decode(
            self.engine,
            letters([]),
            wanted or self.wanted,
            self._source,
            clock=time.monotonic,
            on_piece=on_piece,
            on_round=on_round,
            cancelled=cancelled,
        )

    def plain(self, wanted: Request | None = None) -> Plain:
        """What the answer must be, by its definition."""
        return plain_answer(self.engine, letters([]), wanted or self.wanted)

    def would_say(self, answer: Answer) -> bool:
        """Whether an answer, whole or cancelled, is what the target says by itself."""
        if answer.finish_reason != "cancelled":
            return Plain.of(answer) == self.plain()
        as_long = replace(self.wanted, max_tokens=max(1, len(answer.token_ids)))
        return answer.token_ids == self.plain(as_long).token_ids[: len(answer.token_ids)]

    def _hello(self, name: str, codecs: list[str]) -> Hello:
        shape = self.wanted.shape
        return Hello(
            versions=[WIRE_VERSION],
            target=name,
            vocab_size=WORDS,
            tokenizer_fp=TOKENIZER_FP,
            source_fp="s" * 64,
            feature_fp="f" * 64,
            feature_kind=self.engine.spec.feature_kind,
            feature_width=self.engine.spec.feature_width,
            codecs=codecs,
            max_tree=shape.max_nodes + 1,
            max_depth=shape.max_depth,
            max_context=self.wanted.context,
            chains_only=shape.branching == 1,
            dedicated=True,
        )
