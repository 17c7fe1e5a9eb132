"""Messages to frames and back: one typed decoder per direction.

The only place where bytes of a peer are parsed. The cap comes before the decoder, the types' own limits are the
decoder's; what a type cannot state is left to `checks`. Decoded tensors are read-only views into the frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
import numpy as np

from starsd_edge.protocol.checks import ProtocolError
from starsd_edge.protocol.codes import MALFORMED
from starsd_edge.protocol.messages import MAX_FRAME_BYTES, HubMessage, TargetMessage

Message = TypeVar("Message")

_ENCODER: Final = msgspec.msgpack.Encoder()
_FROM_TARGET: Final = msgspec.msgpack.Decoder(TargetMessage)
_FROM_HUB: Final = msgspec.msgpack.Decoder(HubMessage)


def encode(message: TargetMessage | HubMessage) -> bytes:
    """The frame of a message."""
    return _ENCODER.encode(message)


def decode_from_target(frame: bytes) -> TargetMessage:
    """What a target says.

    Raises:
        ProtocolError: the frame is too big or is not a message of this direction; scope "frame".
    """
    return _decode(_FROM_TARGET.decode, frame)


def decode_from_hub(frame: bytes) -> HubMessage:
    """What a hub says.

    Raises:
        ProtocolError: the frame is too big or is not a message of this direction; scope "frame".
    """
    return _decode(_FROM_HUB.decode, frame)


def kind_of(message: TargetMessage | HubMessage) -> str:
    """Name of a message's kind, for counters and logs."""
    return type(message).__name__


def _decode(decode: Callable[[bytes], Message], frame: bytes) -> Message:
    if len(frame) > MAX_FRAME_BYTES:
        raise ProtocolError(
            MALFORMED, f"a frame of {len(frame)} bytes is over the limit of {MAX_FRAME_BYTES}; send it in chunks"
        )
    try:
        return decode(frame)
    except (msgspec.DecodeError, RecursionError) as error:  # passing over appended elements recurses as they nest
        raise ProtocolError(MALFORMED, f"not a message of wire version 1: {error}") from error


PROBE_INTERVAL_S = 0.05
"""A hub takes no more than one PROBE of a connection in this time: a check must not crowd out those who decode."""


def noise(number: int, size: int) -> bytes:
    """`size` bytes that no compression on the way makes fewer, the same for the same number."""
    return np.random.default_rng(number).bytes(size)
