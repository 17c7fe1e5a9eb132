"""docs/protocol-vectors.json is what the code does, and complete."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from starsd_edge.protocol import messages
from starsd_edge.protocol.codec import decode_from_hub, decode_from_target, encode
from tests.support.wire_tables import message_name
from tests.support.wire_vectors import VECTORS, text_of, vectors


def test_the_file_is_what_the_code_does() -> None:
    assert VECTORS.read_text() == text_of(vectors()), "run: python -m tests.support.wire_vectors"


def test_there_is_a_good_frame_of_every_message_each_way_and_every_one_is_written_and_read_like_that() -> None:
    content = json.loads(VECTORS.read_text())
    for union, sender, decode in (
        (messages.TargetMessage, "target", decode_from_target),
        (messages.HubMessage, "hub", decode_from_hub),
    ):
        frames = [entry for entry in content["good"] if entry["from"] == sender]
        assert {entry["message"] for entry in frames} == {message_name(kind) for kind in get_args(union)}
        for entry in frames:
            frame = bytes.fromhex(entry["hex"])
            assert encode(decode(frame)) == frame


@pytest.mark.parametrize("part", ["good", "accepted", "bad"])
def test_no_name_stands_twice(part: str) -> None:
    names = [(entry["name"], entry.get("state")) for entry in json.loads(VECTORS.read_text())[part]]
    assert len(set(names)) == len(names)
