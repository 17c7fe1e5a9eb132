"""The hub's bearer token, read from a file: never from an argument, which other users of the machine can see."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from starsd_edge.errors import UsageError

_MAX_BYTES = 4096


def read_token(path: Path) -> str:
    """The one token in a file that only its owner can read.

    Raises:
        UsageError: the file cannot be read, can be read by others, or does not hold one token.
    """
    try:
        with path.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"token file {path} cannot be read: {error.strerror}") from None
    if stat.S_IMODE(mode) & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"token file {path} is open to other users of this machine: chmod 600 {path}")
    token = data.decode("ascii", errors="replace").strip()
    if not token:
        raise UsageError(f"token file {path} is empty: make a token with `(umask 077; openssl rand -hex 32 > {path})`")
    if len(data) > _MAX_BYTES or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(f"token file {path} must hold one token of printable ASCII without spaces, and nothing else")
    return token
