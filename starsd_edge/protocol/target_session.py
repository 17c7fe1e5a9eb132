"""One sequence of the target as the hub is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from starsd_edge.protocol.codec import ProtocolError, read_tree
from starsd_edge.protocol.codes import MALFORMED
from starsd_edge.protocol.features import NO_FEATURES
from starsd_edge.protocol.messages import Draft, DraftRequest, Extend, Open, Opened, Welcome
from starsd_edge.protocol.rows import SentRows
from starsd_edge.protocol.target_link import TargetLink
from starsd_edge.speculation.tree import DraftShape, DraftTree

MAX_ASKED = 16
"""Requests of one session whose draft is still taken; as many as the hub remembers."""
MAX_RESYNCS = 8
"""Resyncs of one session without a draft between them: a hub that asks for the same rows for ever must not fill the
up-link.
"""
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 30.0
"""A session that the hub ended is opened anew after these waits (doubling), or later where the hub says so."""


@dataclass(frozen=True)
class _Asked:
    """A request, and when it went out."""

    base_len: int
    shape: DraftShape
    sent_at: float


class TargetSession:
    """One sequence as the hub is told of it.

    Attributes:
        number: its number, unique while the target lives.
        tag: its name at the hub; kept while the hub is away, for the resume.
    """

    def __init__(self, number: int, link: TargetLink, prompt: Sequence[int], sampling_kind: str) -> None:
        self.number = number
        self.tag: bytes | None = None
        self._link = link
        self._prompt = tuple(prompt)
        self._first_row = 0
        self._sampling_kind = sampling_kind
        self._store = SentRows(link.hello.feature_width if link.hello.codecs else 0)
        self._opened = False
        self._sent = 0
        self._stop = 0
        """Rows below this one are to be sent."""
        self._queued: int | None = None
        """Epoch of the request that waits for its rows to be sent."""
        self._epoch = 0
        self._asked: dict[int, _Asked] = {}
        self._answered_at: float | None = None
        self._failures = 0
        self._retry_at: float | None = None
        self._resyncs = 0
        self._resync_drain = -1

    @property
    def is_open(self) -> bool:
        """Whether the hub has it and drafts may be asked for."""
        return self._opened and self._link.ready

    @property
    def rows(self) -> int:
        """Rows appended so far: n, the base_len of the next request."""
        return len(self._store)

    @property
    def pending(self) -> int | None:
        """Epoch of the newest request that is not answered."""
        return next(reversed(self._asked), None)

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None = None) -> None:
        """Rows whose tokens are final. Kept; sent with the next `extend` or `request`.

        Raises:
            ValueError: HELLO named a feature codec and the features, [len(ids), F], are missing or of another shape.
        """
        before = self._store.clamped
        self._store.append(ids, features)
        self._link.clamped_rows += self._store.clamped - before

    def extend(self) -> None:
        """Send the rows not yet sent, in chunks within the wire's caps, asking nothing. No-op while not open."""
        if self.is_open:
            self._send_rows(self.rows)
        else:
            self._reopen_if_due()

    def request(self, shape: DraftShape) -> int | None:
        """Send the rows not yet sent and ask for a tree under the last token; the epoch, or None while not open, or
        before the text has reached the window.

        The shape is cut to what both sides allow and to the context's end. A new request always has a new epoch, also
        when the last was not answered.
        """
        welcome = self._link.welcome
        if welcome is None or not self.is_open:
            self._reopen_if_due()
            return None
        if self.rows < self._first_row:
            return None
        self._epoch += 1
        self._ask(self._epoch, self.rows, self._clamp(shape, welcome))
        if len(self._asked) > MAX_ASKED:
            self.refused(next(iter(self._asked)))
        return self._epoch

    def open(self) -> None:
        """Send OPEN: the session goes on under its tag, or begins anew without one.

        Under a draft window it begins so many rows before the present end, or before that of a prompt which is still
        being prefilled: the first request comes with as many rows as the prompt has tokens.
        """
        if self.tag is None and self._link.draft_window is not None:
            self._first_row = max(0, max(self.rows, len(self._prompt)) - self._link.draft_window)
        ref = self._link.next_ref()
        self._link.refs[ref] = self.number
        self._retry_at = None
        first = self._first_row
        t_first = self._prompt[first] if first < len(self._prompt) else self._store.ids(first - 1, first)[0]
        self._link.post(Open(ref, first, t_first, "", self._sampling_kind, self.tag))

    def opened(self, message: Opened) -> None:
        """OPENED came: the rows that the hub lacks go up with the next `extend` or `request`.

        Raises:
            ProtocolError: the hub claims rows that it was never sent, or fewer than the session begins with.
        """
        held = self._first_row if self.tag is None else max(self.rows, self._first_row)
        if self.tag not in {None, message.tag} or not self._first_row <= message.rows_held <= held:
            raise ProtocolError(
                MALFORMED, f"the hub claims {message.rows_held} rows of a session that has {held}", "session"
            )
        self.tag = message.tag
        self._sent = message.rows_held
        self._opened = True
        self._resyncs = 0

    def suspend(self) -> None:
        """The connection is gone: what was asked is void; rows and tag stay."""
        self._opened = False
        self._answered_at = None
        self._queued = None
        self._stop = 0
        self._asked.clear()

    def forget(self) -> None:
        """The hub knows nothing of this session any more."""
        self.suspend()
        self.tag = None

    def end(self, retry_after_s: float) -> float:
        """The hub ended it; the seconds after which it may be opened anew."""
        self.forget()
        wait = max(retry_after_s, min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(self._failures, 16)))
        self._failures += 1
        self._retry_at = self._link.clock() + wait
        return wait

    def close(self) -> None:
        """The target is done with it."""
        self._opened = False
        self._retry_at = None
        self._queued = None
        self._asked.clear()

    def resync(self, from_row: int) -> None:
        """Send again the rows from here on, and the request that lay behind the gap.

        Raises:
            ProtocolError: the hub asks for rows that were not sent (scope "frame"), or again and again (scope
                "session").
        """
        if not self._first_row <= from_row <= self._sent:
            raise ProtocolError(
                MALFORMED, f"a resync from row {from_row}, but rows {self._first_row} to {self._sent} were sent"
            )
        if self._resync_drain == self._link.drains:
            return
        self._resyncs += 1
        if self._resyncs > MAX_RESYNCS:
            raise ProtocolError(MALFORMED, f"the hub asked {self._resyncs} times for rows that it was sent", "session")
        self._resync_drain = self._link.drains
        sent, self._sent = self._sent, from_row
        if self._epoch in self._asked and self._asked[self._epoch].base_len >= from_row:
            asked = self._asked[self._epoch]
            self._ask(self._epoch, asked.base_len, asked.shape)
        self._send_rows(sent)

    def take(self, draft: Draft, frame_bytes: int) -> DraftArrived | None:
        """The event of a DRAFT; None when it answers nothing that is still asked.

        Raises:
            ProtocolError: it is not what was asked for; scope "frame".
        """
        asked = self._asked.get(draft.epoch)
        if asked is None:
            return None
        if draft.base_len != asked.base_len:
            raise ProtocolError(
                MALFORMED, f"a draft under base_len {draft.base_len} answers a request under {asked.base_len}"
            )
        tree = read_tree(draft, asked.shape, self._link.hello.vocab_size)
        for epoch in [epoch for epoch in self._asked if epoch <= draft.epoch]:
            self.refused(epoch)
        self._failures = self._resyncs = 0
        now = self._link.clock()
        if draft.epoch == self._epoch:
            self._answered_at = now
        return DraftArrived(
            session=self,
            epoch=draft.epoch,
            base_len=draft.base_len,
            tree=tree,
            round_trip_us=max(0, round((now - asked.sent_at) * 1e6)),
            hub_us=draft.hub_us,
            queue_us=draft.queue_us,
            service_us=draft.service_us,
            frame_bytes=frame_bytes,
            clamped_rows=0 if self._link.feature_codec == NO_FEATURES else self._store.clamped,
        )

    def refused(self, epoch: int) -> bool:
        """The hub will not answer this request; whether it was one."""
        if epoch == self._queued:
            self._queued = None
        return self._asked.pop(epoch, None) is not None

    def _clamp(self, shape: DraftShape, welcome: Welcome) -> DraftShape:
        hello = self._link.hello
        max_depth = min(hello.max_depth, welcome.max_depth, hello.max_context - self.rows - 1)
        clamped = shape.clamp(min(hello.max_tree - 1, welcome.max_nodes), max_depth)
        return DraftShape(clamped.max_nodes, clamped.max_depth, 1 if hello.chains_only else max(1, shape.branching))

    def pump(self) -> bool:
        """Send the next message of rows, or the request that follows them, if something waits and the path has room;
        whether that was so.
        """
        queued = self._queued
        stop = self._stop if queued is None else self._asked[queued].base_len
        if not self.is_open or (queued is None and self._sent >= stop):
            return False
        codec = self._link.feature_codec
        start = self._sent
        end = self._store.chunk_end(start, stop, codec, self._link.chunk_bytes)
        if not self._link.has_room(self._store.sent_bytes(end - start, codec)):
            return False
        if queued is not None and end == stop:
            self._queued = None
            self._post_request(queued, start)
        else:
            rows = self._store.features(start, end, codec)
            self._link.post(Extend(self._open_tag(), start, self._store.ids(start, end), rows))
        self._sent = end
        return True

    def _ask(self, epoch: int, base_len: int, shape: DraftShape) -> None:
        """DRAFT_REQUEST with the last chunk of the rows below `base_len`, EXTEND with those before it. One that still
        waits for room is superseded.
        """
        if self._queued is not None:
            self._asked.pop(self._queued, None)
        self._asked[epoch] = _Asked(base_len, shape, self._link.clock())
        self._queued = epoch
        self._send()

    def _post_request(self, epoch: int, first_row: int) -> None:
        now = self._link.clock()
        asked = self._asked[epoch] = replace(self._asked[epoch], sent_at=now)
        target_us = 0 if self._answered_at is None else max(0, round((now - self._answered_at) * 1e6))
        self._answered_at = None
        self._link.post(
            DraftRequest(
                tag=self._open_tag(),
                epoch=epoch,
                base_len=asked.base_len,
                first_row=first_row,
                ids=self._store.ids(first_row, asked.base_len),
                max_nodes=asked.shape.max_nodes,
                max_depth=asked.shape.max_depth,
                branching=asked.shape.branching,
                features=self._store.features(first_row, asked.base_len, self._link.feature_codec),
                target_us=target_us,
            )
        )

    def _send_rows(self, stop: int) -> None:
        self._stop = max(self._stop, stop)
        self._send()

    def _send(self) -> None:
        """As much as there is room for now; the rest goes out when rows have arrived."""
        while self.pump():
            pass

    def _open_tag(self) -> bytes:
        if self.tag is None:
            raise AssertionError("a session without a tag is not open")
        return self.tag

    def _reopen_if_due(self) -> None:
        if self._link.welcome is not None and self._retry_at is not None and self._link.clock() >= self._retry_at:
            self.open()


@dataclass(frozen=True)
class DraftArrived:
    """A checked tree hanging from the root at `base_len` of this session, perhaps late: the caller rebases it.

    Attributes:
        round_trip_us: from sending the request to receiving the draft, on the target's clock.
        hub_us: of that, the time on the hub; the rest is the link.
        frame_bytes: size of the DRAFT on the wire.
        clamped_rows: rows of the session so far with features that were not finite and went up clamped.
    """

    session: TargetSession
    epoch: int
    base_len: int
    tree: DraftTree
    round_trip_us: int
    hub_us: int
    queue_us: int
    service_us: int
    frame_bytes: int
    clamped_rows: int = 0
