"""What lies in the cache and what of it is left over or not ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from starsd_edge.bundles.cache import FONTS, MANIFEST_NAME
from starsd_edge.bundles.integrity import abandoned_stagings
from starsd_edge.doctor.findings import Finding, Level

BUNDLES, MODELS, ENGINES = "bundles", "models", "engines"
TRACES, MEASURED, OWN_TEXT = "traces", "verify-curves", "own-text"
"""Directories of the cache."""
_OURS = (BUNDLES, MODELS, ENGINES, TRACES, MEASURED, OWN_TEXT, FONTS)
_MADE_ASIDE = (BUNDLES, MODELS, ENGINES)
"""Directories in which what is made lies aside until it is whole."""
_SHOWN = 3


@dataclass(frozen=True)
class CacheFacts:
    """Entries of the cache, each written as a path.

    Attributes:
        root: its directory.
        bundles: how many.
        abandoned: what exports and downloads that did not end have left behind.
        foreign: what this program does not put there.
    """

    root: str
    bundles: int
    abandoned: Sequence[str]
    foreign: Sequence[str]


def read_cache(root: Path) -> CacheFacts:
    """Look through the cache; one that is not there yet is empty.

    Raises:
        OSError: it cannot be read.
    """
    if not root.exists():
        return CacheFacts(str(root), 0, (), ())
    bundles = sorted((root / BUNDLES).iterdir()) if (root / BUNDLES).is_dir() else []
    abandoned = [path for name in _MADE_ASIDE for path in abandoned_stagings(root / name)]
    entries = [path for path in sorted(root.iterdir()) if path.name not in _OURS]
    entries += [path for path in bundles if not path.name.startswith(".") and not (path / MANIFEST_NAME).is_file()]
    count = sum((path / MANIFEST_NAME).is_file() for path in bundles if not path.name.startswith("."))
    return CacheFacts(str(root), count, [*map(str, abandoned)], [*map(str, entries)])


def check_cache(facts: CacheFacts) -> Iterator[Finding]:
    """Whether it holds only what belongs there."""
    noun = "bundle" if facts.bundles == 1 else "bundles"
    yield Finding("cache", Level.OK, f"{facts.bundles} {noun} in {facts.root}")
    if facts.abandoned:
        yield Finding(
            "cache",
            Level.NOTE,
            f"left over from an export or a download that did not end: {_some(facts.abandoned)}",
            "rm -r them; the next one of the same name does so too",
        )
    if facts.foreign:
        remedy = "move them elsewhere, or remove them"
        yield Finding("cache", Level.NOTE, f"not from this program: {_some(facts.foreign)}", remedy)


def _some(paths: Sequence[str]) -> str:
    more = len(paths) - _SHOWN
    return ", ".join(paths[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
