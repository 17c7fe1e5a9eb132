"""Keys with terms of their own, from a TOML file: a table for each.

    [kitchen]
    token-file = "kitchen.token"     # beside this file
    weight = 3
    priority = 1

As in the configuration there is no key for a secret, only for the path of the file that holds it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from starsd_edge.cli.token_file import read_token
from starsd_edge.cli.toml import TomlError, parse_toml
from starsd_edge.errors import UsageError

if TYPE_CHECKING:
    from starsd_server.keys import HubKey


class _Table(msgspec.Struct, rename="kebab", forbid_unknown_fields=True):
    token_file: str
    weight: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    priority: Annotated[int, Meta(ge=-9, le=9)] = 0


def read_keys(path: Path) -> tuple[HubKey, ...]:
    """The keys of a file.

    Raises:
        UsageError: it cannot be read, says something else than what is above, or two keys have one token.
    """
    from starsd_server.keys import HubKey
    from starsd_server.scheduling.contract import KeyTerms

    try:
        tables = msgspec.convert(parse_toml(path.read_text(encoding="utf-8")), dict[str, _Table])
    except OSError as error:
        raise UsageError(f"the keys in {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}): convert it") from None
    except TomlError as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    except msgspec.ValidationError as error:
        hint = "a key is a table like [NAME] with token-file, weight and priority"
        raise UsageError(f"{path} does not fit: {error}; {hint}") from None
    keys: dict[str, HubKey] = {}
    for name, table in tables.items():
        token = read_token(path.parent / Path(table.token_file).expanduser())
        if token in keys:
            raise UsageError(f"[{name}] in {path} has the token of a key before it: give each its own")
        keys[token] = HubKey(token, KeyTerms(table.weight, table.priority))
    if not keys:
        raise UsageError(f"there is no key in {path}: write a table like [NAME] with a token-file")
    return tuple(keys.values())
