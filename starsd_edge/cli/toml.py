"""TOML, by the standard library where that has it."""

from __future__ import annotations

import json
import math
import sys
import unicodedata
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TomlError = tomllib.TOMLDecodeError
"""Text that is not TOML; says what and where."""


def parse_toml(text: str) -> dict[str, Any]:
    """The tables.

    Raises:
        TomlError: it is not TOML.
    """
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except TomlError:
        raise
    except RecursionError:
        raise TomlError("it is nested too deeply") from None
    except ValueError as error:  # a number or date that Python cannot hold
        raise TomlError(str(error)) from None
    return tables


def toml_value(value: object) -> str:
    """A string, number, truth value or list of them as TOML writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # nan, inf, -inf
    written = json.dumps(value, ensure_ascii=False)
    # Beyond JSON's own, TOML wants DEL escaped, and a terminal the rest of the control characters.
    return "".join(f"\\u{ord(each):04x}" if unicodedata.category(each) == "Cc" else each for each in written)
