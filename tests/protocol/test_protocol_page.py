"""docs/protocol.md says what the code does: its tables and frames come from there."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from starsd_edge.protocol import codes, hub_sessions, messages, probes, target_session
from starsd_server import port_leases
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
