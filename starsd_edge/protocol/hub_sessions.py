"""The sessions of a hub: what it holds of each, and the table that finds them.

A session keeps the ids of its rows (4 bytes each), so that rows sent again can be compared, and never their features:
those belong to the drafter. No method costs more than the rows of the message at hand.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from starsd_edge.protocol.codec import ProtocolError
from starsd_edge.protocol.codes import CONTEXT_FULL, MALFORMED, ROW_CONFLICT
from starsd_edge.protocol.hub_actions import DropSession, SessionView
from starsd_edge.protocol.hub_handshake import Terms
from starsd_edge.protocol.messages import Draft
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape

MAX_PENDING = 16
"""Requests of one session whose draft may still come: the one in the drafter and those that superseded it while it
ran.
"""
RESYNC_REPEAT_S = 1.0
"""Every frame behind a gap meets the same gap; one RESYNC answers them all unless nothing comes of it for this long."""


@dataclass
class Pending:
    """A request whose draft may still come, and the shape that it is cut to."""

    base_len: int
    shape: DraftShape
    received_at: float


class HubSession:
    """One sequence of one target as the hub knows it.

    Attributes:
        key: number of the session, unique while the hub lives; what the drafter knows it by.
        owner: the authenticated key it belongs to.
        connection: number of the connection that its drafts go to; None while its target is away.
        ref: the target's number for the OPEN that brought it to this connection.
        epoch: highest request seen.
        answered: the DRAFT of `epoch`, once it is there.
        turned_down: `answered` is empty because no drafter was asked, so it says nothing about acceptance.
    """

    def __init__(self, key: int, tag: bytes, owner: str, terms: Terms, first_row: int, t_first: int) -> None:
        self.key = key
        self.tag = tag
        self.owner = owner
        self.terms = terms
        self.first_row = first_row
        self.t_first = t_first
        self.connection: int | None = None
        self.ref = 0
        self.away_since = 0.0
        self.epoch = 0
        self.answered: Draft | None = None
        self.turned_down = False
        self._drafted_at: float | None = None
        self._void_epoch = 0
        self._ids = array("i")
        self._pending: dict[int, Pending] = {}
        self._resync_asked: tuple[int, float] | None = None

    @property
    def rows(self) -> int:
        """Rows held, those before `first_row` counted: n, where the root stands."""
        return self.first_row + len(self._ids)

    @property
    def rows_kept(self) -> int:
        """Rows held, without those before `first_row`."""
        return len(self._ids)

    def take_rows(self, first_row: int, ids: list[int], features: npt.NDArray[np.float16] | None) -> NewRows | None:
        """Take in rows that do not lie behind a gap; what is new among them, if anything.

        Raises:
            ProtocolError: rows before the session's first, rows that differ from those held, or more than the context
                has places; scope "session".
        """
        if first_row < self.first_row:
            raise ProtocolError(
                MALFORMED, f"row {first_row} lies before the session's first row {self.first_row}", "session"
            )
        if first_row + len(ids) >= self.terms.max_context:
            raise ProtocolError(
                CONTEXT_FULL,
                f"{first_row + len(ids)} rows and a root do not fit a context of {self.terms.max_context} tokens",
                "session",
            )
        start = self.rows
        overlap = min(start - first_row, len(ids))
        held = first_row - self.first_row
        if self._ids[held : held + overlap].tolist() != ids[:overlap]:
            raise ProtocolError(
                ROW_CONFLICT, f"rows sent again from row {first_row} on differ from those held", "session"
            )
        new = ids[overlap:]
        if not new:
            return None
        self._ids.extend(new)
        # A copy: what waits for the drafter must not hold the whole frame, which may carry much else.
        return NewRows(self.key, start, new, None if features is None else features[overlap:].copy())

    def rows_from(self, row: int, most: int) -> list[int]:
        """Ids of at most `most` held rows from this one on."""
        start = row - self.first_row
        return self._ids[start : start + most].tolist()

    def wants_resync(self, now: float) -> bool:
        """Whether the target is to be told of the present gap now; if so, it counts as told."""
        if self._resync_asked is not None:
            rows, asked_at = self._resync_asked
            if rows == self.rows and now - asked_at < RESYNC_REPEAT_S:
                return False
        self._resync_asked = (self.rows, now)
        return True

    @property
    def is_void(self) -> bool:
        """Whether the newest request went with its connection and is still without an answer: it may be asked again."""
        return self._void_epoch == self.epoch and self.answered is None

    def void(self) -> None:
        """Nobody waits any more for what was asked, but the tree that is being made may still be of use."""
        self._void_epoch = self.epoch

    def attach(self, connection: int, ref: int) -> None:
        """Its drafts go to this connection from now on."""
        self.connection = connection
        self.ref = ref
        self.interrupt()
        self._resync_asked = None

    def drafted(self, now: float) -> None:
        """The DRAFT of its newest request is sent."""
        self._drafted_at = now

    def interrupt(self) -> None:
        """The next request ends no round: a prompt, a resync or a change of the connection came between."""
        self._drafted_at = None

    def returned(self, now: float) -> float | None:
        """Z of the round that this request ends, in seconds; None where it ends none."""
        drafted_at, self._drafted_at = self._drafted_at, None
        return None if drafted_at is None else now - drafted_at

    def add_request(self, epoch: int, pending: Pending) -> None:
        """Note a request that is newer than all before."""
        self.epoch = epoch
        self._void_epoch = 0
        self.answered = None
        self.turned_down = False
        self._pending[epoch] = pending
        if len(self._pending) > MAX_PENDING:
            del self._pending[next(iter(self._pending))]

    def narrow_request(self, epoch: int, shape: DraftShape) -> None:
        """The draft of this request, if it is still to come, will be cut to this shape."""
        pending = self._pending.get(epoch)
        if pending is not None:
            pending.shape = shape

    def turn_down(self, epoch: int, base_len: int) -> Draft:
        """The empty DRAFT of a request for which no drafter is asked."""
        self.settle_request(epoch, base_len)
        self.answered = Draft(self.tag, epoch, base_len, [], [], 0, 0, 0)
        self.turned_down = True
        return self.answered

    def settle_request(self, epoch: int, base_len: int) -> Pending | None:
        """The request that a draft answers, None when nobody waits for it any more; older ones are settled with it."""
        pending = self._pending.get(epoch)
        if pending is None or pending.base_len != base_len:
            return None
        for known in [known for known in self._pending if known <= epoch]:
            del self._pending[known]
        return pending

    def view(self) -> SessionView:
        """The session for the monitor."""
        return SessionView(
            self.key, self.owner, self.terms.target, self.terms.drafter, self.rows, attached=self.connection is not None
        )


class SessionTable:
    """All sessions of a hub: by key, by tag, by connection, and those whose target is away in the order in which they
    lost it.
    """

    def __init__(self, new_tag: Callable[[], bytes]) -> None:
        self._new_tag = new_tag
        self._next_key = 1
        self._by_key: dict[int, HubSession] = {}
        self._by_tag: dict[bytes, HubSession] = {}
        self._at: dict[int, dict[int, HubSession]] = {}
        self._away: dict[int, HubSession] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def create(self, owner: str, terms: Terms, first_row: int, t_first: int) -> HubSession:
        """A new session under a fresh tag, attached to nothing yet."""
        session = HubSession(self._next_key, self._new_tag(), owner, terms, first_row, t_first)
        self._next_key += 1
        self._by_key[session.key] = session
        self._by_tag[session.tag] = session
        return session

    def by_key(self, key: int) -> HubSession | None:
        """The session that the drafter knows by this key."""
        return self._by_key.get(key)

    def owned(self, tag: bytes, owner: str) -> HubSession | None:
        """The session of that tag if it belongs to `owner`."""
        session = self._by_tag.get(tag)
        return session if session is not None and session.owner == owner else None

    def remove(self, session: HubSession) -> DropSession:
        """Forget a session; the action that tells the drafter."""
        self._detach(session)
        del self._by_key[session.key]
        del self._by_tag[session.tag]
        self._away.pop(session.key, None)
        return DropSession(session.key)

    def at(self, connection: int) -> list[HubSession]:
        """The sessions at this connection, in the order in which they came to it."""
        return list(self._at.get(connection, {}).values())

    def attach(self, session: HubSession, connection: int, ref: int) -> None:
        """A session is at this connection from now on, whether it was at another or at none; `ref` of its OPEN."""
        if session.connection != connection:
            self._detach(session)
            self._away.pop(session.key, None)
            self._at.setdefault(connection, {})[session.key] = session
        session.attach(connection, ref)

    def lose(self, connection: int, now: float) -> None:
        """This connection is gone: its sessions have none."""
        for session in self._at.pop(connection, {}).values():
            session.connection = None
            session.away_since = now
            self._away[session.key] = session

    def _detach(self, session: HubSession) -> None:
        if session.connection is not None:
            there = self._at[session.connection]
            del there[session.key]
            if not there:
                del self._at[session.connection]

    def longest_away(self) -> HubSession | None:
        """The session whose target has been away for longest."""
        return next(iter(self._away.values()), None)

    def of_drafter(self, kind: str) -> list[HubSession]:
        """The sessions that a drafter drafts for."""
        return [session for session in self._by_key.values() if session.terms.drafter == kind]

    def views(self) -> list[SessionView]:
        """All sessions for the monitor, oldest first."""
        return [session.view() for session in self._by_key.values()]
