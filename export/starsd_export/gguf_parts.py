"""The files that a GGUF model is in, opened by the `gguf` library: one, or the parts that llama.cpp splits it into.

The first part holds what is said of the model, every part some of its tensors. The library believes every count that
a file states; here a count ends where the file does, and a header is no longer than a model's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy.typing as npt

from starsd_edge.errors import UsageError
from starsd_export.checkpoint_files import GgufFields, require_types

_MAGIC = b"GGUF"
_MOST_READS = 3_000_000
"""Numbers and texts of a header. A vocabulary of 260,000 pieces takes a million, as one of 130,000 with merges does."""
_PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MERGE = "or merge the parts with llama.cpp: `llama-gguf-split --merge FIRST-PART MERGED.gguf`"


class _Reader(gguf.GGUFReader):  # type: ignore[misc]
    """The library's reader, within the file's own bounds."""

    _reads = 0

    def _get(self, offset: int, dtype: npt.DTypeLike, count: int = 1, override_order: Any = None) -> npt.NDArray[Any]:
        self._reads += 1
        if self._reads > _MOST_READS:
            raise ValueError(f"its header has more than {_MOST_READS} values")
        found: npt.NDArray[Any] = super()._get(offset, dtype, count, override_order)
        if len(found) != int(count):
            raise ValueError("it ends before what its header announces")
        return found


def open_gguf(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """The fields of a file, each that is used of its own type, and the tensors of the library's reader.

    Raises:
        UsageError: no GGUF file, or a damaged one.
    """
    try:
        _require_magic(path)
        # The reader maps the file and builds a view per tensor, so a file that was cut short fails here.
        reader = _Reader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, OSError, OverflowError, RecursionError, TypeError) as error:
        raise UsageError(
            f"{path} is no whole GGUF file ({_one_line(error)}): fetch it again, or give a safetensors directory"
        ) from None
    return require_types(path, fields, GgufFields), list(reader.tensors)


def all_parts(path: Path, fields: Mapping[str, Any], own: list[Any]) -> list[Any]:
    """The tensors of all parts in order; the file's own where it is whole.

    Args:
        path: of the first part.
        fields: of it.
        own: its tensors.

    Raises:
        UsageError: another part than the first was given, or one is missing, of another model or in another place.
    """
    count = fields.get("split.count", 1)
    if count <= 1:
        return own
    place = _PART.fullmatch(path.name)
    if place is None or int(place["count"]) != count:
        raise UsageError(
            f"{path} is one of {count} parts of a model and not named so: give it the name that it had "
            f"(NAME-{1:05}-of-{count:05}.gguf), {_MERGE}"
        )
    if fields.get("split.no", 0) != 0 or int(place["number"]) != 1:
        raise UsageError(f"{path} is one of {count} parts of a model: give the first, {_part(path, place, 1).name}")
    tensors = list(own)
    for number in range(1, count):
        tensors += _read_part(_part(path, place, number + 1), number, count)
    names = [tensor.name for tensor in tensors]
    stated = fields.get("split.tensors.count")
    if stated is not None and stated != len(tensors):
        raise UsageError(
            f"the {count} parts of {path} hold {len(tensors)} tensors and should hold {stated}: fetch them again"
        )
    if len(set(names)) != len(names):
        raise UsageError(f"two parts of {path} hold a tensor of the same name: fetch them again")
    return tensors


def _read_part(path: Path, number: int, count: int) -> list[Any]:
    if not path.is_file():
        raise UsageError(f"{path} is missing, part {number + 1} of {count} of the model: put all parts side by side")
    fields, tensors = open_gguf(path)
    if fields.get("split.no") != number or fields.get("split.count") != count:
        raise UsageError(
            f"{path} says that it is part {fields.get('split.no', 0) + 1} of {fields.get('split.count', 1)} and not "
            f"{number + 1} of {count}, as its name does: fetch it again"
        )
    return tensors


def _part(path: Path, place: re.Match[str], number: int) -> Path:
    return path.with_name(f"{place['name']}-{number:05}-of-{int(place['count']):05}.gguf")


def _require_magic(path: Path) -> None:
    """The library finds out too late, in what it takes for tensors."""
    with path.open("rb") as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            raise UsageError(f"{path} is no GGUF file: give one, or a directory with config.json and safetensors")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
