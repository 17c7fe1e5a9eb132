"""Processes that this one starts must not outlive it."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(how: signal.Signals = signal.SIGKILL) -> None:
    """In a new child, before its program runs (`preexec_fn`): let the kernel send it `how` when its parent ends.

    "Parent" is the thread that started it, so children are started from a thread that lives as long as they should.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, how)
