"""Frames gone wrong: bytes changed blindly, and fields replaced by what a hostile peer would try."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import msgspec
import numpy as np

HOSTILE: list[object] = [
    None,
    True,
    -1,
    0,
    1,
    255,
    (1 << 31) - 1,
    1 << 31,
    (1 << 62) - 1,
    (1 << 63) - 1,
    -(1 << 63),
    1.5,
    float("nan"),
    float("inf"),
    "",
    "x" * 5000,
    "\x1b[2J",
    b"",
    b"\xff" * 16,
    b"\0" * 40,
    [],
    [0],
    [-1, 0, 1, 2],
    [3, 2, 1, 0],
    [-1, -1, -1],
    [999, 1000, 1 << 30],
    list(range(2000)),
    ["f2", [2, 8], b"\0" * 32, None],
    ["f2", [2, 8], b"\x00\x7c" * 16, None],
    ["i1", [2, 8], b"\0" * 16, b"\x01\x3c\xff\xff"],
    ["i1", [2, 8], b"\x7f" * 16, b"\xff\x7b" * 2],
    ["i1", [2, 8], b"\0" * 16, b"\x00\x7c" * 2],
    ["f2", [(1 << 31) - 1, (1 << 31) - 1], b"", None],
    ["f4", [1, 1], b"\0\0\0\0", None],
    {},
    {"a": [1]},
    [[[[[[[[]]]]]]]],
]


def mutate_bytes(frame: bytes, random: np.random.Generator) -> bytes:
    """The frame after one to four blind changes."""
    data = bytearray(frame)
    for _ in range(random.integers(1, 5)):
        at = int(random.integers(0, len(data) + 1))
        change = int(random.integers(0, 6))
        if change == 0:
            data.insert(at, int(random.integers(0, 256)))
        elif change == 1:
            del data[at:]
        elif change == 2:
            data[at:at] = data[: int(random.integers(0, 20))]
        elif at < len(data):
            if change == 3:
                data[at] = int(random.integers(0, 256))
            elif change == 4:
                data[at] ^= 1 << int(random.integers(0, 8))
            else:
                del data[at]
    return bytes(data)


def mutate_fields(frame: bytes, random: np.random.Generator) -> bytes:
    """The frame with one or two fields, or fields of fields, replaced, left out or doubled."""
    fields = msgspec.msgpack.decode(frame)
    for _ in range(random.integers(1, 3)):
        holder = fields
        at = int(random.integers(0, len(holder)))
        if isinstance(holder[at], list) and holder[at] and random.random() < 0.5:
            holder = holder[at]
            at = int(random.integers(0, len(holder)))
        change = int(random.integers(0, 8))
        if change == 0:
            holder.insert(at, deepcopy(holder[at]))
        elif change == 1 and len(holder) > 1:
            del holder[at]
        elif change == 2 and isinstance(holder[at], int):
            holder[at] = max(0, holder[at] + int(random.integers(-2, 3))) % (1 << 63)
        else:
            holder[at] = deepcopy(HOSTILE[int(random.integers(0, len(HOSTILE)))])
    return msgspec.msgpack.encode(fields)


Mutator = Callable[[bytes, np.random.Generator], bytes]

MUTATORS: list[Mutator] = [mutate_bytes, mutate_fields]
