"""Passes of one shape as one launch: a CUDA graph in the place of some hundred launches from the host.

Only passes whose shapes and addresses stay can be recorded: those of the `inplace` strategy, whose caches have a fixed
size. The rule: a shape that passes of one sequence come to for the third time is recorded, up to eight of them. A
recording is used only if its outputs are those of the plain pass, bit for bit, and has a context of its own, which
nothing changes any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from starsd_edge.errors import EngineError
from starsd_jetson.tensorrt.contexts import Context
from starsd_jetson.tensorrt.device import Device, Launchable

_RECORDED_AT = 3
_MOST = 8
log = logging.getLogger(__name__)

Key = tuple[int, int]
"""Tokens and rows with logits of a pass."""
Outputs = list[npt.NDArray[np.generic]]


@dataclass(frozen=True)
class _Recording:
    """A graph, and the context that it was recorded from."""

    context: Context
    launchable: Launchable


class CapturedPasses:
    """Those over the caches of one sequence."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._seen: dict[Key, int] = {}
        self._recorded: dict[Key, _Recording | None] = {}

    def run(self, key: Key) -> bool:
        """Launch the pass of this shape; whether there is a recording of it."""
        recording = self._recorded.get(key)
        if recording is None:
            return False
        self._device.launch(recording.launchable)
        return True

    def is_due(self, key: Key) -> bool:
        """Count a pass of this shape; whether it shall be recorded."""
        if key in self._recorded or len(self._recorded) == _MOST:
            return False
        self._seen[key] = self._seen.get(key, 0) + 1
        return self._seen[key] == _RECORDED_AT

    def record(self, key: Key, context: Context, outputs: Callable[[], Outputs]) -> None:
        """Run a pass plainly and record it.

        Args:
            context: of its own, with addresses and shapes set.
            outputs: waits for the pass and gives what came of it.
        """
        context.enqueue()  # the first pass after a change of shapes must not be the recorded one
        plain = outputs()
        try:
            recording = self._record(context)
            self._device.launch(recording.launchable)
            again = outputs()
            same = all(np.array_equal(*pair) for pair in zip(plain, again, strict=True))
        except EngineError as error:
            log.warning("passes of %d tokens are not recorded: %s", key[0], error)
            recording, same = None, True
        if not same:
            log.warning("passes of %d tokens are not recorded: the recording gives other numbers", key[0])
            recording = None
        self._recorded[key] = recording
        if recording is None:
            context.enqueue()  # whatever went wrong, the pass itself has to stand

    def _record(self, context: Context) -> _Recording:
        if not context.can_be_recorded():
            raise EngineError("the library says that they cannot be")
        self._device.begin_capture()
        try:
            context.enqueue()
        except EngineError:
            self._abandon()
            raise
        return _Recording(context, self._device.end_capture())

    def _abandon(self) -> None:
        try:
            self._device.end_capture()
        except EngineError as error:
            log.debug("the recording ends: %s", error)
