"""The real decode loop in simulated time: a target whose passes and a hub whose drafts take scripted times.

Nothing sleeps: the clock moves when a pass is computed or a draft is waited for, so tokens per second are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from starsd_edge.protocol.target_side import DraftArrived
from starsd_edge.runtime.engine import Sequence as EngineSequence
from starsd_edge.runtime.engine import Step
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.telemetry.rounds import Round
from starsd_jetson.decoder import Answer, decode
from starsd_jetson.drafting import DraftSource, NoDrafts
from starsd_jetson.hub_drafting import Asked, HubDrafts
from starsd_jetson.wait_policy import WaitPolicy
from tests.support.decoding import PROMPT, Plain, letters, request
from tests.support.prefix_engine import PrefixEngine

PLAIN_S = 0.035
SERVICE_S = 0.012
CONTEXT = 1024
CHAIN = DraftShape(4, 4)


def growing(rows: int) -> float:
    """The verify curve of the timing backend: 35 ms for one row, 3 % of that for each more."""
    return PLAIN_S * (1 + 0.03 * (rows - 1))


class Clock:
    """Seconds that pass only while something waits or works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedEngine(PrefixEngine):
    """A pass takes what `verify_s` says for its rows."""

    def __init__(self, clock: Clock, verify_s: Callable[[int], float], seed: int) -> None:
        super().__init__(seed, max_context=CONTEXT)
        self._clock = clock
        self._verify_s = verify_s

    def forward(
        self,
        seq: EngineSequence,
        tokens: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        tree_mask: npt.NDArray[np.bool_],
        logits_rows: Sequence[int] | None = None,
    ) -> Step:
        self._clock.now += self._verify_s(len(tokens))
        return super().forward(seq, tokens, positions, tree_mask, logits_rows)


@lru_cache
def plain_text(seed: int, tokens: int) -> tuple[int, ...]:
    """Prompt and answer of so many tokens, by plain decoding."""
    wanted = request(max_tokens=tokens, context=CONTEXT)
    answer = decode(PrefixEngine(seed, max_context=CONTEXT), letters([]), wanted, NoDrafts(), clock=lambda: 0.0)
    return (*PROMPT, *answer.token_ids)


@dataclass(frozen=True)
class HubScript:
    """A hub, as functions of how many tokens were said.

    Attributes:
        rtt_s: of the network.
        acceptance: chance that a node comes true below a parent that did; None for a hub without guesses.
        service_s: of its drafter.
        wide: a second child, which is wrong, at every level.
    """

    rtt_s: Callable[[int], float]
    acceptance: Callable[[int], float | None]
    service_s: float = SERVICE_S
    wide: bool = False


@dataclass
class SimulatedChannel:
    """A `DraftChannel` to that hub."""

    clock: Clock
    script: HubScript
    truth: Sequence[int]
    text: list[int] = field(default_factory=list)
    pending: int | None = None
    asked_at: list[int] = field(default_factory=list)
    """Of each request, how many tokens were said."""
    due: list[tuple[float, DraftArrived]] = field(default_factory=list)

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        self.text.extend(ids)

    def extend(self) -> None:
        pass

    def request(self, shape: DraftShape) -> Asked:
        assert self.pending is None, "one request at a time"
        said = len(self.text) - len(PROMPT)
        self.asked_at.append(said)
        self.pending = epoch = len(self.asked_at)
        delay_s = self.script.rtt_s(said) + self.script.service_s
        tree = self._tree(shape, self.script.acceptance(said))
        arrived = DraftArrived(
            session=None,  # type: ignore[arg-type]
            epoch=epoch,
            base_len=len(self.text) - 1,
            tree=tree,
            round_trip_us=round(delay_s * 1e6),
            hub_us=round(self.script.service_s * 1e6),
            queue_us=0,
            service_us=round(self.script.service_s * 1e6),
            frame_bytes=40,
        )
        self.due.append((self.clock.now + delay_s, arrived))
        return Asked(epoch, 50)

    def wait(self, timeout_s: float) -> DraftArrived | None:
        if not self.due or self.due[0][0] > self.clock.now + timeout_s:
            self.clock.now += timeout_s if self.pending is not None else 0.0
            return None
        at, arrived = self.due.pop(0)
        self.clock.now = max(self.clock.now, at)
        self.pending = None
        return arrived

    def give_up(self) -> None:
        self.pending = None

    def close(self) -> None:
        self.pending = None

    def _tree(self, shape: DraftShape, acceptance: float | None) -> DraftTree:
        """The true path as far as luck has it, then error; drawn from the place in the text alone."""
        if acceptance is None:
            return DraftTree.empty()
        rng = np.random.default_rng([len(self.text), 7])
        tokens: list[int] = []
        parents: list[int] = []
        right = True
        for level in range(shape.max_depth):
            true = self.truth[len(self.text) + level]
            right = right and bool(rng.random() < acceptance)
            parent = -1 if level == 0 else level - 1
            tokens.append(true if right else (true + 1) % 20)
            parents.append(parent)
        if self.script.wide and shape.branching > 1:  # siblings, from the deepest up, as preorder has them
            for level in reversed(range(shape.max_depth)):
                tokens.append((self.truth[len(self.text) + level] + 2) % 20)
                parents.append(level - 1)
        tree = DraftTree(np.asarray(tokens, dtype=np.int64), np.asarray(parents, dtype=np.int32))
        return tree.clip(shape.max_nodes, shape.max_depth, shape.branching)


@dataclass(frozen=True)
class Outcome:
    """A simulated answer.

    Attributes:
        tokens_per_s: from the first token to the last.
        rounds: one after the other.
        requests: of each, how many tokens were said.
    """

    answer: Answer
    tokens_per_s: float
    rounds: list[Round]
    requests: list[int]


@dataclass(frozen=True)
class Scene:
    """A target and what it is to say.

    Attributes:
        verify_s: seconds of a pass over so many rows.
        seed: of its model.
    """

    tokens: int = 300
    shape: DraftShape = CHAIN
    verify_s: Callable[[int], float] = growing
    seed: int = 1

    def plain(self) -> Outcome:
        """Without drafts."""
        clock = Clock()
        return self._decode(clock, NoDrafts(), lambda: [])

    def alone(self, source: DraftSource) -> Outcome:
        """With drafts of its own."""
        return self._decode(Clock(), source, lambda: [])

    def with_hub(
        self, script: HubScript, wait_policy: WaitPolicy | None = None, fallback: DraftSource | None = None
    ) -> Outcome:
        """With that hub, and what the target has learnt before."""
        clock = Clock()
        truth = plain_text(self.seed, self.tokens + 2 * self.shape.max_depth)
        channel = SimulatedChannel(clock, script, truth)

        def open_channel(prompt: Sequence[int], sampling_kind: str) -> SimulatedChannel:
            channel.text.append(prompt[0])
            return channel

        source = HubDrafts(open_channel, fallback or NoDrafts(), wait_policy or WaitPolicy(), clock)
        return self._decode(clock, source, lambda: channel.asked_at)

    def _decode(self, clock: Clock, source: DraftSource, requests: Callable[[], list[int]]) -> Outcome:
        rounds: list[Round] = []
        engine = TimedEngine(clock, self.verify_s, self.seed)
        wanted = request(max_tokens=self.tokens, context=CONTEXT, shape=self.shape)
        answer = decode(engine, letters([]), wanted, source, clock=clock, on_round=rounds.append)
        truth = plain_text(self.seed, self.tokens + 2 * self.shape.max_depth)
        assert answer.token_ids == truth[len(PROMPT) : len(PROMPT) + self.tokens]
        return Outcome(answer, (self.tokens - 1) / answer.decode_s, rounds, requests())


def steady(rtt_ms: float, acceptance: float, **changes: object) -> HubScript:
    """A hub that stays as it is."""
    return HubScript(lambda said: rtt_ms / 1e3, lambda said: acceptance, **changes)  # type: ignore[arg-type]


__all__ = ["Clock", "HubScript", "Outcome", "Plain", "Scene", "SimulatedChannel", "TimedEngine", "growing", "steady"]
