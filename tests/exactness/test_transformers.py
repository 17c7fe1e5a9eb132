"""Plain greedy steps against transformers' own model class, teacher-forced along the text that the steps gave."""

from __future__ import annotations

from collections.abc import Callable
from operator import eq
from pathlib import Path
from typing import Any

import pytest

from starsd_edge.speculation.sampling import Choice, SamplingParams
from tests.support.exactness import ARGMAX_BOUNDS, Bench, Case

pytestmark = pytest.mark.model

PROMPTS = [
    "The capital of France is",
    "Water boils at a temperature of",
    "def fibonacci(n):\n",
    "import numpy as np\n\nx = np.",
    "Once upon a time, in a small village,",
    "The three primary colours are",
    "Dear customer,\n\nThank you for",
    "1, 1, 2, 3, 5, 8,",
    "Q: What is the speed of light?\nA:",
    "<html>\n<head>\n",
    "La capitale de la France est",
    "Die Hauptstadt von Deutschland ist",
    "In 1969, the first human being",
    "To make bread you need flour,",
    "SELECT name FROM users WHERE",
    "The quick brown fox",
    "# Introduction\n\nThis document describes",
    "My favourite season is autumn because",
    "Photosynthesis is the process by which",
    "A train leaves the station at noon and",
    "She opened the door and saw",
    "中国的首都是",
]


@pytest.fixture(scope="module")
def stock(model_file: Path) -> Any:
    """transformers' model of the same checkpoint."""
    from starsd_export.checkpoint import open_checkpoint

    return open_checkpoint(model_file).load()


def test_greedy_steps_are_those_of_transformers(bench_fp16_kv: Bench, stock: Any, say: Callable[[str], None]) -> None:
    from starsd_export.reference import run_stock

    bench = Bench(bench_fp16_kv.engine, bench_fp16_kv.tokenizer, length=24)
    agreed = {"float16": 0, "float32": 0}
    differ: list[tuple[str, int, Choice, int]] = []
    for prompt in PROMPTS:
        case = Case(prompt, SamplingParams())
        text = [*bench.prompt(case), *bench.plain(case)]
        for kv_dtype in agreed:
            theirs = run_stock(stock, text[:-1], kv_dtype=kv_dtype).logits[-bench.length :].argmax(axis=1).tolist()
            agreed[kv_dtype] += sum(map(eq, bench.plain(case), theirs))
            if kv_dtype == bench.engine.spec.kv_dtype:
                both = zip(range(bench.length), bench.choices(case), theirs, strict=True)
                differ += [(prompt, index, ours, token) for index, ours, token in both if ours.token != token]
    say(
        f"{len(PROMPTS)} prompts, {len(PROMPTS) * bench.length} greedy steps: {agreed['float16']} are those of "
        f"transformers with K and V rounded to float16, {agreed['float32']} without rounding {differ or ''}"
    )
    assert all(ours.margin < ARGMAX_BOUNDS["float16"] for _, _, ours, _ in differ)
