"""A hub's session from one answer to the next: a chat's next prompt begins with most of what the hub was sent.

A session only ever grows. So it goes on where the new text begins with all the rows it was given; where the text turns
off before their end (another first word, an answer tokenised otherwise, turns left out) a new one begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from starsd_edge.protocol.target_side import DraftArrived
from starsd_edge.speculation.tree import DraftShape
from starsd_jetson.hub_drafting import Asked, OpenChannel


class KeptChannels:
    """Opens channels, each for one answer after the other, and no more than a number of them.

    Args:
        open_channel: begins a session.
        most: sessions that may be open, those between two answers included. Asked each time: a hub says it when it
            accepts the target.
    """

    def __init__(self, open_channel: OpenChannel, most: Callable[[], int] = lambda: 1) -> None:
        self._open_channel = open_channel
        self._most = most
        self._channels: list[KeptChannel] = []
        """The one that was opened for an answer longest ago first."""

    def open(self, prompt: Sequence[int], sampling_kind: str) -> KeptChannel | None:
        """A channel for the next answer: one that goes on where this prompt does, or a new one in the place of the one
        not used for longest; None while as many answers as there may be sessions have one.
        """
        idle = [channel for channel in self._channels if channel.is_idle]
        going_on = [channel for channel in idle if channel.fits(prompt, sampling_kind)]
        channel = max(going_on, key=lambda each: each.rows, default=None)
        if channel is not None:
            self._channels.remove(channel)
            channel.resume(prompt)
        else:
            for each in idle[: max(0, len(self._channels) + 1 - self._most())]:
                each.end()
                self._channels.remove(each)
            if len(self._channels) >= self._most():
                return None
            channel = KeptChannel(self._open_channel, prompt, sampling_kind)
        self._channels.append(channel)
        return channel

    def close(self) -> None:
        """No answer follows: the hub may free what it holds."""
        for channel in self._channels:
            channel.end()
        self._channels.clear()


class KeptChannel:
    """A `DraftChannel` that stays open when it is closed, for another answer.

    Attributes:
        is_idle: no answer uses it.
    """

    def __init__(self, open_channel: OpenChannel, prompt: Sequence[int], sampling_kind: str) -> None:
        self.is_idle = False
        self._open_channel = open_channel
        self._prompt = prompt
        self._opened_for = prompt
        """The prompt that the session was opened with."""
        self._sampling_kind = sampling_kind
        self._channel = open_channel(prompt, sampling_kind)
        self._ids: list[int] = []
        """Token ids of all rows that the session was given."""
        self._again: list[tuple[Sequence[int], npt.NDArray[np.float16] | None]] = []
        """Rows of this answer, while the session holds all of them already. A new session is given them if the text
        differs from what the session holds.
        """
        self._agreed = 0
        """Number of rows of this answer that the session holds already."""

    @property
    def rows(self) -> int:
        """Rows that the session was given."""
        return len(self._ids)

    def fits(self, prompt: Sequence[int], sampling_kind: str) -> bool:
        """Whether the answer to this prompt can go on in the session."""
        if sampling_kind != self._sampling_kind:
            return False
        if len(self._ids) < len(self._opened_for) - 1:  # cancelled before all of it was there
            return list(prompt[: len(self._opened_for)]) == list(self._opened_for)
        known = min(len(prompt) - 1, len(self._ids))
        return prompt[0] == self._prompt[0] and list(prompt[1 : known + 1]) == self._ids[:known]

    def resume(self, prompt: Sequence[int]) -> None:
        """Begin another answer, to a prompt that fits."""
        self.is_idle = False
        self._prompt = prompt
        self._channel.wait(0)  # what came after the last answer is for no one
        self._again, self._agreed = [], 0

    @property
    def pending(self) -> int | None:
        """See `DraftChannel`."""
        return self._channel.pending

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        """See `DraftChannel`; rows that the session has are not given to it again."""
        known = min(len(ids), len(self._ids) - self._agreed)
        if list(ids[:known]) != self._ids[self._agreed : self._agreed + known]:
            self._begin_anew()
            known = 0
        if known:
            self._again.append((ids[:known], None if features is None else features[:known]))
            self._agreed += known
        if len(ids) > known:
            self._give(ids[known:], None if features is None else features[known:])

    def extend(self) -> None:
        """See `DraftChannel`."""
        if self._agreed == len(self._ids):
            self._channel.extend()

    def request(self, shape: DraftShape) -> Asked | None:
        """See `DraftChannel`."""
        if self._agreed < len(self._ids):  # the text ends before what the session holds
            self._begin_anew()
        return self._channel.request(shape)

    def wait(self, timeout_s: float) -> DraftArrived | None:
        """See `DraftChannel`."""
        return self._channel.wait(timeout_s)

    def give_up(self) -> None:
        """See `DraftChannel`."""
        self._channel.give_up()

    def close(self) -> None:
        """The answer is over; the session may go on with the next."""
        self.is_idle = True
        self._channel.give_up()

    def end(self) -> None:
        """The session does not go on."""
        self._channel.close()

    def _begin_anew(self) -> None:
        """The text has turned off: a new session, which is given what this answer has so far."""
        self.end()
        self._opened_for = self._prompt
        self._channel = self._open_channel(self._prompt, self._sampling_kind)
        again, self._again = self._again, []
        self._ids, self._agreed = [], 0
        for ids, features in again:
            self._give(ids, features)

    def _give(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        self._channel.append(ids, features)
        self._ids.extend(ids)
        self._agreed = len(self._ids)
        self._again = []
