"""Frames and messages: what is refused before anything is looked at, and what a later version may append."""

from __future__ import annotations

import msgspec
import pytest

from starsd_edge.protocol.codec import ProtocolError, decode_from_hub, decode_from_target, encode
from starsd_edge.protocol.codes import MALFORMED
from starsd_edge.protocol.messages import (
    MAX_FRAME_BYTES,
    MAX_ROWS,
    MAX_TREE_NODES,
    Close,
    Closed,
    Draft,
    Error,
    Extend,
    Welcome,
)
from tests.support.golden_frames import FROM_HUB, FROM_TARGET, Golden
from tests.support.wire import a_hello, a_welcome

GOLDEN = [*FROM_TARGET, *FROM_HUB]
TAG = bytes(range(16))


def decode(golden: Golden, frame: bytes) -> object:
    return decode_from_target(frame) if golden in FROM_TARGET else decode_from_hub(frame)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_golden_frames_encode_and_decode(golden: Golden) -> None:
    assert encode(golden.message).hex() == golden.hex
    assert decode(golden, bytes.fromhex(golden.hex)) == golden.message


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_fields_that_a_newer_peer_appends_are_ignored(golden: Golden) -> None:
    fields = msgspec.msgpack.decode(bytes.fromhex(golden.hex))
    tensors = [[*field, "new"] if isinstance(field, list) and len(field) == 4 else field for field in fields]
    frame = msgspec.msgpack.encode([*tensors, {"new": [1, 2]}, "more"])
    assert decode(golden, frame) == golden.message


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_fields_that_an_older_peer_does_not_know_take_their_defaults(golden: Golden) -> None:
    """A frame cut after its last required field decodes to the message with defaults behind it."""
    defaults = msgspec.structs.fields(type(golden.message))
    required = sum(field.required for field in defaults)
    fields = msgspec.msgpack.decode(bytes.fromhex(golden.hex))
    decoded = decode(golden, msgspec.msgpack.encode(fields[: 1 + required]))
    for field in defaults[:required]:
        assert getattr(decoded, field.name) == getattr(golden.message, field.name)
    for field in defaults[required:]:
        assert getattr(decoded, field.name) == field.default


def test_error_of_before_ref_was_appended_still_decodes() -> None:
    frame = msgspec.msgpack.encode([7, "busy", "later", "session", TAG, 3, 1000])
    assert decode_from_hub(frame) == Error("busy", "later", "session", TAG, 3, 1000, None)


def test_oversized_frame_is_refused_before_it_is_parsed_and_the_limit_is_named() -> None:
    with pytest.raises(ProtocolError, match=str(MAX_FRAME_BYTES)) as refused:
        decode_from_target(b"\x91" * (MAX_FRAME_BYTES + 1))
    assert refused.value.code == MALFORMED
    assert refused.value.scope == "frame"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00",
        b"\xc1",
        b"\x80",
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        bytes.fromhex("92c40105"),
        encode(Close(TAG)) + b"\x00",
        encode(Close(TAG))[:-1],
        b"\x93\x05" + encode(Close(TAG))[2:] + b"\x91" * 100_000 + b"\xc0",
        b"\x94\x05" + encode(Closed(TAG, 0))[2:] + b"\x91" * 100_000 + b"\xc0",
        b'{"type": "close"}',
        b"\x80\x04\x95\x0e\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system\x94\x93\x94.",
    ],
    ids=lambda frame: frame[:6].hex() or "empty",
)
def test_bytes_that_are_no_message_are_malformed(frame: bytes) -> None:
    for decode_one in (decode_from_target, decode_from_hub):
        with pytest.raises(ProtocolError) as refused:
            decode_one(frame)
        assert refused.value.code == MALFORMED


@pytest.mark.parametrize(
    "message",
    [
        Close(b"short"),
        Close(b"x" * 17),
        Extend(TAG, 0, [1] * (MAX_ROWS + 1)),
        Extend(TAG, -1, [1]),
        Extend(TAG, 0, [-1]),
        Extend(TAG, 0, [1 << 31]),
        a_hello(versions=[]),
        a_hello(target="x" * 257),
        a_hello(vocab_size=1),
        a_hello(max_tree=0),
        Error("x", "y", "everything"),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_values_out_of_their_type_are_malformed(message: Close | Extend | Error) -> None:
    with pytest.raises(ProtocolError, match="not a message"):
        decode_from_target(encode(message))


@pytest.mark.parametrize(
    "message",
    [
        a_welcome(heartbeat_s=0.0),
        a_welcome(heartbeat_s=float("nan")),
        Draft(TAG, 1, 0, [1] * (MAX_TREE_NODES + 1), [-1] * (MAX_TREE_NODES + 1), 0, 0, 0),
        Draft(TAG, 1, 0, [1], [-2], 0, 0, 0),
    ],
    ids=lambda message: repr(message)[:60],
)
def test_values_out_of_their_type_are_malformed_downwards(message: Welcome | Draft) -> None:
    with pytest.raises(ProtocolError, match="not a message"):
        decode_from_hub(encode(message))


def test_a_message_of_the_other_direction_is_malformed() -> None:
    with pytest.raises(ProtocolError):
        decode_from_hub(encode(a_hello()))
    with pytest.raises(ProtocolError):
        decode_from_target(encode(a_welcome()))
