"""What is checked between decoding a message and using it: everything that the message types cannot state by
themselves.

Nothing a peer sends is trusted. Each check raises a `ProtocolError`, which says how much of the conversation the
fault costs; the state machines turn it into an ERROR message (hub) or drop and count the frame (target).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from starsd_edge.protocol.codes import MALFORMED
from starsd_edge.protocol.messages import MAX_TENSOR_BYTES, Draft, Tensor
from starsd_edge.speculation.tree import DraftShape, DraftTree

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


def check_ids(ids: list[int], vocab_size: int) -> None:
    """Raises:
    ProtocolError: an id is not below `vocab_size`; scope "session".
    """
    if ids and max(ids) >= vocab_size:
        raise ProtocolError(MALFORMED, f"token id {max(ids)} is not below the vocabulary size {vocab_size}", "session")


def read_features(tensor: Tensor | None, rows: int, width: int, codec: str) -> npt.NDArray[np.float16] | None:
    """The features that came with `rows` rows.

    Args:
        tensor: as decoded, or None where the message had none.
        width: features per row, agreed in HELLO.
        codec: agreed in WELCOME; "none" when the drafter wants no features.

    Returns:
        float16 [rows, width], read-only and perhaps unaligned (a view into the frame) for "f2"; None when none are
        wanted or there are no rows.

    Raises:
        ProtocolError: there are none where they are wanted, some where they are not, in another form than agreed, or
            not finite; scope "session".
    """
    if tensor is None:
        if codec != "none" and rows:
            raise ProtocolError(MALFORMED, f"the drafter wants {codec} features with every row and got none", "session")
        return None
    if codec == "none":
        raise ProtocolError(MALFORMED, "features came that WELCOME did not ask for", "session")
    if tensor.dtype != codec:
        raise ProtocolError(MALFORMED, f"features came as {tensor.dtype}, agreed was {codec}", "session")
    if tensor.shape != [rows, width]:
        raise ProtocolError(
            MALFORMED, f"features of shape {tensor.shape} came with {rows} rows of width {width}", "session"
        )
    item_bytes = 2 if codec == "f2" else 1
    if tensor.data.nbytes != rows * width * item_bytes or tensor.data.nbytes > MAX_TENSOR_BYTES:
        raise ProtocolError(
            MALFORMED,
            f"{tensor.data.nbytes} tensor bytes do not hold shape {tensor.shape} within {MAX_TENSOR_BYTES} bytes",
            "session",
        )
    if rows == 0:
        return None
    values = _from_int8(tensor, rows, width) if codec == "i1" else _as_float16(tensor, rows, width)
    if not all_finite(values):
        raise ProtocolError(MALFORMED, "features are not finite", "session")
    return values


def all_finite(values: npt.NDArray[np.float16]) -> bool:
    """Whether no value is infinite or not a number: those have all five exponent bits set. On the bits, because numpy
    widens float16 value by value, which takes eight times as long on the hub's event loop.
    """
    return bool(((values.view(np.uint16) & 0x7C00) != 0x7C00).all())


def _as_float16(tensor: Tensor, rows: int, width: int) -> npt.NDArray[np.float16]:
    if tensor.scales is not None:
        raise ProtocolError(MALFORMED, "float16 features carry no scales", "session")
    return np.frombuffer(tensor.data, dtype="<f2").reshape(rows, width)


def _from_int8(tensor: Tensor, rows: int, width: int) -> npt.NDArray[np.float16]:
    if tensor.scales is None or tensor.scales.nbytes != rows * 2:
        raise ProtocolError(MALFORMED, f"int8 features of {rows} rows need {rows} float16 scales", "session")
    scales = np.frombuffer(tensor.scales, dtype="<f2").astype(np.float32)
    codes = np.frombuffer(tensor.data, dtype=np.int8).reshape(rows, width)
    with np.errstate(over="ignore", invalid="ignore"):
        return (codes * scales[:, None]).astype(np.float16)


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
