"""Links between the pages lead somewhere: to a file of the checkout, and to a heading that it has; figures agree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(file for pattern in ("*.md", "docs/*.md", "*/README.md") for file in ROOT.glob(pattern))


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    yield from (link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith(("http://", "https://")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), link
        if anchor:
            assert anchor in anchors(file), link


def test_links_are_found() -> None:
    assert sum(1 for page in PAGES for _ in links(page)) > 30


def test_the_figures_in_the_readme_are_those_of_the_page_about_measuring() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## What it gives\n")[2].partition("\n## ")[0]
    figures = set(re.findall(r"\d+\.\d+|\d{2,}", re.sub(r"\(.*?\)", "", table)))
    page = (ROOT / "docs" / "measuring.md").read_text(encoding="utf-8").partition("\n## Figures\n")[2]
    assert len(figures) > 15
    assert figures - set(re.findall(r"\d+\.\d+|\d{2,}", page)) == set()
