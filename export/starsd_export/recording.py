"""What a bundle keeps of its own graph, so that a machine without the checkpoint can compare; see `parity.golden`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from starsd_edge.bundles.manifest import Manifest
from starsd_edge.parity.compare import differences, largest
from starsd_edge.parity.golden import write_golden
from starsd_edge.parity.passes import Observation, Values, random_ids
from starsd_edge.parity.text import MOST_PROMPT_TOKENS, greedy_text
from starsd_edge.runtime.engine import Engine
from starsd_edge.text.tokenizer import Tokenizer
from starsd_export.ranges import SAMPLE_TEXTS


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
