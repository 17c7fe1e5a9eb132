"""The plans that the fake TensorRT runs: what an engine says of itself, and the name of a program.

A plan is one line that names the format and one of JSON. It holds no weights: those stay in the file that its program
names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

_MAGIC = b"fake plan 1\n"

Shape = tuple[int, ...]


class PlanTensor(msgspec.Struct, frozen=True):
    """An input or an output. Dimensions that a pass chooses have a name, the same wherever they have to agree."""

    name: str
    is_input: bool
    dtype: str
    """As `DataType` calls it."""
    shape: tuple[int | str, ...]

    @property
    def is_dynamic(self) -> bool:
        """Whether a pass chooses any of its dimensions."""
        return any(isinstance(size, str) for size in self.shape)


class Plan(msgspec.Struct, frozen=True):
    """What a plan says."""

    library: str
    version: str
    compute_capability: str
    program: str
    """See `open_program`."""
    tensors: list[PlanTensor]
    profiles: list[dict[str, tuple[Shape, Shape, Shape]]]
    """Smallest, usual and largest shape of each dynamic input."""
    aliases: dict[str, str] = {}
    """Outputs that lie where an input lies."""
    activation_bytes: int = 4096
    """Memory that a context works in."""
    weight_bytes: int = 4096

    def tensor(self, name: str) -> PlanTensor | None:
        """An input or an output by its name."""
        return next((tensor for tensor in self.tensors if tensor.name == name), None)


def encode_plan(plan: Plan) -> bytes:
    """What lies in a plan's file."""
    return _MAGIC + msgspec.json.encode(plan)


def decode_plan(content: bytes) -> Plan:
    """What a plan's file says.

    Raises:
        ValueError: it is no plan, or a part of one.
    """
    if not content.startswith(_MAGIC):
        raise ValueError("the magic tag does not match")
    return msgspec.json.decode(content[len(_MAGIC) :], type=Plan)


def bind_dimensions(tensors: Sequence[PlanTensor], shapes: Mapping[str, Shape]) -> dict[str, int]:
    """The sizes of all named dimensions, from the shapes of the inputs that are known.

    Raises:
        ValueError: two inputs do not agree.
    """
    sizes: dict[str, int] = {}
    for tensor in tensors:
        for part, size in zip(tensor.shape, shapes.get(tensor.name, ()), strict=False):
            if isinstance(part, str) and sizes.setdefault(part, size) != size:
                raise ValueError(f"{part} is {size} in {tensor.name} and {sizes[part]} elsewhere")
    return sizes


def sized(tensor: PlanTensor, sizes: Mapping[str, int]) -> Shape:
    """A tensor's shape, -1 where its size is not known yet."""
    return tuple(sizes.get(part, -1) if isinstance(part, str) else part for part in tensor.shape)


def count_of(shape: Sequence[int]) -> int:
    """Numbers in a tensor of this shape."""
    return math.prod(shape)
