"""Where configuration files lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SYSTEM_FILE = Path("/etc/starsd-edge/config.toml")


def usual_files(environment: Mapping[str, str]) -> list[Path]:
    """Where files are looked for, the one that goes before the other last."""
    xdg = Path(environment.get("XDG_CONFIG_HOME", ""))
    if not xdg.is_absolute():  # the XDG rules say to ignore a relative one
        xdg = Path(expanded("~/.config"))
    return [SYSTEM_FILE, *([xdg / "starsd-edge" / "config.toml"] if xdg.is_absolute() else [])]


def is_there(file: Path) -> bool:
    """Whether there is such a file, as far as this user may know."""
    try:
        return file.exists()
    except (OSError, ValueError):  # a directory that may not be entered, a name that no file can have
        return False


def expanded(path: str) -> str:
    """A path with a home directory in the place of its ~; as it is where nobody knows that directory."""
    return os.path.expanduser(path)  # noqa: PTH111 (unlike Path's, it does not mind an unknown home)


def described(file: Path) -> str:
    """A path as people write it, with ~ for their home directory."""
    home = expanded("~")
    text = str(file)
    return f"~{text.removeprefix(home)}" if text.startswith(f"{home}/") else text
