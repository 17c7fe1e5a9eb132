"""Threads that take turns in made-up time: one of them runs at a time, and time passes only while all of them wait.

So code that blocks can be run in simulated time as it is, and every run of it is the same.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from itertools import count


class _OverError(Exception):
    """Ends a thread that waits for what will not come any more."""


class Bell:
    """Ends the wait of the one thread that waits with it, if any does."""

    def __init__(self) -> None:
        self.ring: Callable[[], None] = _nobody_waits


class VirtualTime:
    """The clock, in seconds, and everything that is due. Use it as a context: at its end all threads end."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._own_turn = _taken()
        self._turns: dict[int, threading.Lock] = {}
        self._threads: list[tuple[threading.Thread, threading.Lock]] = []
        self._fault: BaseException | None = None
        self._over = False

    def __enter__(self) -> VirtualTime:
        return self

    def __exit__(self, *exception: object) -> None:
        self._over = True
        for thread, turn in self._threads:
            if thread.is_alive():
                turn.release()
                thread.join()

    def __call__(self) -> float:
        """Now."""
        return self.now

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Do this then, after everything else that is due at the same time."""
        heapq.heappush(self._due, (when, next(self._order), what))

    def start(self, run: Callable[[], None]) -> None:
        """Run this on a thread of its own, from now on."""
        turn = _taken()
        thread = threading.Thread(target=self._run, args=(run, turn), daemon=True)
        self._threads.append((thread, turn))
        thread.start()
        self.at(self.now, lambda: self._give(turn))

    def wait(self, until: float, bell: Bell | None = None) -> None:
        """On such a thread: let time pass until then, or until the bell rings."""
        turn = self._turns[threading.get_ident()]
        woken = False

        def wake() -> None:
            nonlocal woken
            if not woken:
                woken = True
                self._give(turn)

        self.at(until, wake)
        if bell is not None:
            bell.ring = lambda: self.at(self.now, wake)
        self._own_turn.release()
        turn.acquire()
        if bell is not None:
            bell.ring = _nobody_waits
        if self._over:
            raise _OverError

    def run(self, until: float) -> None:
        """Let time pass until then. What a thread raises is raised here."""
        while self._due and self._due[0][0] <= until:
            self.now, _, what = heapq.heappop(self._due)
            what()
        self.now = until

    def _run(self, run: Callable[[], None], turn: threading.Lock) -> None:
        self._turns[threading.get_ident()] = turn
        turn.acquire()
        if self._over:
            return
        try:
            run()
        except _OverError:
            return
        except BaseException as fault:
            self._fault = fault
        self._own_turn.release()

    def _give(self, turn: threading.Lock) -> None:
        turn.release()
        self._own_turn.acquire()
        if self._fault is not None:
            raise self._fault


def _taken() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def _nobody_waits() -> None:
    """What comes while nobody waits is found later."""
