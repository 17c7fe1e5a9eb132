"""Where fetched models and exported bundles lie on this machine.

$STARSD_CACHE, else $XDG_CACHE_HOME/starsd-edge, else ~/.cache/starsd-edge
    models/<name>/     checkpoints fetched by `pull`
    bundles/<name>/    what `export` wrote
    engines/<name>/    what `export --engine` built
    verify-curves/     what `bench verify` and `doctor --network` measured
    traces/            what `bench trace` recorded
    own-text/          what models wrote for the search of int4 scales
    matplotlib/        matplotlib's list of fonts
"""

from __future__ import annotations

import os
from pathlib import Path

from starsd_edge.errors import BundleError, UsageError, did_you_mean

MANIFEST_NAME = "manifest.json"
"""The file that makes a directory a bundle."""
_BUNDLES_OF_A_MODEL = {"fp32": "--weights fp32", "int8": "--weights int8", "eagle-int8": "--draft-head shipped"}
"""The usual ones: the end of the name, and the options that make it."""
CACHE_VARIABLE = "STARSD_CACHE"
FONTS = "matplotlib"


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


def engines_dir() -> Path:
    """Directory of the engines that were built."""
    return cache_dir() / "engines"


def fonts_dir() -> Path:
    """Directory of matplotlib's list of fonts, which else goes into places of its own in the home directory."""
    return cache_dir() / FONTS


def find_bundle(name_or_path: str) -> Path:
    """The directory of a bundle: a path is used as it is, anything else is a name under `bundles_dir()`.

    Raises:
        BundleError: there is no bundle of that name and no directory there.
    """
    path = _expanded(name_or_path)
    is_name = not _is_written_as_path(name_or_path)
    if is_name and not (path / MANIFEST_NAME).exists() and (bundles_dir() / name_or_path).is_dir():
        return bundles_dir() / name_or_path
    if path.is_dir():
        return path
    raise BundleError(_why_no_bundle(name_or_path, path, is_name))


def _why_no_bundle(given: str, path: Path, is_name: bool) -> str:
    """Told from what was given: often the model in the place of what is made of it."""
    if (path.parent / MANIFEST_NAME).exists() and path.is_file():
        return f"{path} is a file of a bundle: give its directory, {path.parent}"
    if path.is_file():
        return f"{path} is a file, and a bundle is a directory: `starsd-edge export {path}` makes one of a model"
    if given.startswith("hf:"):
        return f"{given} is a model and no bundle: `starsd-edge export {given}` makes one of it"
    if not is_name:
        return f"no bundle at {path}: give the directory that `starsd-edge export` wrote"
    names = bundle_names()
    known = f"no bundle named {given!r} (here: {', '.join(names) or 'none yet'})"
    command = _how_to_make(given)
    if command:
        return f"{known}: `{command}` makes it"
    meant = did_you_mean(given, names)
    return f"no bundle named {given!r}{meant}" if meant else f"{known}: make one with `starsd-edge export`"


def _how_to_make(name: str) -> str:
    """The command for a bundle of this name that a user finds in the README; "" for another."""
    from starsd_edge.bundles.catalogue import CATALOGUE  # which knows this module

    commands = {
        f"{model}-{suffix}": f"starsd-edge export {model} {options}"
        for model in CATALOGUE
        for suffix, options in _BUNDLES_OF_A_MODEL.items()
    }
    return commands.get(name, "")


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
