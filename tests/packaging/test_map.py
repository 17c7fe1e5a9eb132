"""The map of the repository names files and folders that are there, and every folder of the product; the READMEs of its
parts name modules that are there.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAP = (ROOT / "ARCHITECTURE.md").read_text()
NAMED = re.compile(r"`((?:starsd_edge|export|server|jetson|tests|docs|scripts)/[\w./-]+)`")
FOLDER_ROW = re.compile(r"^\| `([\w/]+)` \|", re.MULTILINE)


def test_every_file_and_folder_that_the_map_names_is_there() -> None:
    named = sorted(set(NAMED.findall(MAP)))
    assert len(named) > 50
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_test_that_a_script_names_is_there() -> None:
    """Pytest says nothing of a file that it is to leave out and that has another name now."""
    text = "".join((ROOT / "scripts" / name).read_text() for name in ("test.sh", "pythons.sh"))
    named = set(re.findall(r"\btests/[\w/]+(?:\.py)?", text))
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_table_of_folders_has_every_part_of_the_product() -> None:
    core = {f"starsd_edge/{folder.parent.name}" for folder in (ROOT / "starsd_edge").glob("*/__init__.py")}
    places = {str(folder.parent.relative_to(ROOT)) for folder in ROOT.glob("*/starsd_*/__init__.py")}
    table = MAP.partition("\n## Folders\n")[2].partition("\n## ")[0]
    assert set(FOLDER_ROW.findall(table)) == core | places


@pytest.mark.parametrize("package", ["server/starsd_server", "jetson/starsd_jetson"])
def test_the_modules_in_the_readme_of_a_part_are_there(package: str) -> None:
    page = (ROOT / package).with_name("README.md").read_text()
    table = page.partition("| module | what it does |\n|---|---|\n")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert len(named) > 10
    here = {file.stem for file in (ROOT / package).iterdir()}
    assert [name for name in named if name not in here] == []
