"""Stopping an answer at chosen places, so that a test acts in its middle and never by the clock."""

from __future__ import annotations

import asyncio
import threading

from starsd_jetson.decoder import Piece

_HANG_S = 60.0


class Pace:
    """Give `on_piece` to the decode loop; the other methods belong to the test's event loop."""

    def __init__(self, stop_at: int) -> None:
        """The answer stops at the first round's end with so many tokens."""
        self.tokens = 0
        self._limit: int | None = stop_at
        self._changed = threading.Condition()
        self._standing = False

    def on_piece(self, piece: Piece) -> None:
        """Count tokens and stand still at the limit."""
        with self._changed:
            self.tokens += len(piece.tokens)
            self._standing = True
            self._changed.notify_all()
            assert self._changed.wait_for(self._may_go, _HANG_S), "nobody lets the answer go on"
            self._standing = False

    async def standing(self) -> None:
        """Wait until the answer stands still."""
        await asyncio.to_thread(self._wait_standing)

    def go(self, more: int | None = None) -> None:
        """Let it go on for so many tokens, or to its end."""
        with self._changed:
            self._limit = None if more is None else self.tokens + more
            self._changed.notify_all()

    def _may_go(self) -> bool:
        return self._limit is None or self.tokens < self._limit

    def _wait_standing(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._standing and not self._may_go(), _HANG_S), "the answer stalled"
