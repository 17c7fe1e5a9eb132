"""Several answers on one engine in simulated time: the real `AnswerSet`, scripted hubs, nothing that sleeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from starsd_edge.protocol.target_side import DraftArrived
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.rounds import Round
from starsd_jetson.answer_set import NEVER, AnswerSet, Job, Limits
from starsd_jetson.answers import Answer, Piece, Request
from starsd_jetson.drafting import DraftSource, NoDrafts
from starsd_jetson.hub_drafting import Asked, HubDrafts
from starsd_jetson.kept_sequences import KeptSequences
from starsd_jetson.wait_policy import WaitPolicy
from tests.support.decoding import Plain, letters, next_token, plain_answer
from tests.support.prefix_engine import PrefixEngine
from tests.support.simulated_star import CONTEXT, Clock, HubScript, SimulatedChannel, TimedEngine, growing

DEEPEST = 8
"""Levels that a hub foresees."""


@lru_cache(maxsize=4096)
def expected(wanted: Request, seed: int) -> Plain:
    """What the request's answer is, by its definition."""
    return plain_answer(PrefixEngine(seed, max_context=CONTEXT), letters(), wanted)


def text_of(wanted: Request, seed: int) -> list[int]:
    """The prompt, the whole answer, and what would follow."""
    engine = PrefixEngine(seed, max_context=CONTEXT)
    text = [*wanted.prompt, *expected(wanted, seed).token_ids]
    for _ in range(DEEPEST + 2):
        text.append(next_token(engine, wanted.sampling, text, len(wanted.prompt)))
    return text


class MortalChannel(SimulatedChannel):
    """A session of a hub that is gone from a time on; what it owes then never comes."""

    def __init__(self, clock: Clock, script: HubScript, truth: Sequence[int], first: int, gone_at: float) -> None:
        super().__init__(clock, script, truth, text=[first])
        self._gone_at = gone_at

    def request(self, shape: DraftShape) -> Asked | None:  # type: ignore[override]
        return None if self._is_gone else super().request(shape)

    def wait(self, timeout_s: float) -> DraftArrived | None:
        if self._is_gone:
            self.pending = None
            self.due.clear()
            return None
        return super().wait(timeout_s)

    @property
    def next_s(self) -> float:
        """When something happens to it."""
        return self.due[0][0] if self.due else NEVER

    @property
    def _is_gone(self) -> bool:
        return self.clock.now >= self._gone_at


@dataclass
class Scene:
    """An engine, a hub or none, and the answers of both.

    Attributes:
        script: of the hub; None without one.
        gone_at: when the hub dies.
        sessions: most that it takes at once.
    """

    script: HubScript | None = None
    gone_at: float = NEVER
    sessions: int = 99
    seed: int = 1
    budget: int | None = None
    limits: Limits = field(default_factory=lambda: Limits(8, 99))
    fallback: Callable[[], DraftSource] = NoDrafts
    wait_s: float | None = None
    rounds: list[Round] = field(default_factory=list)
    idle_s: float = 0.0

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.engine = TimedEngine(self.clock, growing, self.seed)
        self.sequences = KeptSequences(self.engine, self.budget, is_keeping=self.budget is not None)
        self.channels: list[MortalChannel] = []
        self.jobs: list[Job] = []
        self.pieces: list[list[tuple[float, Piece]]] = []
        self.answers = AnswerSet(
            self.engine,
            letters(),
            self._source,
            self.sequences,
            self.clock,
            self.limits,
            room=lambda wanted: min(wanted.context, len(wanted.prompt) + wanted.max_tokens),
            on_round=self.rounds.append,
        )
        self._texts: dict[tuple[int, ...], list[int]] = {}

    def add(self, wanted: Request, cancelled: Callable[[], bool] = lambda: False) -> Job:
        """Take in a request."""
        pieces: list[tuple[float, Piece]] = []
        self.answers.require_room()
        job = self.answers.add(wanted, lambda piece: pieces.append((self.clock.now, piece)), cancelled)
        self._texts[tuple(wanted.prompt)] = text_of(wanted, self.seed) if self.script else []
        self.pieces.append(pieces)
        self.jobs.append(job)
        return job

    def step(self) -> bool:
        """Run a pass, or let time pass until there is one; False once there is nothing to do."""
        until = self.answers.step()
        if until is None:
            return True
        if until == NEVER:
            return False
        comes = min((each.next_s for each in self.channels if each.next_s > self.clock.now), default=NEVER)
        idle_s = max(0.0, min(until, comes, max(self.gone_at, self.clock.now + 1e-6)) - self.clock.now)
        self.idle_s += idle_s
        self.clock.now += idle_s
        return True

    def run(self) -> list[Answer]:
        """All answers, in the order of the requests."""
        while self.step():
            pass
        return [job.result() for job in self.jobs]

    def check(self, job: Job) -> None:
        """An answer is that of the request alone; one that was cancelled is its beginning."""
        answer, whole = job.result(), expected(job.request, self.seed)
        if answer.finish_reason == "cancelled":
            assert answer.token_ids == whole.token_ids[: len(answer.token_ids)]
            assert whole.text.startswith(answer.text)
        else:
            assert Plain.of(answer) == whole
        told = self.pieces[self.jobs.index(job)]
        assert "".join(piece.text for _, piece in told) == answer.text
        assert sum((piece.tokens for _, piece in told), ()) == answer.token_ids

    def _source(self) -> DraftSource:
        if self.script is None:
            return self.fallback()
        return HubDrafts(self._channel, self.fallback(), WaitPolicy(self.wait_s), self.clock)

    def _channel(self, prompt: Sequence[int], sampling_kind: str) -> MortalChannel | None:
        script = self.script
        if script is None or len(self.channels) >= self.sessions:
            return None
        truth = self._texts[tuple(prompt)]
        self.channels.append(MortalChannel(self.clock, script, truth, prompt[0], self.gone_at))
        return self.channels[-1]
