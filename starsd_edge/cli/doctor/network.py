"""`doctor --network`: probes of the link, a verify curve, a short decode in two ways, and what follows from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from starsd_edge.bench.figures import Figure, label_of, usable_cores
from starsd_edge.bench.prompts import read_messages
from starsd_edge.bench.runs import SIZES, WARM_UP_TOKENS, measure_verify, run_by_turns
from starsd_edge.bundles.cache import bundle_names
from starsd_edge.cli.bench.modes import OurMode, load_target, without_end
from starsd_edge.cli.doctor.machine import CONNECT_S, hello_of
from starsd_edge.cli.doctor.options import DoctorOptions
from starsd_edge.doctor.curve_store import KeptCurves, curve_key, keep_curves, load_curves
from starsd_edge.doctor.findings import Finding, Findings, failure, not_run, warning
from starsd_edge.doctor.link import LinkFacts, Probes, check_link, link_figures, probe_link
from starsd_edge.doctor.machine import check_welcome
from starsd_edge.doctor.prediction import (
    Trial,
    check_curve,
    check_prediction,
    check_trial,
    predict,
    prediction_figures,
    summarise,
)
from starsd_edge.errors import UsageError
from starsd_edge.runtime.loading import check_device

if TYPE_CHECKING:
    from starsd_jetson.hub_link import HubLink
    from starsd_jetson.target import Target

PROMPTS = 3
NEW_TOKENS = 48
VERIFY_PASSES = 7
COMMITTED = 128
"""Tokens in the KV while verify passes are timed: about the middle of the short decode."""
DRAFT_WAIT_S = 5.0
"""Seconds to wait for a draft: long enough for every one, because the prediction tells what late drafts cost."""
WARM_UP_S = 20.0
"""Seconds to wait for the hub's first draft: a hub that has just started may still load its model."""


def check_network(options: DoctorOptions, url: str, progress: Callable[[str], None]) -> Findings:
    """Measure the link to this hub and what it is worth to one bundle.

    Raises:
        UsageError: the address, the token file or the bundle cannot be used.
        HubError: the hub cannot be reached, or refuses.
        StarsdError: the bundle cannot be run.
    """
    from starsd_jetson.api import hub_address, link_to

    check_device(options.device)
    address = hub_address(url, options.token_file)
    name = _only_bundle(options.bundles)
    threads = options.threads or usable_cores()
    progress(f"loading {name}")
    target = without_end(load_target(name, options.device, threads))
    with ExitStack() as stack:
        link = stack.enter_context(link_to(address, hello_of(target)))
        link.wait_for_hub(CONNECT_S)
        checks = _NetworkChecks(url, target, link, threads, options, progress)
        return Findings([*checks.findings()], checks.figures)


def _only_bundle(named: Sequence[str]) -> str:
    names = [*named] or bundle_names()
    if not names:
        raise UsageError("there is no bundle to predict for: make one with `starsd-edge export`")
    if len(names) > 1:
        raise UsageError(f"name the bundle to predict for with --bundle (here: {', '.join(names)})")
    return names[0]


@dataclass
class _NetworkChecks:
    """One run: `figures` fills as the findings come."""

    url: str
    target: Target
    link: HubLink
    threads: int
    options: DoctorOptions
    progress: Callable[[str], None]

    def __post_init__(self) -> None:
        self.figures: list[Figure] = []
        self._label = label_of(self.options.device)

    def findings(self) -> Iterator[Finding]:
        """Everything, in the order in which it is measured."""
        welcome = self.link.welcome
        assert welcome is not None  # noqa: S101 (it let us in)
        manifest = self.target.bundle.manifest
        yield from check_welcome(self.url, self.target.bundle.path.name, manifest.fingerprints, welcome)
        self.progress("probing the link")
        probes = probe_link(self.link.probe, time.sleep) if welcome.probes else None
        prompts = self._prompts()
        kept = self._curves([token for prompt in prompts for token in prompt])
        curve = kept.curves.at(COMMITTED)
        trial = self._trial(prompts)
        facts = self._link_facts(probes)
        yield from check_link(facts)
        self.figures += link_figures(facts, self._label)
        yield check_curve(curve, kept.stored, kept.is_new)
        if trial is None:
            is_ngram = welcome.drafter == "ngram"  # which drafts nothing where a text does not repeat itself
            yield (warning if is_ngram else failure)(
                "acceptance",
                f"the hub drafted for none of {PROMPTS} answers, so there is nothing to predict from",
                "see with `starsd-edge monitor` whether its drafter is warm or keeps failing",
            )
            return
        yield from check_trial(trial)
        if not facts.small_s:
            yield not_run("gain", "the link's time is not known")
            return
        prediction = predict(trial, curve, facts, self.options.acceptance)
        yield from check_prediction(prediction, trial)
        self.figures += prediction_figures(prediction, trial, curve, self._label)

    def _link_facts(self, probes: Probes | None) -> LinkFacts:
        figures = self.link.figures
        return LinkFacts.of(figures.tcp, probes, figures.recent_link_s)

    def _prompts(self) -> list[list[int]]:
        """The first of the shipped ones, cut where the context is short: what is asked matters little here."""
        most = self.target.context(None) // 2
        return [self.target.encode(message, raw=False)[:most] for message in read_messages(None)[:PROMPTS]]

    def _curves(self, text: Sequence[int]) -> KeptCurves:
        """Those kept for this bundle on this machine, else new ones."""
        manifest = self.target.bundle.manifest
        key = curve_key(manifest, self.threads, self.options.device, self.target.engine.spec.digest)
        kept = None if self.options.remeasure else load_curves(key)
        if kept is not None:
            return kept
        self.progress("timing verify passes")
        context = self.target.context(None)
        sizes = [rows for rows in SIZES if rows < context]
        committed = min(COMMITTED, context - max(sizes))
        repeated = np.resize(np.asarray(text), committed + 1).tolist()
        times = measure_verify(self.target.engine, repeated, committed, VERIFY_PASSES, sizes)
        return keep_curves(key, manifest, {committed: times})

    def _trial(self, prompts: Sequence[Sequence[int]]) -> Trial | None:
        from starsd_jetson.api import hub_drafts
        from starsd_jetson.draft_size import draft_shape
        from starsd_jetson.drafting import NoDrafts

        shape = draft_shape(self.target.engine.spec, None, None, None)
        new_tokens = min(NEW_TOKENS, self.target.context(None) - max(map(len, prompts)))
        source = hub_drafts(self.link.open_channel, DRAFT_WAIT_S, fallback=NoDrafts())
        plain, hub = OurMode("plain", self.target, NoDrafts(), shape), OurMode("hub", self.target, source, shape)
        self.progress("waiting for the hub's drafter")
        until = time.monotonic() + WARM_UP_S
        while not any(done.drafted for done in hub.run(prompts[0], WARM_UP_TOKENS).rounds):
            if time.monotonic() > until:
                break
        runs = run_by_turns([plain, hub], prompts, new_tokens, 1, self.progress)
        return summarise(runs["plain"], runs["hub"])
