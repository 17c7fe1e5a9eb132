"""Targets and ways of decoding for benches: what `run-target` does for a given number of tokens, other libraries, and
plain decoding with features.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from starsd_edge.bench.decode_figures import LLAMA_CPP, TRANSFORMERS
from starsd_edge.bench.draft_replay import Passage
from starsd_edge.bench.runs import Run
from starsd_edge.bundles.bundle import load_bundle
from starsd_edge.bundles.catalogue import find_bundle
from starsd_edge.errors import UsageError
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.rounds import Round
from starsd_edge.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from starsd_jetson.drafting import DraftSource
    from starsd_jetson.hub_link import HubLink
    from starsd_jetson.target import Target


_CONNECT_S = 30.0
"""Seconds to connect to a hub of this machine that listens already; one that takes longer is at fault."""


@dataclass(frozen=True)
class OurMode:
    """One draft source on one target.

    Attributes:
        name: see `starsd_edge.bench.runs.Mode`.
        target: one whose tokenizer knows no end of sequence (`without_end`).
        source: where its drafts come from.
        shape: largest draft.
    """

    name: str
    target: Target
    source: DraftSource
    shape: DraftShape

    def run(self, prompt: Sequence[int], new_tokens: int) -> Run:
        """See `Mode`."""
        from starsd_jetson.decoder import Request, decode

        rounds: list[Round] = []
        context = self.target.context(None)
        answer = decode(
            self.target.engine,
            self.target.tokenizer,
            Request(prompt, SamplingParams(), new_tokens, context, self.shape),
            self.source,
            clock=time.perf_counter,
            on_round=rounds.append,
        )
        return Run(answer.token_ids, answer.prefill_s, answer.decode_s, tuple(rounds))


def load_target(name: str, device: str, threads: int | None) -> Target:
    """Open a target model.

    Args:
        name: a bundle's directory, or its name in the cache.
    """
    from starsd_jetson.target import Target

    return Target.open(load_bundle(find_bundle(name)), device, threads)


def decode_plainly(target: Target, message: str, new_tokens: int, sampling: SamplingParams) -> Passage:
    """A message inside the chat template and its answer, with the target's features where it gives some."""
    from starsd_jetson.decoder import Request, decode
    from starsd_jetson.drafting import KeptFeatures

    prompt = target.encode(message, raw=False)
    kept = KeptFeatures()
    request = Request(prompt, sampling, new_tokens, target.context(None), DraftShape(0, 0))
    answer = decode(target.engine, target.tokenizer, request, kept, clock=time.perf_counter)
    return Passage([*prompt, *answer.token_ids], len(prompt), kept.features)


def without_end(target: Target) -> Target:
    """The same target, for which no token ends an answer: all ways of decoding must do the same work."""
    from starsd_jetson.target import Target

    rules = msgspec.structs.replace(target.bundle.manifest.text, eos_ids=[])
    return Target(target.bundle, target.engine, Tokenizer.load(target.bundle.path, rules))


@contextmanager
def hub_link(url: str, target: Target, shape: DraftShape) -> Iterator[HubLink]:
    """A link to the hub there, welcomed.

    Raises:
        HubError: the hub refuses the target.
    """
    from starsd_jetson.api import hub_address, link_to

    hello = target.hello("bench", shape, target.context(None))
    with link_to(hub_address(url), hello) as link:
        link.wait_for_hub(_CONNECT_S)
        yield link


def checkpoint_path(wanted: str | None, source: str) -> Path | None:
    """The checkpoint that the bundle was made from.

    Args:
        wanted: the user's name or path of it.
        source: the file name in the bundle's manifest; the model of the catalogue whose file has that name is taken if
            it is in the cache already.

    Raises:
        UsageError: the user's checkpoint does not exist.
    """
    from starsd_edge.bundles.catalogue import CATALOGUE, resolve_model

    if wanted is not None:
        return resolve_model(wanted)
    known = [entry.path for entry in CATALOGUE.values() if entry.path.name == source]
    return next((path for path in known if path.is_file()), None)


@dataclass
class _Clocked:
    """The streamer of `generate`: notes when each token came; the first call brings the prompt."""

    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    prompt_seen: bool = False

    def put(self, value: Any) -> None:
        """New tokens."""
        if self.prompt_seen:
            self.times.append(time.perf_counter())
            self.tokens.extend(value.flatten().tolist())
        self.prompt_seen = True

    def end(self) -> None:
        """Nothing more comes."""


class TransformersMode:
    """`generate` of transformers with its own model class, in float32.

    Args:
        path: the checkpoint.
        source_fp: fingerprint of what the bundle was made from.
        threads: of torch.

    Raises:
        UsageError: the checkpoint is another one.
        ModuleNotFoundError: torch or transformers is not installed.
    """

    name = TRANSFORMERS

    def __init__(self, path: Path, source_fp: str, threads: int) -> None:
        import torch

        from starsd_export.checkpoint import open_checkpoint

        checkpoint = open_checkpoint(path)
        if checkpoint.source_fp != source_fp:
            raise UsageError(f"the bundle was not made from {path}: give --checkpoint the one it was exported from")
        torch.set_num_threads(threads)
        self._model: Any = checkpoint.load()
        self._model.generation_config.eos_token_id = None

    def run(self, prompt: Sequence[int], new_tokens: int) -> Run:
        """See `starsd_edge.bench.runs.Mode`."""
        import torch

        streamer = _Clocked()
        ids = torch.tensor([list(prompt)])
        began = time.perf_counter()
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new_tokens,
                do_sample=False,
                use_cache=True,
                streamer=streamer,
            )
        return Run(tuple(streamer.tokens), streamer.times[0] - began, streamer.times[-1] - streamer.times[0])


class LlamaCppMode:
    """llama.cpp on the GGUF file itself, whose weights it computes with as they are quantised.

    Args:
        path: the file.
        context: most tokens of prompt and answer together.
        threads: of its pool.

    Raises:
        ModuleNotFoundError: llama-cpp-python is not installed.
    """

    name = LLAMA_CPP

    def __init__(self, path: Path, context: int, threads: int) -> None:
        import llama_cpp

        self._llama: Any = llama_cpp.Llama(
            model_path=str(path), n_ctx=context, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def run(self, prompt: Sequence[int], new_tokens: int) -> Run:
        """See `starsd_edge.bench.runs.Mode`."""
        tokens: list[int] = []
        times: list[float] = []
        self._llama.reset()
        began = time.perf_counter()
        new = list(prompt)
        while len(tokens) < new_tokens:
            self._llama.eval(new)
            new = [self._llama.sample(temp=0.0)]
            tokens += new
            times.append(time.perf_counter())
        return Run(tuple(tokens), times[0] - began, times[-1] - times[0])


def prepare_environment(omp_wait_policy: str) -> str:
    """What libraries read once, when they are loaded: call it before that.

    Returns:
        How idle OpenMP threads wait in this process: as the user's environment says, else as asked for here.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # loaders' bars between our steps
    return os.environ.setdefault("OMP_WAIT_POLICY", omp_wait_policy)
