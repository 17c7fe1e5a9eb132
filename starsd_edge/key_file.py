"""Bearer tokens, read from a file: never from an argument, which other users of the machine can see."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from starsd_edge.errors import UsageError

_MAX_BYTES = 64 << 10
_TOKEN_BYTES = 32
"""Random bytes of a new token: 256 bits, which cannot be found by trying."""
_LONGEST_TOKEN = 4096
"""Characters; what is longer is another file, and would not fit an HTTP header."""


def read_token(path: Path) -> str:
    """The one token in a file that only its owner can read.

    Raises:
        UsageError: the file cannot be read, can be read by others, or does not hold one token.
    """
    token = _read(path).strip()
    if not token:
        raise UsageError(f"token file {path} is empty: make a token with `(umask 077; openssl rand -hex 32 > {path})`")
    if not _is_token(token):
        raise UsageError(f"token file {path} must hold one token of printable ASCII without spaces, and nothing else")
    return token


def make_token(path: Path) -> bool:
    """Write a new token into a file that only its owner can read, unless there is one; whether it was written.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(f"token file {path} cannot be written: {error.strerror}") from None
    with os.fdopen(file, "w") as stream:
        stream.write(f"{secrets.token_hex(_TOKEN_BYTES)}\n")
    return True


def read_tokens(path: Path) -> tuple[str, ...]:
    """The tokens in a file that only its owner can read, a line each; empty lines and those that begin with # are left
    out.

    Raises:
        UsageError: the file cannot be read, can be read by others, or a line of it is no token.
    """
    lines = [line.strip() for line in _read(path).split("\n")]
    tokens = tuple(line for line in lines if line and not line.startswith("#"))
    if not tokens:
        raise UsageError(f"token file {path} holds no key: add one with `openssl rand -hex 32 >> {path}`")
    for token in tokens:
        if not _is_token(token):
            raise UsageError(
                f"line {lines.index(token) + 1} of token file {path} must be one key of printable ASCII without spaces"
            )
    return tokens


def _read(path: Path) -> str:
    """The text of a file that only its owner can read; what is no ASCII shows as such."""
    try:
        with path.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"token file {path} cannot be read: {error.strerror}") from None
    if stat.S_IMODE(mode) & _bits_of_others(path):
        raise UsageError(f"token file {path} is open to other users of this machine: chmod 600 {path}")
    if len(data) > _MAX_BYTES:
        raise UsageError(f"token file {path} is larger than {_MAX_BYTES} bytes: it must hold tokens, and nothing else")
    return data.decode("ascii", errors="replace")


def _is_token(text: str) -> bool:
    return len(text) <= _LONGEST_TOKEN and text.isascii() and text.isprintable() and " " not in text


def _bits_of_others(path: Path) -> int:
    """Bits of a file's mode that let others read it.

    A credential that systemd hands to a unit is readable for the unit's user through an access list, which shows in the
    place of the group; nobody else can enter its directory.
    """
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    if credentials and path.parent == Path(credentials):
        return stat.S_IRWXO
    return stat.S_IRWXG | stat.S_IRWXO
