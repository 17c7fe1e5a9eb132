"""The messages of wire version 1.

MessagePack arrays, one tagged union per direction, always decoded typed. Fields are only ever appended, with a
default: an older peer ignores what it does not know and a newer one fills it in. Sizes and ranges that a type can
state are stated here; `checks` does the rest before use.

Rows: a session with committed tokens t_0..t_{n-1} and root t_n has n rows; row i is the token t_{i+1} and, where the
drafter wants it, the feature f_i that the target computed at position i. t_0 travels in OPEN.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

WIRE_VERSION = 1
SUBPROTOCOL = "starsd.v1"

MAX_FRAME_BYTES = 1 << 20
"""Largest WebSocket message either side accepts."""
MAX_ROWS = 1024
"""Most rows in one message."""
MAX_TENSOR_BYTES = 256 << 10
"""Most tensor bytes in one message; longer prefills go up in several."""
MAX_TREE_NODES = 1024
"""Most nodes in one DRAFT, whatever the target's own limit."""
TAG_BYTES = 16

Count = Annotated[int, Meta(ge=0, lt=1 << 31)]
TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]
Epoch = Annotated[int, Meta(ge=0, lt=1 << 62)]
Microseconds = Annotated[int, Meta(ge=0, lt=1 << 62)]
Name = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=1024)]
Tag = Annotated[bytes, Meta(min_length=TAG_BYTES, max_length=TAG_BYTES)]
RowIds = Annotated[list[TokenId], Meta(max_length=MAX_ROWS)]
NodeIds = Annotated[list[TokenId], Meta(max_length=MAX_TREE_NODES)]
NodeParents = Annotated[list[Annotated[int, Meta(ge=-1, lt=MAX_TREE_NODES)]], Meta(max_length=MAX_TREE_NODES)]


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """Rows of features: little-endian raw bytes with their shape and dtype ("f2" is float16, "i1" int8 with a float16
    scale per row in `scales`).
    """

    dtype: Literal["f2", "i1"]
    shape: Annotated[list[Count], Meta(min_length=2, max_length=2)]
    data: memoryview
    scales: memoryview | None = None


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Target -> hub, first message of a connection."""

    versions: Annotated[list[Count], Meta(min_length=1, max_length=16)]
    target: Name
    """Name for the monitor and the logs, chosen by the target."""
    vocab_size: Annotated[int, Meta(ge=2, lt=1 << 24)]
    tokenizer_fp: Name
    source_fp: Name
    feature_fp: Name
    feature_kind: Name
    feature_width: Count
    codecs: Annotated[list[Name], Meta(max_length=8)]
    """Feature codecs the target can send: "f2", "i1"."""
    max_tree: Annotated[int, Meta(ge=1, le=1 << 16)]
    """Largest T of one forward pass, root included: a DRAFT has at most max_tree - 1 nodes."""
    max_depth: Count
    max_context: Annotated[int, Meta(ge=1, lt=1 << 31)]
    chains_only: bool = False


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Hub -> target, answer to HELLO."""

    version: Count
    hub_id: Name
    """Instance id, new at every start of the hub: a different one after a reconnect means that all sessions are
    gone.
    """
    drafter: Name
    drafter_fp: Name
    feature_codec: Name
    """Codec of the features the drafter wants, or "none"."""
    heartbeat_s: Annotated[float, Meta(ge=0.1, le=3600)]
    max_sessions: Count
    """Sessions this connection may hold at once."""
    max_nodes: Count
    max_depth: Count
    notice: Text = ""
    """A line for the user, such as why a fitting drafter was not to be had."""


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Hub -> target: the drafter is warm."""

    drafter: Name


class Open(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Target -> hub: begin a session, or go on with one (`resume`)."""

    ref: Count
    """The target's own number for this OPEN, given back in OPENED."""
    first_row: Count
    """Index of the first row the target will send: 0, or n - W under a draft window."""
    t_first: TokenId
    """The token at position `first_row`."""
    drafter_kind: Name = ""
    sampling_kind: Name = ""
    """"greedy" or "sampled": a hint for the draft shape; never parameters or seeds."""
    resume: Tag | None = None


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Hub -> target: the session's secret tag, and the rows already held when it was resumed."""

    ref: Count
    tag: Tag
    rows_held: Count


class Extend(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Target -> hub: rows from `first_row` on, nothing asked."""

    tag: Tag
    first_row: Count
    ids: RowIds
    features: Tensor | None = None


class DraftRequest(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Target -> hub: the rows since the last message, and a tree wanted under the root t_n, n = `base_len`."""

    tag: Tag
    epoch: Epoch
    base_len: Count
    first_row: Count
    ids: RowIds
    max_nodes: Count
    max_depth: Count
    branching: Count
    features: Tensor | None = None


class Draft(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Hub -> target: a tree in depth-first preorder, children by falling score."""

    tag: Tag
    epoch: Epoch
    base_len: Count
    ids: NodeIds
    parents: NodeParents
    queue_us: Microseconds
    """Wait in Q_in."""
    service_us: Microseconds
    """Time in the drafter."""
    hub_us: Microseconds
    """From receiving the request to sending this, on the hub's clock: what remains of the round trip is the link."""


class Close(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Target -> hub: end a session. Idempotent; drops queued work."""

    tag: Tag


class Closed(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Hub -> target."""

    tag: Tag
    rows_freed: Count


class Resync(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Hub -> target: rows are missing, send them again from here (= rows held)."""

    tag: Tag
    from_row: Count


class Error(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Either direction: something was refused; `scope` says how much of the conversation it ends."""

    code: Name
    message: Text
    scope: Literal["frame", "session", "connection"]
    tag: Tag | None = None
    epoch: Epoch = 0
    retry_after_ms: Count = 0
    ref: Count | None = None
    """The OPEN that this refuses."""


TargetMessage = Hello | Open | Extend | DraftRequest | Close | Error
"""What a target sends."""
HubMessage = Welcome | Ready | Opened | Draft | Closed | Resync | Error
"""What a hub sends."""
