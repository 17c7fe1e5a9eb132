"""Who decides how large drafts are: asked at each request, told what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from starsd_edge.protocol.counters import PathStep
from starsd_edge.speculation.tree import DraftShape

if TYPE_CHECKING:
    from starsd_edge.protocol.hub_connection import HubConnection


class ShapeChooser(Protocol):
    """Chooses the shapes of drafts. Called on the event loop; must not block."""

    def judged(self, session: int, steps: Sequence[PathStep]) -> None:
        """What became of the last draft of a session; see `draft_record.walk`."""

    def choose(self, session: int, connection: HubConnection, base_len: int, asked: DraftShape) -> DraftShape:
        """The shape for a request under the root at `base_len`, within what the target asked for; one without nodes
        or levels lets it go on without a draft.
        """


class AsAsked:
    """Every target gets what it asks for."""

    def judged(self, session: int, steps: Sequence[PathStep]) -> None:
        """See `ShapeChooser`."""

    def choose(self, session: int, connection: HubConnection, base_len: int, asked: DraftShape) -> DraftShape:
        """See `ShapeChooser`."""
        return asked
