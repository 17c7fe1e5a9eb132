"""Checks of one bundle: files, memory, and an inference that really runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starsd_edge.bundles.bundle import load_bundle
from starsd_edge.doctor.bundle import (
    Inference,
    check_extra_files,
    check_files,
    check_inference,
    check_memory,
    kv_bytes,
    run_inference,
)
from starsd_edge.doctor.findings import Level
from starsd_edge.runtime.engine import Step
from tests.support.prefix_engine import PrefixEngine
from tests.support.small_bundle import FILES, write_small_bundle


class Clock:
    """Every look at it is a millisecond later."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def test_a_whole_bundle(tmp_path: Path) -> None:
    bundle = load_bundle(write_small_bundle(tmp_path / "small"))
    finding = check_files(bundle)
    assert finding.level is Level.OK
    assert finding.finding.startswith(f"small: {len(FILES)} files whole, ")
    assert [*check_extra_files(bundle)] == []


def test_files_that_nobody_vouches_for(tmp_path: Path) -> None:
    bundle = load_bundle(write_small_bundle(tmp_path / "small"))
    (bundle.path / "notes.txt").touch()
    extra = next(check_extra_files(bundle))
    assert (extra.level, "notes.txt" in extra.finding) == (Level.NOTE, True)
    (bundle.path / "notes.txt").unlink()
    (bundle.path / "engines/one").mkdir(parents=True)
    (bundle.path / "engines/one/engine.plan").touch()
    assert [*check_extra_files(bundle)] == []


def test_memory_is_weights_and_the_kv_of_the_whole_context(tmp_path: Path) -> None:
    bundle = load_bundle(write_small_bundle(tmp_path / "small"))
    kv = 2 * 1 * 1 * 4 * 2 * 32  # K and V, one layer, one head of width 4, float16, 32 tokens
    assert kv_bytes(bundle.manifest) == kv
    needed = kv + sum(map(len, FILES.values()))
    assert check_memory(bundle, needed).level is Level.OK
    short = check_memory(bundle, needed - 1)
    assert (short.level, "--context" in short.remedy) == (Level.WARNING, True)


def test_an_engine_that_keeps_its_promise() -> None:
    engine = PrefixEngine(1)
    inference = run_inference(engine, 3, Clock())
    assert inference == Inference(pytest.approx(0.001), True, 0.0, True)  # type: ignore[arg-type]
    assert engine.forward_sizes == [4, 1, 1, 1, 1]
    finding = check_inference("small", "cpu", inference)
    assert (finding.name, finding.level) == ("engine cpu", Level.OK)
    assert "1.0 ms for a token" in finding.finding


class Drifting(PrefixEngine):
    """Rows of larger passes are a little, or much, different."""

    drift = 1e-3

    def forward(self, *arguments: Any, **named: Any) -> Step:
        step = super().forward(*arguments, **named)
        if len(step.logits) == 1:
            return step
        logits = step.logits.copy()
        logits[:, logits.argmin(axis=1)] += self.drift
        return Step(logits, step.features)


class Broken(PrefixEngine):
    """Its arithmetic has run over."""

    def forward(self, *arguments: Any, **named: Any) -> Step:
        step = super().forward(*arguments, **named)
        return Step(np.full_like(step.logits, np.nan), step.features)


def test_passes_of_another_shape_may_differ_in_their_bits_and_not_in_what_they_choose() -> None:
    little, much = Drifting(1), Drifting(1)
    much.drift = 100.0
    note = check_inference("small", "cpu", run_inference(little, 3, Clock()))
    assert (note.level, "1.0e-03" in note.finding) == (Level.NOTE, True)
    warning = check_inference("small", "cpu", run_inference(much, 3, Clock()))
    assert (warning.level, "chooses other tokens" in warning.finding) == (Level.WARNING, True)


def test_logits_that_are_no_numbers_are_a_failure() -> None:
    assert check_inference("small", "cpu", run_inference(Broken(1), 3, Clock())).level is Level.FAILURE
