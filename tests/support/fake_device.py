"""A GPU that is none: its memory, its streams, what it says of itself, and everything that was refused on it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TypeVar

from tests.support.fake_faults import Faults
from tests.support.fake_memory import Memory, Span
from tests.support.fake_streams import Event, Graph, Scheduler, Stream, Work

_FIRST_HANDLE = 0x51A0
_HANDLE_STEP = 0x10

Held = TypeVar("Held", Stream, Event, Graph)


@dataclass(frozen=True)
class DeviceTraits:
    """What kind of device.

    Attributes:
        memory_bytes: all that it has.
        compute_capability: major and minor.
        is_integrated: it shares its memory with the processor, as Jetsons do.
        has_driver: False for a machine where the libraries are installed and nothing is behind them.
        driver, runtime: versions of CUDA, as it counts them (12060 is 12.6). A driver refuses a newer runtime.
    """

    memory_bytes: int = 1 << 30
    compute_capability: tuple[int, int] = (8, 7)
    is_integrated: bool = False
    has_driver: bool = True
    driver: int = 12060
    runtime: int = 12060


class FakeDevice:
    """One device; what the fakes of cuda-python and TensorRT both act on."""

    def __init__(self, traits: DeviceTraits | None = None) -> None:
        self.traits = traits or DeviceTraits()
        self.faults = Faults()
        self.memory = Memory(self.faults, self.traits.memory_bytes)
        self.scheduler = Scheduler(self.memory.check_guards)
        self._workplaces: list[tuple[Span, Work]] = []
        self._numbers = itertools.count(_FIRST_HANDLE, _HANDLE_STEP)
        self._held: dict[int, Stream | Event | Graph] = {}

    @property
    def name(self) -> str:
        """Of its compute capability, like "sm87"."""
        major, minor = self.traits.compute_capability
        return f"sm{major}{minor}"

    def number(self) -> int:
        """A new handle."""
        return next(self._numbers)

    def hold(self, number: int, thing: Held) -> Held:
        """Keep a thing under its handle."""
        self._held[number] = thing
        return thing

    def held(self, kind: type[Held], number: int) -> Held | None:
        """What a handle of this kind stands for, None for nothing, or for nothing any more."""
        found = self._held.get(number)
        return found if isinstance(found, kind) else None

    def drop(self, number: int) -> None:
        """A handle that is worth nothing from now on."""
        del self._held[number]

    def stream(self, number: int) -> Stream | None:
        """A stream that is not destroyed; 0 is the default one."""
        return self.scheduler.default if number == 0 else self.held(Stream, number)

    def spoil_captures(self, what: str) -> bool:
        """Whether something is being captured, which this call forbids and ends."""
        captures = self.scheduler.capturing
        for capture in captures:
            capture.spoilt = True
        if captures:
            self.faults.note(f"{what} while a stream is being captured")
        return bool(captures)

    def work_at(self, place: Span, work: Work) -> None:
        """A pass that works in this memory was queued."""
        self._workplaces.append((place, work))

    def require_free(self, place: Span, stream: Stream) -> None:
        """Whether no pass that is not done works in this memory on another stream."""
        self._workplaces = [(there, work) for there, work in self._workplaces if not work.done]
        if any(there.overlaps(place) and work.stream is not stream for there, work in self._workplaces):
            raise self.faults.undefined("two passes on two streams work in one place")

    def leaks(self) -> list[str]:
        """What was not given back, or not waited for."""
        open_streams = [thing for thing in self._held.values() if isinstance(thing, Stream)]
        handles = [f"{len(open_streams)} streams were not destroyed"] if open_streams else []
        pending = [f"nobody waited for {what}" for what in self.scheduler.pending]
        return [*self.memory.leaks(), *handles, *pending]
