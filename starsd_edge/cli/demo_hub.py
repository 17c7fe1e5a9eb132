"""The demo's own monitor: reads the hub's feed as any monitor does, for the view and for the figures at the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from starsd_edge.telemetry.feed import Snapshot
from starsd_edge.telemetry.monitor.board import Board
from starsd_edge.telemetry.monitor.feed_client import Link
from starsd_edge.telemetry.monitor.model import MonitorModel


@dataclass
class HubWatch:
    """Attributes:
    items: begins the feed of the hub at an address.
    show: told whenever there is news.
    """

    items: Callable[[str], AsyncGenerator[Snapshot | Link, None]]
    show: Callable[[Board | Link], None]
    _snapshots: list[Snapshot] = field(default_factory=list)

    async def follow(self, url: str) -> None:
        """Watch until cancelled."""
        model = MonitorModel()
        async with aclosing(self.items(url)) as items:
            async for item in items:
                if isinstance(item, Snapshot):
                    self._snapshots[1:] = [item]
                    self.show(model.take(item))
                else:
                    self.show(item)

    def whole(self) -> Board | None:
        """The hub from the first news of it to the last; None while there was none."""
        model = MonitorModel()
        boards = [model.take(snapshot) for snapshot in self._snapshots]
        return boards[-1] if boards else None
