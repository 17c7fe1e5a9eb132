"""docs/protocol.md says what the code does: its tables and frames come from there."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from starsd_edge.protocol import codec as probes
from starsd_edge.protocol import codes, hub_sessions, liveness, messages, target_link, target_session
from starsd_edge.protocol.hub_side import HubLimits
from starsd_edge.telemetry import hub_opening
from starsd_jetson import hub_link, hub_socket
from starsd_server import dedicated_ports as port_leases
from starsd_server.settings import DoorSettings
from tests.support.golden_frames import FROM_HUB, FROM_TARGET
from tests.support.wire_tables import PAGE, page_with_tables


def test_the_tables_are_those_of_the_message_types() -> None:
    page = PAGE.read_text()
    assert page_with_tables(page) == page, "run: python -m tests.support.wire_tables"


def test_every_message_has_a_golden_frame_each_way_it_travels() -> None:
    for union, frames in ((messages.TargetMessage, FROM_TARGET), (messages.HubMessage, FROM_HUB)):
        kinds = {type(golden.message) for golden in frames}
        assert kinds == set(get_args(union))


def test_the_rules_are_numbered_in_one_row() -> None:
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", PAGE.read_text(), re.MULTILINE)]
    assert numbers == [*range(1, len(numbers) + 1)]


def test_the_pace_on_the_page_is_that_of_the_code() -> None:
    pace = " ".join(PAGE.read_text().partition("### The pace of a connection")[2].partition("###")[0].split())
    door = DoorSettings()
    for line in (
        f"({HubLimits().heartbeat_s:g} s by default), the target every {hub_socket.HEARTBEAT_S:g} s",
        f"closes it with {codes.CLOSE_STUCK}",
        f"{hub_opening.OPEN_TIMEOUT_S:g} s without a WebSocket, {hub_link.WELCOME_TIMEOUT_S:g} s without a WELCOME, "
        f"{liveness.SILENT_HEARTBEATS * hub_socket.HEARTBEAT_S:g} s without a byte",
        f"{door.open_timeout_s:g} s without a WebSocket (cut off), {door.hello_timeout_s:g} s without HELLO (1008)",
        f"{door.send_timeout_s:g} s in which nothing of what it has to send leaves ({codes.CLOSE_STUCK} both)",
        f"not waited for longer than {door.close_timeout_s:g} s",
        f"may have {door.max_waiting_frames} frames waiting",
        f"assumes {target_link.FIRST_RATE >> 10} KiB/s",
        f"nor more than {target_link.MOST_WINDOW >> 20} MiB",
    ):
        assert line in pace, line
    assert (target_link.AHEAD_S, liveness.SILENT_HEARTBEATS) == (2, 2)


@pytest.mark.parametrize(
    "number",
    [
        codes.MAX_OFFENCES,
        int(hub_sessions.RESYNC_REPEAT_S),
        hub_sessions.MAX_PENDING,
        target_session.MAX_RESYNCS,
        int(port_leases.TICKET_VALID_S),
        round(1e3 * probes.PROBE_INTERVAL_S),
    ],
)
def test_numbers_in_the_prose_are_those_of_the_code(number: int) -> None:
    words = {1: "one second", 5: "five seconds", 8: "eight", 16: "sixteen", 50: "50 ms"}
    assert words[number] in PAGE.read_text()
