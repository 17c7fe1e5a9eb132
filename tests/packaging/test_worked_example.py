"""The page of the worked example holds what its script computes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_figures_that_the_script_prints() -> None:
    script = ROOT / "scripts" / "worked_example.py"
    printed = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)}
    ).stdout
    page = (ROOT / "docs" / "worked-example-8b.md").read_text(encoding="utf-8")
    assert page.partition("<!-- figures -->")[2].partition("<!-- end -->")[0].strip() == printed.strip()


def test_the_parameters_are_those_that_the_publisher_states() -> None:
    page = (ROOT / "docs" / "worked-example-8b.md").read_text(encoding="utf-8")
    assert "| parameters | 8,030,261,248 |" in page
