"""Whether ways of decoding gave the same tokens, and how close the decision was where they did not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starsd_edge.bench.runs import Run, Runs
from starsd_edge.runtime.engine import Engine, commit_tokens, run_chain
from starsd_edge.speculation.sampling import Sampler, SamplingParams


@dataclass(frozen=True)
class Difference:
    """Where an answer first leaves another one; what follows has another prefix and says nothing.

    Attributes:
        mode: whose answer it is.
        prompt: index of the prompt.
        position: index of the token in the answer.
    """

    mode: str
    prompt: int
    position: int


def differences(runs: Runs, reference: str, modes: Sequence[str], prompts: int) -> list[Difference]:
    """The first difference of every run of these modes from the reference's first answer to the same prompt."""
    found = []
    for mode in modes:
        for number, run in enumerate(runs[mode]):
            prompt = number % prompts
            position = _leaves(run, runs[reference][prompt])
            if position is not None:
                found.append(Difference(mode, prompt, position))
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
