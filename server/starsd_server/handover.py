"""Results on their way from the drafting thread to the event loop, on a thread of their own.

Waking the loop means a system call, during which the interpreter is free, and it is the loop that takes it: the
drafting thread would wait for it while work waits. Here it only lays the result down, and the loop is woken while the
next pass runs outside the interpreter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from starsd_server.worker import Done


class Handover:
    """Passes on what is laid down, in order.

    Args:
        pass_on: called on this object's thread; must not block.
    """

    def __init__(self, pass_on: Callable[[Done], None]) -> None:
        self._pass_on = pass_on
        self._laid_down: SimpleQueue[Done | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="handover", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def put(self, done: Done) -> None:
        """Lay a result down; takes about a microsecond."""
        self._laid_down.put(done)

    def stop(self) -> None:
        """Pass on what lies there, and end."""
        self._laid_down.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (done := self._laid_down.get()) is not None:
            self._pass_on(done)
