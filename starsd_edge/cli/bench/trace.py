"""`starsd-edge bench trace`: records texts of a target for the timing backend."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from starsd_edge.bench.prompts import HELD_OUT, is_looping, read_messages
from starsd_edge.bench.trace import Trace, Traces, TraceSource
from starsd_edge.cli.bench.modes import decode_plainly, load_target
from starsd_edge.cli.bench.options import LEAST_TOKENS, BenchTraceOptions
from starsd_edge.errors import StarsdError, UsageError
from starsd_edge.speculation.sampling import SamplingParams

if TYPE_CHECKING:
    from starsd_jetson.target import Target


def check_output(path: Path) -> None:
    """Whether a trace can be written there; asked before the recording, which takes minutes.

    Raises:
        UsageError: it cannot.
    """
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path} cannot be written: give --output the name of a file in a directory that is yours")


class TraceRecorder:
    """One run of the command."""

    def __init__(self, options: BenchTraceOptions, progress: Callable[[str], None]) -> None:
        self._options = options
        self._progress = progress

    def run(self) -> Traces:
        """Decode plainly until there are enough texts; those that loop or end at once are passed over.

        Raises:
            StarsdError: the prompts give too few.
        """
        options = self._options
        messages = read_messages(options.prompts, HELD_OUT)
        self._progress("loading the target")
        target = load_target(options.bundle, "cpu", options.threads)
        if not target.engine.spec.feature_width:
            raise UsageError(f"{options.bundle} gives no features: a trace of it would be of no use to a draft head")
        texts: list[Trace] = []
        for number, message in enumerate(messages, 1):
            self._progress(f"text {len(texts) + 1} of {options.texts}, prompt {number} of {len(messages)}")
            trace = self._record(target, message)
            answer = trace.answer
            if len(answer) >= LEAST_TOKENS and not is_looping(answer):
                texts.append(trace)
            if len(texts) == options.texts:
                return Traces(_source(target), texts)
        raise StarsdError(
            f"{len(messages)} prompts gave {len(texts)} texts of {LEAST_TOKENS} tokens that do not loop: "
            f"give more with --prompts, or ask for fewer with --texts"
        )

    def _record(self, target: Target, message: str) -> Trace:
        passage = decode_plainly(target, message, self._options.new_tokens, SamplingParams())
        features = passage.features
        assert features is not None  # noqa: S101 (the engine gives some)
        # The last tokens were chosen and never run: no draft is asked for below them.
        length = min(len(passage.ids), len(features))
        return Trace(np.array(passage.ids[:length], dtype=np.int64), passage.prompt_tokens, features[:length])


def _source(target: Target) -> TraceSource:
    manifest, spec = target.bundle.manifest, target.engine.spec
    return TraceSource(
        bundle=manifest.name,
        source_fp=manifest.fingerprints.source_fp,
        feature_fp=manifest.fingerprints.feature_fp,
        feature_kind=spec.feature_kind,
        vocab_size=spec.vocab_size,
        max_context=spec.max_context,
    )
