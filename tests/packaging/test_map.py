"""The map of the repository names files and folders that are there, and every folder of the product."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAP = (ROOT / "ARCHITECTURE.md").read_text()
NAMED = re.compile(r"`((?:starsd_edge|export|server|jetson|tests|docs|scripts)/[\w./-]+)`")
FOLDER_ROW = re.compile(r"^\| `([\w/]+)` \|", re.MULTILINE)


def test_every_file_and_folder_that_the_map_names_is_there() -> None:
    named = sorted(set(NAMED.findall(MAP)))
    assert len(named) > 50
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_table_of_folders_has_every_part_of_the_product() -> None:
    core = {f"starsd_edge/{folder.parent.name}" for folder in (ROOT / "starsd_edge").glob("*/__init__.py")}
    places = {str(folder.parent.relative_to(ROOT)) for folder in ROOT.glob("*/starsd_*/__init__.py")}
    table = MAP.partition("\n## Folders\n")[2].partition("\n## ")[0]
    assert set(FOLDER_ROW.findall(table)) == core | places
