"""What `bench decode` measures: opens the target, hubs and other libraries, lets them take turns, sums up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starsd_edge.bench.decode_figures import (
    NGRAM,
    PLAIN,
    SPECULATIVE,
    TRANSFORMERS,
    DecodeTimes,
    decode_figures,
    decode_tables,
)
from starsd_edge.bench.figures import BenchReport, describe_machine, label_of, usable_cores
from starsd_edge.bench.prompts import TREATMENT, fit_prompts, read_messages
from starsd_edge.bench.runs import Divergence, Mode, Runs, differences, margin_at, measure_verify, run_by_turns
from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.catalogue import find_bundle
from starsd_edge.cli.bench import modes
from starsd_edge.cli.bench.options import BenchDecodeOptions, HubDrafter
from starsd_edge.cli.output import output_console
from starsd_edge.cli.run_draft.setup import drafter_kind
from starsd_edge.errors import UsageError, missing_extra
from starsd_edge.hub_process import hub_process
from starsd_edge.runtime.loading import check_device
from starsd_edge.speculation.tree import DraftShape

if TYPE_CHECKING:
    from starsd_jetson.hub_link import HubLink
    from starsd_jetson.target import Target

_LIBRARIES = ("onnxruntime", "torch", "transformers", "llama-cpp-python", "numpy")
_VERIFY_PASSES = 20
_NO_SETTINGS = ("drafter", "json")
"""Options that the report has in another form, or that make no difference to it."""
PLAIN_SPINNING = "plain_spinning"
ONE_THREAD = "speculative_1_thread"


@dataclass(frozen=True)
class Disagreement:
    """Where an answer of ours leaves transformers', and how near the two likeliest tokens were there (logits)."""

    at: Divergence
    margin: float


@dataclass(frozen=True)
class DecodeOutcome:
    """What came of it.

    Attributes:
        report: the figures.
        titles: what to call each mode.
        committed: tokens in the KV when the verify curve was measured.
        ours: names of our modes, which must all give the same tokens.
        answers: how many were compared for each mode.
        inexact: where they did not.
        disagreements: with transformers; None where that was not measured.
        notes: for the reader: what was not measured and why.
    """

    report: BenchReport
    titles: Mapping[str, str]
    committed: int
    ours: Sequence[str]
    answers: int
    inexact: Sequence[Divergence]
    disagreements: Sequence[Disagreement] | None
    notes: Sequence[str]

    @property
    def exact(self) -> bool:
        """Whether all of our modes gave the same tokens."""
        return not self.inexact


class DecodeBench:
    """One run of the command.

    Args:
        options: what to measure.
        progress: told of each step.
    """

    def __init__(self, options: BenchDecodeOptions, progress: Callable[[str], None]) -> None:
        self._options = options
        self._progress = progress
        self._threads = options.threads or usable_cores()
        self._modes: list[Mode] = []
        self._titles: dict[str, str] = {}
        self._links: dict[str, HubLink] = {}
        self._notes: list[str] = []

    def run(self) -> DecodeOutcome:
        """Measure.

        Raises:
            StarsdError: something cannot be opened; nothing was measured.
        """
        options = self._options
        check_device(options.device)
        machine = describe_machine(_LIBRARIES)
        policy = modes.prepare_environment("passive")
        messages = read_messages(options.prompts)
        for name in filter(None, (options.bundle, options.draft)):
            find_bundle(name)  # a wrong one is known before anything is loaded
        self._progress("loading the target")
        target = modes.load_target(options.bundle, options.device, self._threads)
        prompts = fit_prompts(messages, lambda message: target.encode(message, raw=False), options.prompt_tokens)
        self._check_length(target)
        checkpoint = modes.checkpoint_path(options.checkpoint, target.bundle.manifest.source)
        with ExitStack() as stack:
            self._add_own_modes(modes.without_end(target), stack)
            ours = [mode.name for mode in self._modes]
            self._add_other_libraries(checkpoint, target.bundle)
            runs = run_by_turns(self._modes, prompts, options.new_tokens, options.repeats, self._progress)
            links = {name: link.figures for name, link in self._links.items()}
        committed = options.prompt_tokens + options.new_tokens // 2
        self._progress("verify passes")
        text = [*prompts[0], *runs[PLAIN][0].token_ids]
        verify_s = measure_verify(target.engine, text, committed, _VERIFY_PASSES)
        figures = decode_figures(DecodeTimes(runs, options.prompt_tokens, verify_s, links), label_of(options.device))
        return DecodeOutcome(
            report=BenchReport(figures, machine, self._settings(target, len(prompts), committed, policy)),
            titles=self._titles,
            committed=committed,
            ours=ours,
            answers=len(runs[PLAIN]),
            inexact=differences(runs, PLAIN, ours, len(prompts)),
            disagreements=self._disagreements(target, runs, prompts),
            notes=self._notes,
        )

    def _check_length(self, target: Target) -> None:
        wanted = self._options.prompt_tokens + self._options.new_tokens
        most = target.context(None)
        if wanted > most:
            raise UsageError(
                f"--prompt-tokens and --new-tokens make {wanted} tokens and the context of {target.bundle.path.name} "
                f"holds {most}: lower one of them"
            )

    def _add_own_modes(self, target: Target, stack: ExitStack) -> None:
        from starsd_edge.runtime.loading import open_engine
        from starsd_jetson.draft_size import draft_shape
        from starsd_jetson.drafting import NgramDrafts, NoDrafts

        options = self._options
        shape = draft_shape(target.engine.spec, options.draft_depth, options.draft_nodes, options.draft_branching)
        self._add(modes.OurMode(PLAIN, target, NoDrafts(), shape), "plain")
        if options.tune:
            engine = open_engine(target.bundle, options.device, self._threads, spinning=True)
            spinning = replace(target, engine=engine)
            self._add(modes.OurMode(PLAIN_SPINNING, spinning, NoDrafts(), shape), "plain spinning")
        self._add(modes.OurMode(NGRAM, target, NgramDrafts(), shape), "local ngram")
        for number, drafter in enumerate(options.drafters):
            name = SPECULATIVE if number == 0 else f"{SPECULATIVE}_{drafter.replace('-', '_')}"
            title = f"hub {self._kind(drafter)}"
            self._add_hub(name, title, drafter, options.hub_threads or self._threads, target, shape, stack)
        if options.tune and HubDrafter.DRAFT.value in options.drafters:
            self._add_hub(ONE_THREAD, "hub 1 thread", HubDrafter.DRAFT.value, 1, target, shape, stack)

    def _kind(self, drafter: str) -> str:
        """What a drafter is called by the hub."""
        if drafter != HubDrafter.DRAFT.value or self._options.draft is None:
            return drafter
        return drafter_kind(find_bundle(self._options.draft))

    def _add_hub(
        self,
        name: str,
        title: str,
        drafter: str,
        threads: int,
        target: Target,
        shape: DraftShape,
        stack: ExitStack,
    ) -> None:
        from starsd_jetson.api import hub_drafts

        self._progress(f"starting a {title}")
        arguments = ["--threads", str(threads), "--require-drafter"]
        if drafter == HubDrafter.DRAFT.value and self._options.draft is not None:
            arguments.insert(0, str(find_bundle(self._options.draft)))
        url = stack.enter_context(hub_process(arguments))
        link = stack.enter_context(modes.hub_link(url, target, shape))
        self._links[name] = link
        source = hub_drafts(link.open_channel, self._options.draft_wait)
        self._add(modes.OurMode(name, target, source, shape), title)

    def _add_other_libraries(self, path: Path | None, bundle: Bundle) -> None:
        """Those that are installed and can read the checkpoint; a note for each of the others."""
        if path is None:
            self._notes.append("transformers and llama.cpp were not measured: --checkpoint names what they are to load")
            return
        self._progress("loading transformers")
        source_fp = bundle.manifest.fingerprints.source_fp
        self._try(lambda: modes.TransformersMode(path, source_fp, self._threads), "transformers fp32", "transformers")
        if path.suffix == ".gguf":
            self._progress("loading llama.cpp")
            context = self._options.prompt_tokens + self._options.new_tokens
            self._try(lambda: modes.LlamaCppMode(path, context, self._threads), "llama.cpp GGUF", "llama.cpp")

    def _try(self, open_mode: Callable[[], Mode], title: str, library: str) -> None:
        try:
            self._add(open_mode(), title)
        except ModuleNotFoundError as error:
            if error.name != "llama_cpp" and missing_extra(error.name) is None:
                raise
            self._notes.append(f"{library} was not measured: {error.name} is not installed")

    def _add(self, mode: Mode, title: str) -> None:
        self._modes.append(mode)
        self._titles[mode.name] = title

    def _disagreements(
        self, target: Target, runs: Runs, prompts: Sequence[Sequence[int]]
    ) -> Sequence[Disagreement] | None:
        if TRANSFORMERS not in runs:
            return None
        found = []
        for each in differences(runs, PLAIN, [TRANSFORMERS], len(prompts)):
            prefix = [*prompts[each.prompt], *runs[PLAIN][each.prompt].token_ids[: each.position]]
            found.append(Disagreement(each, margin_at(target.engine, target.tokenizer.size, prefix)))
        return found

    def _settings(self, target: Target, prompts: int, committed: int, policy: str) -> dict[str, Any]:
        manifest = target.bundle.manifest
        return {
            "command": "bench decode",
            **{name: value for name, value in asdict(self._options).items() if name not in _NO_SETTINGS},
            "drafters": self._options.drafters,
            "prompts": str(self._options.prompts or "shipped"),
            "number_of_prompts": prompts,
            "prompt_treatment": TREATMENT,
            "threads": self._threads,
            "hub_threads": self._options.hub_threads or self._threads,
            "omp_wait_policy": policy,
            "source_fp": manifest.fingerprints.source_fp,
            "weights": manifest.graph.weights,
            "kv_dtype": manifest.graph.kv_dtype,
            "verify_committed_tokens": committed,
            "verify_passes": _VERIFY_PASSES,
            "modes": dict(self._titles),
        }


def show(outcome: DecodeOutcome) -> None:
    """Print the tables, whether the answers agree, and what was measured how."""
    console = output_console(exact=True)
    for table in decode_tables(outcome.report, outcome.titles, outcome.committed):
        console.print(table)
    for line in [*_agreement(outcome), *_conditions(outcome), *outcome.notes]:
        console.print(line, markup=False)


def _agreement(outcome: DecodeOutcome) -> Iterator[str]:
    ways = ", ".join(outcome.titles[name] for name in outcome.ours)
    if outcome.exact:
        yield f"exactness: the same token ids in each of {outcome.answers} answers by {ways}"
    else:
        first = outcome.inexact[0]
        yield (
            f"exactness: NOT the same token ids: {len(outcome.inexact)} answers differ from plain ones, the first by "
            f"{outcome.titles[first.mode]}, prompt {first.prompt + 1}, token {first.position + 1}"
        )
    if outcome.disagreements is not None:
        yield f"transformers: {_disagreements(outcome)}"


def _disagreements(outcome: DecodeOutcome) -> str:
    found = outcome.disagreements or ()
    if not found:
        return f"the same token ids in each of {outcome.answers} answers"
    where = ", ".join(
        f"prompt {each.at.prompt + 1} token {each.at.position + 1} (margin {each.margin:.1e})" for each in found
    )
    return f"{len(found)} of {outcome.answers} answers leave ours, first at {where}"


def _conditions(outcome: DecodeOutcome) -> Iterator[str]:
    machine, settings = outcome.report.machine, outcome.report.settings
    yield (
        f"{machine['cpu']}, {machine['cores']} cores, {settings['threads']} threads for each engine, load average "
        f"{machine['load_average_before']} before"
    )
    yield (
        f"{settings['bundle']}: {settings['weights']} weights, {settings['kv_dtype']} KV; "
        f"{settings['number_of_prompts']} prompts of {settings['prompt_tokens']} tokens, {settings['new_tokens']} new "
        f"tokens, {settings['repeats']} times"
    )
    yield f"prompts: {settings['prompt_treatment']}"
    yield (
        "hub_added: round minus draft minus verify, the first round of each answer left out; round_ms: from taking the "
        "draft to asking for the next and committing"
    )
