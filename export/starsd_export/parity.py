"""The parity gate: no bundle leaves the exporter before its graph was compared with the stock model.

Two kinds of checks. Against transformers: logits, features and new KV of every kind of pass stay within a bound.
Against itself: one-token steps and a chain verified at once agree bit for bit, which is what makes speculation exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from starsd_edge.bundles.manifest import Manifest
from starsd_edge.errors import StarsdError
from starsd_edge.parity.compare import differences, largest
from starsd_edge.parity.golden import MOST_PROMPT_TOKENS, greedy_text, write_golden
from starsd_edge.parity.passes import CHAIN, Observation, Values, first_inexact, random_ids, run_passes
from starsd_edge.runtime.engine import Engine
from starsd_edge.text.tokenizer import Tokenizer
from starsd_export.reference import SAMPLE_TEXTS, Reference

# Root mean square of the difference over that of the stock model's values. fp16 KV: two sums that differ in the last
# bit of float32 may round to neighbouring fp16 values (seen: 9e-4). int8: the quantisation of weights and activations
# itself (seen: 0.19); unrelated tensors differ by 1.4.
BOUNDS = {("fp32", "float32"): 1e-4, ("fp32", "float16"): 5e-3, ("int8", "float32"): 0.4, ("int8", "float16"): 0.4}

RunStock = Callable[[Sequence[int], Sequence[int]], Reference]
"""The stock model over a whole prefix: its tokens, and their positions, none where they are counted from 0."""


Ids = tuple[int, ...]


class ParityError(StarsdError):
    """The graph does not compute what the model computes."""


class Stock:
    """What the stock model gives in the place of any pass: it reads each path alone, whatever the pass batches."""

    def __init__(self, run: RunStock) -> None:
        self._run = run
        self._read: dict[tuple[Ids, Ids], Reference] = {}

    def __call__(self, observation: Observation) -> Values:
        """The values that are expected of a pass."""
        at = observation.positions
        self.read(sorted(observation.paths, key=len, reverse=True), at)  # a token once for all paths that begin alike
        rows = [self._row(path, at) for path in observation.paths]
        keys, values = (np.concatenate(kind, axis=1) for kind in zip(*((r.keys, r.values) for r in rows), strict=True))
        logits = np.concatenate([rows[row].logits for row in observation.rows])
        return Values(logits, np.concatenate([row.features for row in rows]), list(keys), list(values))

    def read(self, paths: Iterable[Ids], positions: Ids = ()) -> None:
        """Read paths now, so that what they and their beginnings gave stays known when the model has changed.

        Args:
            positions: as `Observation.positions`.
        """
        for path in paths:
            self._row(path, positions)

    def _row(self, path: Ids, positions: Ids) -> Reference:
        """Of the last token of a path, from a longer one that was read before, if there is one."""
        known = (whole for (ids, at), whole in self._read.items() if at == positions and ids[: len(path)] == path)
        whole = next(known, None)
        if whole is None:
            whole = self._read[path, positions] = self._run(path, positions[: len(path)])
        return whole.row(len(path) - 1)


def observe(engine: Engine) -> list[Observation]:
    """Every pass of the comparison over random tokens."""
    return list(run_passes(engine, random_ids(engine.spec.vocab_size)))


def check_parity(
    observations: Sequence[Observation], stock: Callable[[Observation], Values], bound: float
) -> dict[str, float]:
    """Compare passes.

    Args:
        observations: of the exported graph.
        stock: of the model that it was made from.
        bound: largest `Difference.relative` allowed.

    Returns:
        The largest difference by case, for the manifest.

    Raises:
        ParityError: says where the graph differs and by how much.
    """
    found: dict[str, float] = {}
    for each in observations:
        allowed = each.allowed(bound)
        for difference in differences(each.values, stock(each), allowed):
            if not difference.relative <= allowed:
                raise ParityError(
                    f"the exported graph differs from transformers in {difference.name} of {each.case}: "
                    f"{difference.relative:.1e} relative, {allowed:.0e} allowed; nothing was written"
                )
            found[each.case] = max(found.get(each.case, 0.0), difference.relative)
    return found


def check_exactness(engine: Engine) -> None:
    """One-token steps and a chain verified at once.

    Raises:
        ParityError: they do not agree bit for bit.
    """
    place = first_inexact(engine, random_ids(engine.spec.vocab_size))
    if place is not None:
        past, row = place
        raise ParityError(
            f"a chain of {CHAIN} tokens on {past} committed ones differs from one-token steps at token {row}: "
            "speculation would not be exact on this machine's ONNX Runtime; nothing was written"
        )


def record(
    directory: Path,
    manifest: Manifest,
    engine: Engine,
    observations: Sequence[Observation],
    checkpoint: Callable[[Observation], Values],
) -> None:
    """Write the recording of a graph that has passed the parity gate.

    Args:
        directory: of the bundle, its tokenizer written.
        engine: the graph.
        observations: what it gave.
        checkpoint: what the model gives with the weights that it came with.
    """
    tokenizer = Tokenizer.load(directory, msgspec.structs.replace(manifest.text, chat_template=None))
    prompts = {text: tokenizer.encode(text) for text in SAMPLE_TEXTS}
    vocab_size = manifest.model.chosen_ids
    prompt = [token for token in prompts[SAMPLE_TEXTS[0]] if token < vocab_size][:MOST_PROMPT_TOKENS]
    passes = [(each, largest(differences(each.values, checkpoint(each), bound=float("inf")))) for each in observations]
    text = greedy_text(engine, prompt, vocab_size)
    write_golden(directory, random_ids(engine.spec.vocab_size), passes, prompts, text)
