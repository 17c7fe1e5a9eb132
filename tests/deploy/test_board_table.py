"""The tables of docs/jetson.md hold what the script computes, from shapes and sizes that are known."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "board_table.py"
PUBLISHED = {
    "SmolLM2-135M": 134_515_008,
    "Qwen3-0.6B": 596_049_920,
    "Llama-3.2-1B": 1_235_814_400,
    "SmolLM3-3B": 3_075_098_624,
    "Qwen3-4B": 4_022_468_096,
    "Mistral-7B": 7_248_023_552,
    "Llama-3.1-8B": 8_030_261_248,
    "Qwen3-14B": 14_768_307_200,
}
"""Parameters, as the publishers' checkpoints have them."""
EXPORTED_MB = {"fp16": 271, "int4": 112}
"""Of the default model's bundles, tokenizer and graph included (export/README.md)."""


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_the_page_shows_the_tables_that_the_script_prints(script: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "jetson.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- boards -->")[2].partition("<!-- end -->")[0]
    assert shown.strip() == script["tables"](), "python scripts/board_table.py --write"


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_shapes_have_the_parameters_that_were_published(script: dict[str, Any], name: str, parameters: int) -> None:
    model = script["MODELS"][name]
    assert model.layer_parameters + model.end_parameters + model.norm_parameters == parameters


@pytest.mark.parametrize(("precision", "megabytes"), EXPORTED_MB.items())
def test_weights_are_as_large_as_exported_ones(script: dict[str, Any], precision: str, megabytes: int) -> None:
    computed = script["MODELS"]["SmolLM2-135M"].weight_bytes(precision) / 1e6
    assert 0 < megabytes - computed < 3


def test_what_a_board_can_run_never_shrinks_with_its_memory(script: dict[str, Any]) -> None:
    order = ["-", "(int4)", "(int8)", "(fp16)", "int4", "int8", "fp16"]
    sizes = sorted(set(script["BOARDS"].values()))
    for model in script["MODELS"].values():
        ranks = [order.index(script["best"](model, gib)) for gib in sizes]
        builds = [rank for rank in ranks if rank > 3]
        assert builds == sorted(builds)
        assert sorted(rank > 3 for rank in ranks) == [rank > 3 for rank in ranks]
