"""`starsd-edge bench decode` as a user meets it: on the numpy engine with a real hub, and on the real model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.errors import StarsdError
from starsd_edge.hub_process import hub_process
from starsd_edge.runtime import loading
from starsd_edge.runtime.engine import Step
from starsd_jetson import target as target_module
from tests.support.command_line import CommandLine
from tests.support.letter_bundle import write_bundle
from tests.support.prefix_engine import PrefixEngine, UnhurriedEngine

PROMPTS = "abacabadabacaba\ncabcabcabcab\n"
# Every draft is waited for: what is counted must not depend on how busy the machine is.
SMALL = ("--prompt-tokens", 12, "--new-tokens", 60, "--draft-wait", 30)
NAMES = {
    "plain_tokens_per_s",
    "ngram_tokens_per_s",
    "speculative_tokens_per_s",
    "verify5_over_verify1",
    "hub_added_ms_p50",
    "hub_added_ms_p99",
    "speculative_over_plain",
    "ngram_over_plain",
    "tokens_per_round",
    "accepted_per_round",
    "bytes_up_per_round",
    "bytes_down_per_round",
    "survival_level_1",
    "ttft_ms",
    "plain_ttft_ms",
    "speculative_ttft_ms",
    "plain_prefill_tokens_per_s",
    "rtt_ms",
    *(f"verify_ms_{rows}" for rows in (1, 2, 3, 5, 8, 16)),
}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> PrefixEngine:
    """The model that the command will run."""
    engine = UnhurriedEngine(1, max_context=128)
    use(monkeypatch, engine)
    return engine


def use(monkeypatch: pytest.MonkeyPatch, engine: PrefixEngine) -> None:
    # The command sets these where they are unset.
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("TQDM_DISABLE", "1")
    for module in (target_module, loading):
        monkeypatch.setattr(module, "open_engine", lambda *arguments, **named: engine)


class BenchDecode(CommandLine):
    """`starsd-edge bench decode BUNDLE --prompts FILE ...`"""

    def __init__(self, capture: pytest.CaptureFixture[str], folder: Path) -> None:
        super().__init__(capture)
        self._folder = folder
        self._bundle = write_bundle(folder / "bundle")
        self._prompts = folder / "prompts"
        self._prompts.write_text(PROMPTS)

    def __call__(self, *arguments: object) -> Any:
        return super().__call__("bench", "decode", self._bundle, "--prompts", self._prompts, *arguments)

    def report(self, *arguments: object) -> dict[str, Any]:
        """What it writes with --json."""
        path = self._folder / "report.json"
        ended = self(*arguments, "--json", path)
        assert ended.code == 0, ended
        written: dict[str, Any] = json.loads(path.read_text())
        return written


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], tmp_path: Path, engine: PrefixEngine) -> BenchDecode:
    return BenchDecode(capfd, tmp_path)


def named(report: dict[str, Any]) -> dict[str, Any]:
    return {figure["name"]: figure for figure in report["figures"]}


def children() -> set[str]:
    """Processes whose parent this one is."""
    return {
        entry.name
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and f"\nPPid:\t{os.getpid()}\n" in _status_of(entry)
    }


def _status_of(process: Path) -> str:
    try:
        return (process / "status").read_text()
    except OSError:  # it has ended meanwhile
        return ""


def test_every_way_is_measured_and_the_hub_ends_with_it(command: BenchDecode) -> None:
    before = children()
    report = command.report(*SMALL, "--repeats", 2)
    assert children() <= before
    figures = named(report)
    assert set(figures) >= NAMES
    assert all(set(figure) == {"name", "value", "unit", "label"} for figure in figures.values())
    assert {figure["label"] for figure in figures.values()} == {"CPU"}
    assert figures["tokens_per_round"]["value"] > 1.3
    assert figures["hub_share"]["value"] > 0
    assert report["spread"]["plain_tokens_per_s"]["samples"] == 4
    assert report["machine"]["cores"] >= 1
    settings = report["settings"]
    assert (settings["number_of_prompts"], settings["repeats"], settings["new_tokens"]) == (2, 2, 60)
    assert "cut" in settings["prompt_treatment"]


def test_tables_exactness_and_what_is_missing_are_told(command: BenchDecode) -> None:
    ended = command(*SMALL)
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "exactness: the same token ids in each of 2 answers by plain, local ngram, hub" in ended.out
    assert "were not measured: --checkpoint names" in " ".join(ended.out.split())
    for words in ("tokens/s", "hub_added_ms_p50", "survival_level_1", "committed tokens", "2 prompts of 12 tokens"):
        assert words in ended.out


def test_tuning_adds_its_rows(command: BenchDecode) -> None:
    assert "plain_spinning_over_plain" in named(command.report(*SMALL, "--tune"))


class Unsteady(PrefixEngine):
    """Says something else when several tokens are verified at once."""

    def forward(self, *arguments: Any, **options: Any) -> Step:
        step = super().forward(*arguments, **options)
        several = len(step.logits) > 1
        return Step(np.roll(step.logits, 1, axis=1), step.features) if several else step


def test_different_tokens_are_a_failure_and_are_located(
    command: BenchDecode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, Unsteady(1, max_context=128))
    path = tmp_path / "figures.json"
    ended = command(*SMALL, "--json", path)
    assert ended.code == 1
    assert "exactness: NOT the same token ids" in ended.out
    assert ended.err.splitlines()[-1].startswith("error: ways of decoding that must give the same tokens did not")
    assert path.exists(), "the figures are kept: they help to find the fault"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--drafter", "draft"], "needs a draft model"),
        (["--drafter", "ngram", "--draft", "x"], "leave one of them out"),
        (["--drafter", "magic"], "magic"),
        (["--new-tokens", "1"], "--new-tokens"),
        (["--prompt-tokens", "5"], "the least is 8"),
        (["--prompt-tokens", "100", "--new-tokens", "29"], "make 129 tokens"),
        (["--repeats", "0"], "--repeats"),
        (["--json", "/nowhere/report.json"], "there is no directory /nowhere"),
        (["--json", "/"], "is a directory"),
        (["--device", "abacus"], "no device 'abacus'"),
        (["--prompts", "/nowhere"], "cannot read the prompts"),
        (["--checkpoint", "/nowhere/model.gguf"], "no model named"),
        (["--draft", "nowhere"], "no bundle named 'nowhere'"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_measured(
    command: BenchDecode, engine: PrefixEngine, arguments: list[str], says: str
) -> None:
    ended = command(*SMALL, *arguments)
    assert ended.code != 0
    assert ended.out == ""
    errors = [line for line in ended.err.splitlines() if not line.startswith("bench: ")]
    assert len(errors) == 1, ended
    assert errors[0].startswith("error: ")
    assert says in errors[0]
    assert engine.forward_sizes == []


def test_hub_that_does_not_start_says_why(command: BenchDecode, tmp_path: Path) -> None:
    """The draft bundle's graph is no graph, which only the hub finds out."""
    draft = write_bundle(tmp_path / "draft")
    ended = command(*SMALL, "--draft", draft)
    assert ended.code == 1
    last = ended.err.splitlines()[-1]
    assert last.startswith("error: the hub did not start: ")
    assert "model.onnx" in last or "onnxruntime" in last


def test_hub_process_ends_whatever_happens() -> None:
    before = children()
    process = hub_process(["--drafter", "ngram"])
    assert process.__enter__().startswith("ws://127.0.0.1:")
    assert len(children() - before) == 1
    fault = KeyboardInterrupt()
    assert not process.__exit__(KeyboardInterrupt, fault, fault.__traceback__)
    assert children() <= before


def test_hub_process_refuses_wrong_arguments_with_the_hubs_own_words() -> None:
    with (
        pytest.raises(StarsdError, match=r"the hub did not start: .*magic"),
        hub_process(["--drafter", "magic"]),
    ):
        pass


@pytest.mark.model
@pytest.mark.slow
def test_real_model_against_transformers(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, bundle_fp32: Bundle, bundle_int8: Bundle, model_file: Path
) -> None:
    pytest.importorskip("transformers")
    prompts, path = tmp_path / "prompts", tmp_path / "report.json"
    prompts.write_text("Count from one to twenty, and begin with one.\n")
    ended = CommandLine(capfd)(
        "bench", "decode", bundle_fp32.path, "--draft", bundle_int8.path, "--prompts", prompts, "--new-tokens", 12,
        "--draft-wait", 30, "--checkpoint", model_file, "--json", path,
    )  # fmt: skip
    assert ended.code == 0, ended
    assert "exactness: the same token ids in each of 1 answers by plain" in ended.out
    assert "transformers: the same token ids in each of 1 answers" in ended.out
    figures = named(json.loads(path.read_text()))
    assert set(figures) >= NAMES | {
        "transformers_tokens_per_s",
        "plain_over_transformers",
        "speculative_ngram_hub_share",
    }
    assert figures["accepted_per_round"]["value"] > 1, "the same model with int8 weights drafts well"
    assert figures["draft_ms_p50"]["value"] > 0
