"""What is checked between decoding a message and using it: everything that the message types cannot state by
themselves. Features have a module of their own.

Nothing a peer sends is trusted. Each check raises a `ProtocolError`, which says how much of the conversation the
fault costs; the state machines turn it into an ERROR message (hub) or drop and count the frame (target).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from starsd_edge.protocol.codes import MALFORMED
from starsd_edge.protocol.messages import Draft
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
