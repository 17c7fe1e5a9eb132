"""A device's memory, byte by byte: every block has bounds and guards, and knows which of its bytes were ever written.

Device blocks lie at addresses where this process has nothing, host and managed ones at their true addresses, so that
ctypes and numpy reach them as they would the real ones. Fresh memory is poison: NaN in every float. Addresses are
aligned to 256 bytes and to no more, and are never given out twice.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from tests.support.fake_faults import Faults

ALIGNMENT = 256
POISON = 0xFF
_GUARD = 0xA7
_GUARD_BYTES = 256
_FIRST_DEVICE_ADDRESS = 0x2000_0000_0000 + ALIGNMENT

Kind = Literal["device", "host", "managed"]
Bytes = npt.NDArray[np.uint8]


@dataclass(eq=False)
class Block:
    """One allocation.

    Attributes:
        base: its address.
        held: its bytes with the guards around them.
        written: of each byte, whether anything was written there; None where the host writes without being seen.
        device_base: where the device sees host memory that is mapped, 0 where it does not.
    """

    kind: Kind
    base: int
    size: int
    held: Bytes
    start: int
    written: npt.NDArray[np.bool_] | None
    device_base: int = 0
    freed: bool = False

    @property
    def content(self) -> Bytes:
        """The bytes themselves."""
        return self.held[self.start : self.start + self.size]

    @property
    def is_whole(self) -> bool:
        """Whether nothing was written beside it, nor in it since it was freed."""
        end = self.start + self.size
        guards = (self.held[self.start - _GUARD_BYTES : self.start], self.held[end : end + _GUARD_BYTES])
        is_kept = self.kind == "device" or not self.freed or bool((self.content == POISON).all())
        return is_kept and all(bool((guard == _GUARD).all()) for guard in guards)


@dataclass(frozen=True)
class Span:
    """Some bytes of a block, as one side sees them."""

    block: Block
    offset: int
    count: int
    what: str

    @property
    def content(self) -> Bytes:
        """The bytes themselves."""
        return self.block.content[self.offset : self.offset + self.count]

    def overlaps(self, other: Span) -> bool:
        """Whether any byte is in both."""
        apart = self.offset + self.count <= other.offset or other.offset + other.count <= self.offset
        return self.block is other.block and not apart and bool(self.count and other.count)


@dataclass
class Memory:
    """All blocks of a device and of the host memory that it knows.

    Attributes:
        size: bytes of the device; pinned memory is not counted.
    """

    faults: Faults
    size: int
    used: int = 0
    _bases: list[int] = field(default_factory=list)
    _blocks: list[tuple[Block, bool]] = field(default_factory=list)
    _next: int = _FIRST_DEVICE_ADDRESS

    def reserve(self, count: int) -> bool:
        """Take memory that nobody addresses: weights, say."""
        if self.used + count > self.size:
            return False
        self.used += count
        return True

    def release(self, count: int) -> None:
        """Give back what was reserved."""
        self.used -= count

    def allocate(self, kind: Kind, size: int, *, mapped: bool = False) -> Block | None:
        """A new block, None where the device is full."""
        if kind != "host" and not self.reserve(size):
            return None
        held, start = _guarded(size)
        true = held.ctypes.data + start
        base = self._device_address(size) if kind == "device" else true
        written = np.zeros(size, np.bool_) if kind == "device" else None
        block = Block(kind, base, size, held, start, written)
        self._add(base, block, is_device_side=kind != "host")
        if mapped:
            block.device_base = self._device_address(size)
            self._add(block.device_base, block, is_device_side=True)
        return block

    def free(self, kinds: tuple[Kind, ...], address: int) -> bool:
        """Give a block back; False where none of these kinds begins there."""
        block = self.block_at(address)
        if block is None or block.freed or block.kind not in kinds or block.base != address:
            return False
        self._require_whole(block)
        block.freed = True
        if block.kind == "device":
            block.held = np.empty(0, np.uint8)
        else:  # kept for as long as the fake: whoever still looks at it finds poison and no crash
            block.content[:] = POISON
        if block.kind != "host":
            self.release(block.size)
        return True

    def block_at(self, address: int) -> Block | None:
        """The block that holds this address, freed ones too."""
        found = self._entry(address)
        return found[0] if found else None

    def is_device_address(self, address: int) -> bool:
        """Whether the device reaches this address."""
        found = self._entry(address)
        return found is not None and found[1]

    def is_pinned_address(self, address: int) -> bool:
        """Whether this is the host's side of pinned memory."""
        found = self._entry(address)
        return found is not None and found[0].kind == "host" and not found[1]

    def span(self, address: int, count: int, what: str) -> Span | str:
        """These bytes, or why they cannot be had."""
        found = self._entry(address)
        if found is None:
            return f"{what}: nothing was allocated at {address:#x}"
        block, is_device_side = found
        if block.freed:
            return f"{what}: the memory at {address:#x} was freed"
        offset = address - (block.device_base if is_device_side and block.kind == "host" else block.base)
        if offset + count > block.size:
            return f"{what}: {count} bytes from {offset} on do not fit an allocation of {block.size} bytes"
        return Span(block, offset, count, what)

    def read(self, span: Span, *, whole: bool) -> tuple[Bytes, npt.NDArray[np.bool_] | None]:
        """A copy of the bytes and which of them are known to be written, None for all.

        Args:
            whole: refuse bytes that nothing has written.
        """
        self._require_live(span)
        written = span.block.written
        known = None if written is None else written[span.offset : span.offset + span.count]
        if whole and known is not None and not known.all():
            missing = int((~known).sum())
            raise self.faults.undefined(
                f"{span.what}: {missing} of {span.count} bytes were never written: they are poison"
            )
        return span.content.copy(), None if known is None else known.copy()

    def write(self, span: Span, content: Bytes, known: npt.NDArray[np.bool_] | None = None) -> None:
        """Write bytes, of which only those known are more than poison."""
        self._require_live(span)
        span.content[:] = content
        if span.block.written is not None:
            span.block.written[span.offset : span.offset + span.count] = True if known is None else known

    def check_guards(self) -> None:
        """Whether anything was written beside a block: by numpy, which knows nothing of these bounds."""
        for block, _ in self._blocks:
            self._require_whole(block)

    def leaks(self) -> list[str]:
        """What was not given back."""
        blocks = dict.fromkeys(block for block, _ in self._blocks if not block.freed)
        return [f"{block.size} bytes of {block.kind} memory were not freed" for block in blocks]

    def _require_live(self, span: Span) -> None:
        if span.block.freed:
            raise self.faults.undefined(f"{span.what}: its memory was freed before the work was done")

    def _require_whole(self, block: Block) -> None:
        if not block.is_whole:
            where = "in a freed block" if block.freed else "beside a block"
            raise self.faults.undefined(f"something was written {where} of {block.size} bytes of {block.kind} memory")

    def _device_address(self, size: int) -> int:
        address = self._next
        self._next = _odd_multiple(address + size + _GUARD_BYTES)
        return address

    def _add(self, base: int, block: Block, *, is_device_side: bool) -> None:
        at = bisect.bisect(self._bases, base)
        self._bases.insert(at, base)
        self._blocks.insert(at, (block, is_device_side))

    def _entry(self, address: int) -> tuple[Block, bool] | None:
        at = bisect.bisect(self._bases, address) - 1
        if at < 0 or address >= self._bases[at] + self._blocks[at][0].size:
            return None
        return self._blocks[at]


def _guarded(size: int) -> tuple[Bytes, int]:
    """Memory for a block and its guards, and where in it the block begins."""
    held = np.full(size + 2 * _GUARD_BYTES + 4 * ALIGNMENT, _GUARD, np.uint8)
    first = held.ctypes.data + _GUARD_BYTES
    start = _odd_multiple(first) - held.ctypes.data
    held[start : start + size] = POISON
    return held, start


def _odd_multiple(address: int) -> int:
    """The next address that is aligned to 256 bytes and to no more."""
    multiple = -(-address // ALIGNMENT)
    return (multiple | 1) * ALIGNMENT
