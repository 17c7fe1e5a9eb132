"""Whether the hub makes a target faster on this machine: the same prompts by turns, without and with it.

One target runs at a time, so that it has the cores that three would share. Without the hub it has all of them, which is
its best. Runs of both kinds alternate, so that what else the machine does meets both.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from starsd_edge.cli.demo.star import child_process, lines_of
from starsd_edge.cli.streams import printable
from starsd_edge.errors import StarsdError
from starsd_edge.hub_process import PROGRAM

_PROMPT_WIDTH = 34


@dataclass(frozen=True)
class ComparisonPlan:
    """What to run.

    Attributes:
        target: directory of the bundle.
        hub: its address.
        prompts: answered one after the other in each run.
        max_tokens: of an answer.
        repeats: runs of each kind.
        plain_threads: of the target's engine without the hub.
        hub_threads: of the target's engine with it.
    """

    target: Path
    hub: str
    prompts: Sequence[str]
    max_tokens: int
    repeats: int
    plain_threads: int
    hub_threads: int


@dataclass
class PromptComparison:
    """What came of one prompt.

    Attributes:
        plain, with_hub: tokens per second of each run, without the first token.
        texts: the token ids that were answered, each once.
    """

    prompt: str
    plain: list[float] = field(default_factory=list)
    with_hub: list[float] = field(default_factory=list)
    texts: set[tuple[int, ...]] = field(default_factory=set)


async def compare(
    plan: ComparisonPlan, say: Callable[[str], None], program: Sequence[str] = PROGRAM
) -> list[PromptComparison]:
    """Run all of it.

    Args:
        say: told what begins.

    Raises:
        StarsdError: a target failed; says how.
    """
    found = [PromptComparison(prompt) for prompt in plan.prompts]
    for repeat in range(plan.repeats):
        for with_hub in (False, True):
            say(f"{'with the hub' if with_hub else 'the target alone'}, run {repeat + 1} of {plan.repeats}")
            answers = await _answers(plan, with_hub, program)
            for each, answer in zip(found, answers, strict=True):
                (each.with_hub if with_hub else each.plain).append(float(answer["figures"]["tokens_per_s"]))
                each.texts.add(tuple(answer["token_ids"]))
    return found


async def _answers(plan: ComparisonPlan, with_hub: bool, program: Sequence[str]) -> list[dict[str, Any]]:
    """Of one run, in the order of the prompts."""
    threads = plan.hub_threads if with_hub else plan.plain_threads
    drafts = ["--hub", plan.hub, "--require-hub", "--name", "comparison"] if with_hub else ["--no-speculation"]
    arguments = ["run-target", str(plan.target), *drafts, "--json", "--threads", str(threads)]
    arguments += ["--max-tokens", str(plan.max_tokens)]
    arguments += [part for prompt in plan.prompts for part in ("--prompt", prompt)]
    async with child_process([*program, *arguments]) as process:
        answers = [json.loads(line) async for line in lines_of(process)]
        code = await process.wait()
        if code != 0 or len(answers) != len(plan.prompts):
            raise StarsdError(await process.last_words() or f"a target ended with exit code {code}")
    return answers


def different_texts(found: Sequence[PromptComparison]) -> list[str]:
    """Prompts that were not answered with one and the same text."""
    return [each.prompt for each in found if len(each.texts) > 1]


def comparison_table(found: Sequence[PromptComparison]) -> Table:
    """Medians of the runs, and the ratio with the range of what neighbouring runs gave."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("one target at a time", no_wrap=True)
    for title in ("alone\ntokens/s", "with hub\ntokens/s", "ratio\n(range)", "same\ntext"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in found:
        table.add_row(_short(each.prompt), *_speeds([each]), "yes" if len(each.texts) == 1 else "NO")
    table.add_section()
    table.add_row("all", *_speeds(found), "NO" if different_texts(found) else "yes")
    return table


def _speeds(found: Sequence[PromptComparison]) -> list[str]:
    """Of several prompts: of the time that a token took on average, as each answer is of about one length."""
    plain, with_hub = (
        [1 / statistics.fmean(1 / speed for speed in run) for run in zip(*runs, strict=True)]
        for runs in ([each.plain for each in found], [each.with_hub for each in found])
    )
    ratios = sorted(fast / slow for fast, slow in zip(with_hub, plain, strict=True))
    medians = statistics.median(plain), statistics.median(with_hub)
    spread = f"({ratios[0]:.2f}-{ratios[-1]:.2f})"
    return [f"{medians[0]:.1f}", f"{medians[1]:.1f}", f"{medians[1] / medians[0]:.2f} {spread}"]


def _short(prompt: str) -> str:
    text = printable(prompt)
    return text if len(text) <= _PROMPT_WIDTH else f"{text[: _PROMPT_WIDTH - 3].rstrip()}..."
