"""Where fetched models and exported bundles lie on this machine.

$STARSD_CACHE, else $XDG_CACHE_HOME/starsd-edge, else ~/.cache/starsd-edge
    models/<name>/     checkpoints fetched by `pull`
    bundles/<name>/    what `export` wrote
    engines/<name>/    what `export --engine` built
    arriving/          parts of bundles that `pull --from` fetches
    verify-curves/     what `bench verify` and `doctor --network` measured
    traces/            what `bench trace` recorded
    own-text/          what models wrote for the search of int4 scales
    matplotlib/        matplotlib's list of fonts
    checked/           digests of large files of bundles, as they were when they were read
    running/           a file for each command that runs now, for `ps`
"""

from __future__ import annotations

import os
from pathlib import Path

from starsd_edge.errors import UsageError

MANIFEST_NAME = "manifest.json"
"""The file that makes a directory a bundle."""
CACHE_VARIABLE = "STARSD_CACHE"
FONTS = "matplotlib"


def cache_dir() -> Path:
    """The root of the cache; it need not exist yet.

    Raises:
        UsageError: no home directory is known and no variable names another place.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return expanded(chosen).absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if Path(xdg).is_absolute():  # the XDG rules say to ignore a relative one
        return Path(xdg) / "starsd-edge"
    try:
        return Path.home() / ".cache" / "starsd-edge"
    except RuntimeError:
        raise UsageError(
            f"no home directory is known: set {CACHE_VARIABLE} to a directory for models and bundles"
        ) from None


def known_cache() -> Path | None:
    """The root of the cache; None where there is no place for one: what is optional is then neither looked for there
    nor kept.
    """
    try:
        return cache_dir()
    except UsageError:
        return None


def models_dir() -> Path:
    """Directory of the fetched checkpoints."""
    return cache_dir() / "models"


def bundles_dir() -> Path:
    """Directory of the exported bundles."""
    return cache_dir() / "bundles"


def engines_dir() -> Path:
    """Directory of the engines that were built."""
    return cache_dir() / "engines"


def fonts_dir() -> Path:
    """Directory of matplotlib's list of fonts, which else goes into places of its own in the home directory."""
    return cache_dir() / FONTS


def bundle_names() -> list[str]:
    """Names of the bundles in the cache, in alphabetical order; none where there is no cache."""
    if known_cache() is None:
        return []
    return sorted(
        path.parent.name for path in bundles_dir().glob(f"*/{MANIFEST_NAME}") if not path.parent.name.startswith(".")
    )


def expanded(path: str) -> Path:
    """With a home directory in the place of its ~; as it is where nobody knows that directory."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (unlike Path's, it does not mind an unknown home)
