"""When a connection counts as dead, at either end.

Whatever arrives is a sign of life, so a slow link that works is never cut: a pong may wait behind rows for as long as
it takes to send them. What is to be sent has to move, too: a peer that sends and reads nothing would fill the memory.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

SILENT_HEARTBEATS = 2
"""Heartbeats without a byte after which a connection is dead."""
UNSENT_BYTES = 16 << 10
"""Bytes for the socket option TCP_NOTSENT_LOWAT: the kernel takes in no more than these beyond what is on its way, so
that what waits is seen to move.
"""
_LOOKS = 8
"""How often a connection is looked at within the shorter of its two limits."""


class Transport(Protocol):
    """What has to be known of an asyncio transport."""

    def get_write_buffer_size(self) -> int:
        """Bytes that wait to be sent."""

    def is_reading(self) -> bool:
        """Whether what arrives is taken in."""


class Liveness:
    """The signs of life of one connection, looked at every `look_s`; `now` in seconds on a monotonic clock.

    Args:
        silent_s: it is dead once nothing has arrived for so long.
        stuck_s: it is dead once nothing of what waits to be sent has left for so long.
    """

    def __init__(self, silent_s: float, stuck_s: float, now: float) -> None:
        self._silent_s = silent_s
        self._stuck_s = stuck_s
        self._arrived_at = self._left_at = self._looked_at = now
        self._waiting = 0

    @property
    def look_s(self) -> float:
        """Time between two looks."""
        return min(self._silent_s, self._stuck_s) / _LOOKS

    def arrived(self, now: float) -> None:
        """Bytes came."""
        self._arrived_at = now

    def left(self, now: float) -> None:
        """A message is on its way, or all but what the buffers may hold."""
        self._left_at = now

    def look(self, waiting_bytes: int, is_reading: bool, now: float) -> str | None:
        """Why the connection is dead, None while it is not.

        Args:
            waiting_bytes: still to be sent. More than before is no sign of life: answers to pings add to it.
            is_reading: whether what arrives is taken in; while it is not, silence says nothing.
        """
        stood_still_s = now - self._looked_at - 2 * self.look_s
        if stood_still_s > 0:  # this end did, and the other cannot help it
            self._arrived_at += stood_still_s
            self._left_at += stood_still_s
        self._looked_at = now
        if not is_reading:
            self._arrived_at = now
        if waiting_bytes == 0 or waiting_bytes < self._waiting:
            self._left_at = now
        self._waiting = waiting_bytes
        if now - self._left_at > self._stuck_s:
            return f"it took nothing in for {self._stuck_s:g} s"
        return f"nothing came from it for {self._silent_s:g} s" if now - self._arrived_at > self._silent_s else None


async def until_dead(liveness: Liveness, transport: Transport) -> str:
    """Wait until the connection is dead; why it is. On the event loop's own clock."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(liveness.look_s)
        why = liveness.look(transport.get_write_buffer_size(), transport.is_reading(), loop.time())
        if why is not None:
            return why
