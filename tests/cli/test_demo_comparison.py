"""The demo's table of speeds without and with the hub, with a stand-in for the target that it starts."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from starsd_edge.cli.demo.comparison import (
    ComparisonPlan,
    PromptComparison,
    compare,
    comparison_table,
    different_texts,
)
from starsd_edge.errors import StarsdError

STAND_IN = """
import json, os, sys
place, rest = sys.argv[1], sys.argv[2:]
with open(os.path.join(place, "calls"), "a") as calls:
    print(json.dumps(rest), file=calls)
assert rest[0] == "run-target" and "--json" in rest
prompts = [value for name, value in zip(rest, rest[1:]) if name == "--prompt"]
for prompt in prompts:
    if prompt == "fail":
        sys.exit("error: the engine is broken")
    ids = [1, 2, 3 if prompt == "differs" and "--hub" in rest else 4]
    figures = {"tokens_per_s": 30.0 if "--hub" in rest else 20.0}
    print(json.dumps({"token_ids": ids, "figures": figures}), flush=True)
"""


def plan(*prompts: str, repeats: int = 2) -> ComparisonPlan:
    return ComparisonPlan(Path("bundle"), "ws://127.0.0.1:4711", prompts, 96, repeats, plain_threads=2, hub_threads=1)


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    return [sys.executable, str(script), str(tmp_path)]


async def test_runs_of_both_kinds_alternate_and_each_has_its_threads(program: list[str], tmp_path: Path) -> None:
    said: list[str] = []
    found = await compare(plan("one", "two"), said.append, program)
    assert [(each.prompt, each.plain, each.with_hub) for each in found] == [
        ("one", [20.0, 20.0], [30.0, 30.0]),
        ("two", [20.0, 20.0], [30.0, 30.0]),
    ]
    assert different_texts(found) == []
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert ["--hub" in call for call in calls] == [False, True, False, True]
    assert ["--no-speculation" in call for call in calls] == [True, False, True, False]
    assert [call[call.index("--threads") + 1] for call in calls] == ["2", "1", "2", "1"]
    assert said[:2] == ["the target alone, run 1 of 2", "with the hub, run 1 of 2"]


async def test_a_text_that_differs_is_found(program: list[str]) -> None:
    found = await compare(plan("one", "differs"), lambda line: None, program)
    assert different_texts(found) == ["differs"]
    assert "NO" in shown(found)


async def test_a_target_that_fails_is_told_with_its_last_words(program: list[str]) -> None:
    with pytest.raises(StarsdError, match=r"^the engine is broken$"):
        await compare(plan("one", "fail"), lambda line: None, program)


def shown(found: list[PromptComparison], width: int = 80) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(comparison_table(found))
    return stream.getvalue()


def test_the_table_has_medians_and_the_range_of_neighbouring_runs() -> None:
    long = PromptComparison("Write a short story about a lighthouse keeper\x1b[2J", [10.0, 20.0], [20.0, 20.0], {(1,)})
    slow = PromptComparison("Explain why", [10.0, 10.0], [9.0, 8.0], {(2,)})
    lines = [line.split() for line in shown([long, slow]).splitlines() if line.strip()]
    assert lines[3][-5:] == ["15.0", "20.0", "1.33", "(1.00-2.00)", "yes"]
    assert lines[4] == ["Explain", "why", "10.0", "8.5", "0.85", "(0.80-0.90)", "yes"], "a loss is shown as one"
    assert lines[-1][0] == "all"
    assert "\x1b" not in shown([long])
    assert all(len(line) <= 80 for line in shown([long, slow]).splitlines())
