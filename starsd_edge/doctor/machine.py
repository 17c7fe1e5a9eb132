"""Checks of the machine: memory, disk, open files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from starsd_edge.bundles.cache import FONTS, MANIFEST_NAME
from starsd_edge.bundles.integrity import abandoned_stagings
from starsd_edge.bundles.manifest import Fingerprints
from starsd_edge.doctor.findings import Finding, not_run, note, ok, warning
from starsd_edge.protocol.messages import Welcome

LITTLE_DISK_BYTES = 2_000_000_000
"""Free bytes below which a disk is called full: an export of the default model takes 0.9 GB with its checkpoint, and
twice that while it is made again."""


@dataclass(frozen=True)
class MachineFacts:
    """What the machine has.

    Attributes:
        cores: that this process may use.
        memory_bytes, available_bytes: in all, and free for use.
        cache: directory of the cache.
        cache_free_bytes: on its disk.
        open_files: soft limit of this process.
        hub_files: open files of a hub with all the targets that it takes.
    """

    cores: int
    memory_bytes: int
    available_bytes: int
    cache: str
    cache_free_bytes: int
    open_files: int
    hub_files: int


def check_machine(facts: MachineFacts) -> Iterator[Finding]:
    """All of them."""
    memory = f"{gigabytes(facts.available_bytes)} of {gigabytes(facts.memory_bytes)} free, {facts.cores} cores"
    yield ok("memory", memory)
    yield _disk(facts)
    yield _open_files(facts)


def gigabytes(count: float) -> str:
    """In GB, or in MB below one."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _disk(facts: MachineFacts) -> Finding:
    text = f"{gigabytes(facts.cache_free_bytes)} free at {facts.cache}"
    if facts.cache_free_bytes >= LITTLE_DISK_BYTES:
        return ok("disk", text)
    return warning("disk", text, "free some space, or set STARSD_CACHE to another disk")


def _open_files(facts: MachineFacts) -> Finding:
    text = f"{facts.open_files} allowed; a hub with all its targets needs {facts.hub_files}"
    if facts.open_files >= facts.hub_files:
        return ok("open files", text)
    return warning("open files", text, f"ulimit -n {facts.hub_files}, before run-draft")


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
    yield ok("cache", f"{facts.bundles} {noun} in {facts.root}")
    if facts.abandoned:
        yield note(
            "cache",
            f"left over from an export or a download that did not end: {_some(facts.abandoned)}",
            "rm -r them; the next one of the same name does so too",
        )
    if facts.foreign:
        remedy = "move them elsewhere, or remove them"
        yield note("cache", f"not from this program: {_some(facts.foreign)}", remedy)


def _some(paths: Sequence[str]) -> str:
    more = len(paths) - _SHOWN
    return ", ".join(paths[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


_FINGERPRINT_DIGITS = 12


def check_welcome(
    url: str, bundle: str | None, fingerprints: Fingerprints | None, welcome: Welcome
) -> Iterator[Finding]:
    """A hub that let this machine in.

    Args:
        bundle: for which it was asked; None where there was none to ask for.
        fingerprints: of that bundle.
    """
    yield ok("hub", f"{url} lets this machine in (wire version {welcome.version})")
    if bundle is None or fingerprints is None:
        yield not_run("drafter", "no bundle for which to ask", "name one: starsd-edge doctor BUNDLE --hub URL")
        return
    drafter = f"{bundle}: {welcome.drafter}"
    if welcome.notice:
        yield warning("drafter", f"{drafter}, because {welcome.notice}")
    else:
        yield ok("drafter", f"{drafter}, {welcome.max_nodes} nodes and {welcome.max_depth} levels at most")
    prints = f"tokenizer {_short(fingerprints.tokenizer_fp)}, drafter {_short(welcome.drafter_fp)}"
    yield ok("fingerprints", f"{bundle}: {prints}")


def _short(fingerprint: str) -> str:
    return fingerprint[:_FINGERPRINT_DIGITS] or "none"
