"""Results on their way from the drafting thread to the event loop, on a thread of their own.

Waking the event loop is a system call. During it the interpreter is free, and the loop takes it: the drafting thread
would then have to wait for the interpreter although work waits. So the drafting thread only puts the result into a
queue, and this thread wakes the loop while the next pass runs outside the interpreter.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from starsd_server.worker import Done

log = logging.getLogger(__name__)


class Handover:
    """Passes results on in the order in which they were put in.

    Args:
        pass_on: called on this object's thread; must not block.
        died: called on this object's thread when it ends without having been asked to.
    """

    def __init__(self, pass_on: Callable[[Done], None], died: Callable[[], None]) -> None:
        self._pass_on = pass_on
        self._died = died
        self._laid_down: SimpleQueue[Done | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="handover", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def put(self, done: Done) -> None:
        """Put a result in; takes about a microsecond."""
        self._laid_down.put(done)

    def stop(self) -> None:
        """Pass on the results that wait, and end the thread."""
        self._laid_down.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (done := self._laid_down.get()) is not None:
                self._pass_on(done)
        except BaseException:
            log.exception("the thread that hands drafts over ended by a fault of its own")
            self._died()
