"""`bench drafts` on a tiny model: a drafter that is the target itself is always right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from starsd_edge.bundles.bundle import Bundle
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.export


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("the hub drafts\na target checks\nwhat it drafts\n")
    return file


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capfd)


def test_a_model_that_drafts_for_itself_is_always_right(
    cli: CommandLine, tiny_bundles: dict[str, Bundle], prompts: Path, tmp_path: Path
) -> None:
    target, report = tiny_bundles["fp32"].path, tmp_path / "report.json"
    options = ("--prompts", prompts, "--limit", 2, "--new-tokens", 24, "--temperature", 1, "--tree", "4x4x1")
    done = cli("bench", "drafts", target, "--draft", target, *options, "--threads", 1, "--json", report)
    assert done.code == 0, done.err
    figures = {figure["name"]: figure["value"] for figure in json.loads(report.read_text())["figures"]}
    greedy = cli("bench", "drafts", target, "--draft", target, *options, "--temperature", 0, "--threads", 1)
    # At temperature 0 every guess is right: 23 tokens after the first are four rounds of five, and one of the rest. A
    # tiny model soon repeats itself, and then its texts are reported apart.
    assert "4.60" in greedy.out
    assert 1 <= figures["t1_4x4x1_tokens_per_round"] < 4.6
    assert all(len(line) <= 80 for line in greedy.out.splitlines())


def test_what_is_no_bundle_cannot_draft(
    cli: CommandLine, tiny_bundles: dict[str, Bundle], prompts: Path, tmp_path: Path
) -> None:
    done = cli("bench", "drafts", tiny_bundles["fp32"].path, "--draft", tmp_path, "--prompts", prompts)
    assert done.code == 1
    assert "is no bundle" in done.err


def test_a_tree_is_three_numbers(cli: CommandLine, tiny_bundles: dict[str, Bundle]) -> None:
    path = tiny_bundles["fp32"].path
    line = cli.refused("bench", "drafts", path, "--draft", path, "--tree", "8x5")
    assert "--tree takes NODESxDEPTHxBRANCHING, like 8x5x3, not '8x5'" in line
