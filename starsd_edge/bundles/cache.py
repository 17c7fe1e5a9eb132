"""Where fetched models and exported bundles lie on this machine.

$STARSD_CACHE, else $XDG_CACHE_HOME/starsd-edge, else ~/.cache/starsd-edge
    models/<name>/     checkpoints fetched by `pull`
    bundles/<name>/    what `export` wrote
    verify-curves/     what `doctor --network` measured
"""

from __future__ import annotations

import os
from pathlib import Path

from starsd_edge.errors import BundleError, UsageError

MANIFEST_NAME = "manifest.json"
"""The file that makes a directory a bundle."""
CACHE_VARIABLE = "STARSD_CACHE"


def cache_dir() -> Path:
    """The root of the cache; it need not exist yet.

    Raises:
        UsageError: no home directory is known and no variable names another place.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return _expanded(chosen).absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if Path(xdg).is_absolute():  # the XDG rules say to ignore a relative one
        return Path(xdg) / "starsd-edge"
    try:
        return Path.home() / ".cache" / "starsd-edge"
    except RuntimeError:
        raise UsageError(
            f"no home directory is known: set {CACHE_VARIABLE} to a directory for models and bundles"
        ) from None


def models_dir() -> Path:
    """Directory of the fetched checkpoints."""
    return cache_dir() / "models"


def bundles_dir() -> Path:
    """Directory of the exported bundles."""
    return cache_dir() / "bundles"


def find_bundle(name_or_path: str) -> Path:
    """The directory of a bundle: a path is used as it is, anything else is a name under `bundles_dir()`.

    Raises:
        BundleError: there is no bundle of that name and no directory there.
    """
    path = _expanded(name_or_path)
    if path.is_dir() and (_is_written_as_path(name_or_path) or (path / MANIFEST_NAME).exists()):
        return path
    if _is_written_as_path(name_or_path):
        raise BundleError(f"no bundle at {path}: give the directory that `starsd-edge export` wrote")
    named = bundles_dir() / name_or_path
    if named.is_dir():
        return named
    known = ", ".join(bundle_names()) or "none yet"
    raise BundleError(f"no bundle named {name_or_path!r} (here: {known}): make one with `starsd-edge export`")


def bundle_names() -> list[str]:
    """Names of the bundles in the cache, in alphabetical order."""
    return sorted(
        path.parent.name for path in bundles_dir().glob(f"*/{MANIFEST_NAME}") if not path.parent.name.startswith(".")
    )


def _expanded(path: str) -> Path:
    """With a home directory in the place of its ~; as it is where nobody knows that directory."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (unlike Path's, it does not mind an unknown home)


def _is_written_as_path(text: str) -> bool:
    return os.sep in text or text in (".", "..") or text.startswith("~")
