"""The messages of wire version 1.

MessagePack arrays, one tagged union per direction, always decoded typed. Fields are only ever appended, with a
default: an older peer ignores what it does not know and a newer one fills it in. Sizes and ranges that a type can
state are stated here; the rest is checked before use, as `codec` says.

Rows: a session with committed tokens t_0..t_{n-1} and root t_n has n rows; row i is the token t_{i+1} and, where the
drafter wants it, the feature f_i that the target computed at position i. t_0 travels in OPEN.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

WIRE_VERSION = 1
SUBPROTOCOL = "starsd.v1"
TICKET_HEADER = "Starsd-Ticket"
"""HTTP header of the handshake at a port of the target's own: the ticket of WELCOME."""
HUB_HEADER = "Starsd-Hub"
"""HTTP header of a hub's pages and of nothing else: by it a hub is known to those who have no token."""
DEFAULT_PORT = 8317
"""Port of an address that names none, with and without TLS."""

MAX_FRAME_BYTES = 1 << 20
"""Largest WebSocket message either side accepts."""
MAX_ROWS = 1024
"""Most rows in one message."""
MAX_TENSOR_BYTES = 256 << 10
"""Most tensor bytes in one message; longer prefills go up in several."""
MAX_TREE_NODES = 1024
"""Most nodes in one DRAFT, whatever the target's own limit."""
MAX_PROBE_BYTES = 256 << 10
"""Most bytes of one PROBE, and of the PROBED that answers it."""
MAX_WIDTHS = 16
"""Most kinds of rounds in one REPORT."""
MAX_PASS_US = 60_000_000
TAG_BYTES = 16

Count = Annotated[int, Meta(ge=0, lt=1 << 31)]
TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]
Epoch = Annotated[int, Meta(ge=1, lt=1 << 62)]
EpochOrNone = Annotated[int, Meta(ge=0, lt=1 << 62)]
Microseconds = Annotated[int, Meta(ge=0, lt=1 << 62)]
Total = Annotated[int, Meta(ge=0, lt=1 << 62)]
Name = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=1024)]
Reason = Annotated[str, Meta(max_length=32, pattern=r"^[a-z_]*\Z")]
Ticket = Annotated[str, Meta(max_length=128, pattern=r"^[A-Za-z0-9_-]*\Z")]
Tag = Annotated[bytes, Meta(min_length=TAG_BYTES, max_length=TAG_BYTES)]
RowIds = Annotated[list[TokenId], Meta(max_length=MAX_ROWS)]
Widths = Annotated[list[Annotated[int, Meta(ge=1, le=MAX_TREE_NODES + 1)]], Meta(max_length=MAX_WIDTHS)]
PassTimes = Annotated[list[Annotated[int, Meta(ge=1, le=MAX_PASS_US)]], Meta(max_length=MAX_WIDTHS)]
ProbeBytes = Annotated[bytes, Meta(max_length=MAX_PROBE_BYTES)]
NodeIds = Annotated[list[TokenId], Meta(max_length=MAX_TREE_NODES)]
NodeParents = Annotated[list[Annotated[int, Meta(ge=-1, lt=MAX_TREE_NODES)]], Meta(max_length=MAX_TREE_NODES)]


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """Rows of features, as raw little-endian bytes. Part of other messages."""

    dtype: Literal["f2", "i1"]
    """"f2" is IEEE float16, "i1" is int8 with a scale per row."""
    shape: Annotated[list[Count], Meta(min_length=2, max_length=2)]
    """Rows, width."""
    data: memoryview
    """The values, row by row."""
    scales: memoryview | None = None
    """With "i1": one float16 per row, by which its values are multiplied. Else nil."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Target to hub, first message of a connection."""

    versions: Annotated[list[Count], Meta(min_length=1, max_length=16)]
    """Wire versions the target speaks."""
    target: Name
    """Name for the monitor and the logs, chosen by the target."""
    vocab_size: Annotated[int, Meta(ge=2, lt=1 << 24)]
    """Every token id, either way, is below this."""
    tokenizer_fp: Name
    """Fingerprint of the tokenizer; a causal-lm drafter takes only the one that it has."""
    source_fp: Name
    """Fingerprint of the checkpoint the target was made from; no hub compares it."""
    feature_fp: Name
    """Fingerprint of what its features are; a head takes only those that it was made for."""
    feature_kind: Name
    """"last_hidden", "fused_states" (of three layers, for an EAGLE-3 head), or "none"; a head checks it."""
    feature_width: Count
    """Values per row of features, 0 for "none"; a head checks it."""
    codecs: Annotated[list[Name], Meta(max_length=8)]
    """Feature codecs the target can send, the preferred one first: "f2", "i1"; empty when it sends none."""
    max_tree: Annotated[int, Meta(ge=1, le=1 << 16)]
    """Largest T of one forward pass, root included: a DRAFT has at most max_tree - 1 nodes."""
    max_depth: Count
    """Most levels of a tree."""
    max_context: Annotated[int, Meta(ge=1, lt=1 << 31)]
    """Most tokens of a sequence, root included."""
    chains_only: bool = False
    """The target verifies chains only: branching is 1 whatever it asks for."""
    dedicated: bool = False
    """The target knows what `port` in WELCOME means; to one that does not say so no hub sends it."""


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Hub to target, answer to HELLO."""

    version: Count
    """The wire version of this connection: the highest both speak."""
    hub_id: Name
    """Instance id, new at every start of the hub: another than last time means that all sessions are gone."""
    drafter: Name
    """Kind of the drafter that fits."""
    drafter_fp: Name
    """Its fingerprint."""
    feature_codec: Name
    """Codec of the features the drafter wants with every row: the first of HELLO's `codecs` that it can use, or
    "none".
    """
    heartbeat_s: Annotated[float, Meta(ge=0.1, le=3600)]
    """Seconds between the hub's WebSocket pings."""
    max_sessions: Count
    """Sessions this connection may hold at once."""
    max_nodes: Count
    """Most nodes of any DRAFT on this connection."""
    max_depth: Count
    """Most levels."""
    notice: Text = ""
    """A line for the user, such as why a fitting drafter was not to be had."""
    reports: bool = False
    """The hub takes REPORTs in; one that does not say so would take them for faults."""
    probes: bool = False
    """The hub answers PROBEs."""
    port: Annotated[int, Meta(ge=0, lt=1 << 16)] = 0
    """Go on at this port of the same host, with a new connection; 0: stay here."""
    ticket: Ticket = ""
    """With `port`: lets this target in there, once, within five seconds. At most 128 letters, digits, "-" and "_"."""


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Hub to target: the drafter is warm."""

    drafter: Name
    """The one of WELCOME."""


class Open(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Target to hub: begin a session, or go on with one (`resume`)."""

    ref: Count
    """The target's own number for this OPEN, given back in OPENED or ERROR; a new one for every OPEN of a
    connection.
    """
    first_row: Count
    """Index of the first row the target will send: 0, or n - W under a draft window."""
    t_first: TokenId
    """The token at position `first_row`."""
    drafter_kind: Name = ""
    """The drafter of WELCOME, or empty."""
    sampling_kind: Name = ""
    """"greedy" or "sampled", never parameters or seeds. Told to the hub, which does not use it in version 1."""
    resume: Tag | None = None
    """Tag of the session to go on with; `first_row` and `t_first` are those it began with."""


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Hub to target: the session stands."""

    ref: Count
    """That of the OPEN."""
    tag: Tag
    """The session's secret name: 128 random bits."""
    rows_held: Count
    """The row to send next: `first_row` of a new session, more when one was resumed."""


class Extend(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Target to hub: rows, nothing asked."""

    tag: Tag
    """The session."""
    first_row: Count
    """Index of the first of these rows."""
    ids: RowIds
    """Row i carries the token at position i + 1."""
    features: Tensor | None = None
    """Features of these rows where WELCOME wants them, else nil."""


class DraftRequest(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Target to hub: the rows since the last message, and a tree wanted under the root t_n."""

    tag: Tag
    """The session."""
    epoch: Epoch
    """Number of this request: from 1, rising."""
    base_len: Count
    """n: the rows of the session together with those of this message."""
    first_row: Count
    """As in EXTEND; n where no rows come."""
    ids: RowIds
    """As in EXTEND; may be empty."""
    max_nodes: Count
    """Most nodes of the tree."""
    max_depth: Count
    """Most levels."""
    branching: Count
    """Most children of one node; 1 asks for a chain, and 0 counts as 1."""
    features: Tensor | None = None
    """As in EXTEND."""
    target_us: Microseconds = 0
    """From receiving the DRAFT of the request before to sending this, on the target's clock: the rest of what passes
    between the two at the hub is the link. 0 where there was none.
    """


class Draft(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Hub to target: a tree in depth-first preorder, children by falling score."""

    tag: Tag
    """The session."""
    epoch: Epoch
    """That of the request it answers."""
    base_len: Count
    """That of the request: the root is the token at this position."""
    ids: NodeIds
    """The token of each node."""
    parents: NodeParents
    """Index of each node's parent, below its own; -1 for the children of the root."""
    queue_us: Microseconds
    """Of `hub_us`, the wait for the drafter, in microseconds."""
    service_us: Microseconds
    """Of `hub_us`, the time in the drafter."""
    hub_us: Microseconds
    """From receiving the request to sending this, on the hub's clock: the rest of the round trip is the link. Where a
    tree is sent again, that of the repeated request, and the two parts are 0.
    """


class Close(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Target to hub: end a session. Idempotent; drops queued work."""

    tag: Tag
    """The session."""


class Report(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Target to hub, at most once a second: what only the target knows, for the hub's monitor. Not answered.

    Sums since the target began, so that any two reports give the time between them. Only where WELCOME says `reports`.
    """

    rounds: Total
    """Rounds of all answers."""
    hub_rounds: Total
    """Of them, those that verified a draft of the hub."""
    local_rounds: Total
    """Of them, those that verified a draft of the target's own."""
    tokens: Total
    """Tokens that the rounds with a draft gave."""
    draft_us: Microseconds
    """Time of the rounds with a draft."""
    plain_us: Microseconds
    """Time of the other rounds, which give one token each."""
    verify_us: Microseconds
    """Of all rounds, time in the target model's forward pass."""
    wait_us: Microseconds
    """Of all rounds, time spent waiting for the hub."""
    why_off: Reason = ""
    """Why the last round used no draft of the hub: one of the reasons below, empty when it did. At most 32 lower-case
    letters and underscores.
    """
    pass_rows: Widths | None = None
    """Rows of recent verify passes, the root included: some of those that there were, each once."""
    pass_us: PassTimes | None = None
    """For each of them, what such a round usually takes the target itself, without its waiting for the hub."""
    clamped_rows: Total = 0
    """Rows so far with a feature that was not finite in float16 and went up as the nearest finite value."""


class Probe(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Target to hub: how long do these bytes take, and those that come back? Only where WELCOME says `probes`."""

    number: Count
    """The target's own number for this PROBE, given back in PROBED; a new one for every PROBE of a connection."""
    payload: ProbeBytes
    """Bytes without a meaning."""
    want_bytes: Annotated[int, Meta(ge=0, le=MAX_PROBE_BYTES)]
    """Bytes that are to come back."""


class Closed(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Hub to target: the session is gone."""

    tag: Tag
    """The session."""
    rows_freed: Count
    """Rows the hub held of it; 0 when there was none of that tag."""


class Resync(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Hub to target: rows are missing, send them again."""

    tag: Tag
    """The session."""
    from_row: Count
    """The row to go on from: the first that the hub lacks."""


class Probed(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Hub to target, answer to PROBE."""

    number: Count
    """That of the PROBE."""
    payload: ProbeBytes
    """As many bytes as were wanted, without a meaning."""
    hub_us: Microseconds
    """From receiving the PROBE to sending this, on the hub's clock: the rest of the round trip is the link."""


class Error(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Either direction: something was refused. Never answered with an ERROR."""

    code: Name
    """For programs."""
    message: Text
    """For people: one line."""
    scope: Literal["frame", "session", "connection"]
    """How much of the conversation it ends."""
    tag: Tag | None = None
    """The session it concerns, as the peer named it."""
    epoch: EpochOrNone = 0
    """The request it concerns, 0 for none."""
    retry_after_ms: Count = 0
    """Wait this long before trying the same again."""
    ref: Count | None = None
    """The OPEN that it refuses."""


TargetMessage = Hello | Open | Extend | DraftRequest | Close | Report | Probe | Error
"""What a target sends."""
HubMessage = Welcome | Ready | Opened | Draft | Closed | Resync | Probed | Error
"""What a hub sends."""
