"""Several ways of decoding answer the same prompts in turn, so that other work of the machine affects all of them
alike; and whether they gave the same tokens, and how close the decision was where they did not.
Also the time of a verify pass by its rows: the curve that decides how large a draft may be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from starsd_edge.runtime.engine import Engine, causal_mask, commit_tokens, run_chain
from starsd_edge.speculation.sampling import Sampler, SamplingParams
from starsd_edge.telemetry.rounds import Round

WARM_UP_TOKENS = 8
"""Tokens of a first answer that is not counted, since the first passes allocate memory."""


@dataclass(frozen=True)
class Run:
    """One prompt answered in one way.

    Attributes:
        token_ids: the answer; exactly as many tokens as were asked for.
        first_s: from the start to the first token, in seconds.
        decode_s: from the first token to the last, in seconds.
        rounds: what each round did, for ways of ours; the first token belongs to none.
    """

    token_ids: tuple[int, ...]
    first_s: float
    decode_s: float
    rounds: tuple[Round, ...] = ()

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of decoding: the first token and the time until it are left out."""
        return (len(self.token_ids) - 1) / self.decode_s


class Mode(Protocol):
    """A way of decoding."""

    @property
    def name(self) -> str:
        """Name of the mode, with which the names of its figures begin."""

    def run(self, prompt: Sequence[int], new_tokens: int) -> Run:
        """Answer greedily with exactly `new_tokens` tokens, end-of-sequence tokens taken like all others."""


Runs = Mapping[str, Sequence[Run]]
"""For each mode's name its runs; those at one index of all modes belong together: same prompt, same time."""


def run_by_turns(
    modes: Sequence[Mode],
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    repeats: int,
    progress: Callable[[str], None] = lambda step: None,
) -> Runs:
    """Answer every prompt in every mode, `repeats` times; run i of each mode is of prompt i modulo their number.

    Each round of modes begins with another one, so that none always follows the same neighbour.
    """
    for mode in modes:
        progress(f"warming up: {mode.name}")
        mode.run(prompts[0], min(WARM_UP_TOKENS, new_tokens))
    runs: dict[str, list[Run]] = {mode.name: [] for mode in modes}
    total = repeats * len(prompts)
    for turn in range(total):
        first = turn % len(modes)
        progress(f"prompt {turn + 1} of {total}")
        for mode in (*modes[first:], *modes[:first]):
            runs[mode.name].append(mode.run(prompts[turn % len(prompts)], new_tokens))
    return runs


@dataclass(frozen=True)
class Divergence:
    """Where an answer first leaves another one; what follows has another prefix and says nothing.

    Attributes:
        mode: whose answer it is.
        prompt: index of the prompt.
        position: index of the token in the answer.
    """

    mode: str
    prompt: int
    position: int


def differences(runs: Runs, reference: str, modes: Sequence[str], prompts: int) -> list[Divergence]:
    """The first difference of every run of these modes from the reference's first answer to the same prompt."""
    found = []
    for mode in modes:
        for number, run in enumerate(runs[mode]):
            prompt = number % prompts
            position = _leaves(run, runs[reference][prompt])
            if position is not None:
                found.append(Divergence(mode, prompt, position))
    return found


def margin_at(engine: Engine, tokenizer_size: int, prefix: Sequence[int]) -> float:
    """Gap between the two highest logits after this text: a difference with a small one is a matter of rounding."""
    seq = engine.open(len(prefix))
    commit_tokens(engine, seq, prefix[:-1])
    step = run_chain(engine, seq, prefix[-1:])
    return Sampler(SamplingParams(), tokenizer_size).choose(step.logits[0], len(prefix)).margin


def _leaves(run: Run, reference: Run) -> int | None:
    if run.token_ids == reference.token_ids:
        return None
    pairs = zip(run.token_ids, reference.token_ids, strict=False)
    different = (position for position, (token, other) in enumerate(pairs) if token != other)
    return next(different, min(len(run.token_ids), len(reference.token_ids)))


SIZES = (1, 2, 3, 5, 8, 16)
"""Numbers of rows T of the verify passes that are measured, the root included."""
COMMITTED = (16, 256, 1024)
"""Numbers of committed tokens that verify passes are measured on: as at the beginning of a short answer, in a usual one
and in a long one.
"""
_WARM_UP = 3
"""Passes of each size that are not counted: the first ones allocate memory."""


def sizes_up_to(max_tree: int) -> list[int]:
    """Numbers of rows to measure: 1, 2, 4 and so on below `max_tree`, and `max_tree` itself."""
    return [*(1 << power for power in range((max_tree - 1).bit_length())), max_tree]


def lengths_within(context: int, rows: int) -> list[int]:
    """The lengths of `COMMITTED` on top of which `rows` rows fit into the context; at least one length."""
    most = max(0, context - rows)
    return [length for length in COMMITTED if length <= most] or [most]


def measure_verify(
    engine: Engine,
    text: Sequence[int],
    committed: int,
    passes: int,
    sizes: Sequence[int] = SIZES,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, list[float]]:
    """Seconds of each of `passes` verify passes over a chain, by the number of rows; the sizes take turns.

    Args:
        text: at least `committed` + 1 tokens; the first `committed` are put into the KV, the chain is made of those
            after them, repeated as needed.
        sizes: those beyond the engine's largest tree are left out.
    """
    seq = engine.open(committed + 1)
    commit_tokens(engine, seq, text[:committed])
    chain = np.resize(np.asarray(text[committed:], dtype=np.int64), max(sizes))
    fitting = [size for size in sizes if size <= engine.spec.max_tree]
    seconds: dict[int, list[float]] = {size: [] for size in fitting}
    for number in range(_WARM_UP + passes):
        for size in fitting:
            positions = np.arange(committed, committed + size, dtype=np.int64)
            mask = causal_mask(size)
            began = clock()
            engine.forward(seq, chain[:size], positions, mask)
            if number >= _WARM_UP:
                seconds[size].append(clock() - began)
    return seconds
