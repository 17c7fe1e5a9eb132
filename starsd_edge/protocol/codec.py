"""Messages to frames and back, and what is checked between decoding a message and using it.

The only place where bytes of a peer are parsed, by one typed decoder for each direction. The size limit comes before
the decoder, and the limits that types state are the decoder's. Ids and trees are checked here, features in `features`.
What has to fit the session or what was agreed is checked by the state machines: `hub_handshake`, `hub_connection` and
`hub_sessions` on the hub, `target_side` and `target_session` on the target.

Nothing that a peer sends is trusted. Each check raises a `ProtocolError`, which says whether the fault ends the frame,
the session or the connection. The state machines turn it into an ERROR message (hub), or drop and count the frame
(target). Decoded tensors are read-only views into the frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeVar

import msgspec
import numpy as np

from starsd_edge.protocol.codes import MALFORMED
from starsd_edge.protocol.messages import MAX_FRAME_BYTES, Draft, HubMessage, TargetMessage
from starsd_edge.speculation.tree import DraftShape, DraftTree

PROBE_INTERVAL_S = 0.05
"""Least seconds between two PROBEs of one connection, so that checks do not slow down targets that decode."""

Message = TypeVar("Message")

_ENCODER: Final = msgspec.msgpack.Encoder()
_FROM_TARGET: Final = msgspec.msgpack.Decoder(TargetMessage)
_FROM_HUB: Final = msgspec.msgpack.Decoder(HubMessage)


Scope = Literal["frame", "session", "connection"]


class ProtocolError(Exception):
    """A peer broke a rule of the wire.

    Attributes:
        code: one of `codes`.
        message: one line for people.
        scope: what the fault costs: the frame, the session it belongs to, or the connection.
        retry_after_ms: when the same may be tried again, 0 for at once.
    """

    def __init__(self, code: str, message: str, scope: Scope = "frame", retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.scope: Scope = scope
        self.retry_after_ms = retry_after_ms


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


def check_ids(ids: list[int], vocab_size: int) -> None:
    """Raises:
    ProtocolError: an id is not below `vocab_size`; scope "session".
    """
    if ids and max(ids) >= vocab_size:
        raise ProtocolError(MALFORMED, f"token id {max(ids)} is not below the vocabulary size {vocab_size}", "session")


def read_tree(draft: Draft, asked: DraftShape, vocab_size: int) -> DraftTree:
    """The tree of a DRAFT.

    Args:
        asked: the limits that went out with the request.

    Raises:
        ProtocolError: the arrays are no depth-first preorder of tokens of the vocabulary, or the tree is larger than
            asked; scope "frame".
    """
    if len(draft.ids) != len(draft.parents):
        raise ProtocolError(MALFORMED, f"a tree came with {len(draft.ids)} ids and {len(draft.parents)} parents")
    if len(draft.ids) > asked.max_nodes:
        raise ProtocolError(MALFORMED, f"a tree of {len(draft.ids)} nodes came where {asked.max_nodes} were asked for")
    if draft.ids and max(draft.ids) >= vocab_size:
        raise ProtocolError(MALFORMED, f"token id {max(draft.ids)} is not below the vocabulary size {vocab_size}")
    try:
        tree = DraftTree(np.asarray(draft.ids, dtype=np.int64), np.asarray(draft.parents, dtype=np.int32))
    except ValueError as error:
        raise ProtocolError(MALFORMED, f"not a tree: {error}") from error
    if tree.depth > asked.max_depth:
        raise ProtocolError(MALFORMED, f"a tree of depth {tree.depth} came where {asked.max_depth} was asked for")
    if len(tree) and int(np.bincount(tree.parents + 1).max()) > asked.branching:
        raise ProtocolError(MALFORMED, f"a node has more than the {asked.branching} children that were asked for")
    return tree


def printable(text: str) -> str:
    """A peer's text without what could steer a terminal or forge a log line."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def noise(number: int, size: int) -> bytes:
    """`size` bytes that no compression on the way makes fewer, the same for the same number."""
    return np.random.default_rng(number).bytes(size)
