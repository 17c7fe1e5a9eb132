"""One fixed frame of every message: what another implementation has to write and read, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass

from starsd_edge.protocol.messages import (
    Close,
    Closed,
    Draft,
    DraftRequest,
    Error,
    Extend,
    Hello,
    HubMessage,
    Open,
    Opened,
    Probe,
    Probed,
    Ready,
    Report,
    Resync,
    TargetMessage,
    Tensor,
    Welcome,
)

TAG = bytes.fromhex("000102030405060708090a0b0c0d0e0f")
TWO_ROWS = Tensor("f2", [2, 2], memoryview(bytes.fromhex("003c004000420044")))
"""float16 [[1, 2], [3, 4]]."""
TWO_INT8_ROWS = Tensor("i1", [2, 2], memoryview(bytes.fromhex("017f80ff")), memoryview(bytes.fromhex("003c0038")))
"""int8 [[1, 127], [-128, -1]] with scales 1.0 and 0.5."""


@dataclass(frozen=True)
class Golden:
    """A message and its frame."""

    name: str
    message: TargetMessage | HubMessage
    hex: str


FROM_TARGET = [
    Golden(
        "HELLO",
        Hello([1], "orin-1", 49152, "tok", "src", "feat", "last_hidden", 576, ["f2"], 32, 8, 2048),
        ("9f019101a66f72696e2d31cdc000a3746f6ba3737263a466656174ab6c6173745f68696464656ecd024091a266322008cd0800c2c2"),
    ),
    Golden("OPEN", Open(1, 0, 7, "", "greedy"), "9702010007a0a6677265656479c0"),
    Golden(
        "OPEN, resuming",
        Open(2, 0, 7, "", "greedy", TAG),
        "9702020007a0a6677265656479c410000102030405060708090a0b0c0d0e0f",
    ),
    Golden(
        "EXTEND, ids only",
        Extend(TAG, 0, [11, 200, 49000]),
        "9503c410000102030405060708090a0b0c0d0e0f00930bccc8cdbf68c0",
    ),
    Golden(
        "EXTEND, float16 features",
        Extend(TAG, 3, [5, 6], TWO_ROWS),
        "9503c410000102030405060708090a0b0c0d0e0f0392050694a26632920202c408003c004000420044c0",
    ),
    Golden(
        "EXTEND, int8 features",
        Extend(TAG, 3, [5, 6], TWO_INT8_ROWS),
        "9503c410000102030405060708090a0b0c0d0e0f0392050694a26931920202c404017f80ffc404003c0038",
    ),
    Golden(
        "DRAFT_REQUEST",
        DraftRequest(TAG, 4, 12, 10, [5, 6], 15, 5, 2, None, 41_000),
        "9b04c410000102030405060708090a0b0c0d0e0f040c0a9205060f0502c0cda028",
    ),
    Golden(
        "DRAFT_REQUEST, float16 features",
        DraftRequest(TAG, 4, 12, 10, [5, 6], 15, 5, 2, TWO_ROWS),
        "9b04c410000102030405060708090a0b0c0d0e0f040c0a9205060f050294a26632920202c408003c004000420044c000",
    ),
    Golden("CLOSE", Close(TAG), "9205c410000102030405060708090a0b0c0d0e0f"),
    Golden(
        "REPORT",
        Report(120, 100, 15, 340, 9_000_000, 250_000, 4_800_000, 700_000, "late", [1, 5], [40_000, 45_000], 7),
        "9d0678640fcd0154ce00895440ce0003d090ce00493e00ce000aae60a46c61746592010592cd9c40cdafc807",
    ),
    Golden("PROBE", Probe(3, bytes.fromhex("00ff17"), 262144), "940803c40300ff17ce00040000"),
    Golden(
        "ERROR (from the target)",
        Error("malformed", "too much is wrong", "connection"),
        "9807a96d616c666f726d6564b1746f6f206d7563682069732077726f6e67aa636f6e6e656374696f6ec00000c0",
    ),
]
FROM_HUB = [
    Golden(
        "WELCOME",
        Welcome(1, "hub-1", "causal-lm", "fp", "none", 10.0, 16, 31, 8, "a line for the user", True, True),
        (
            "9f0101a56875622d31a963617573616c2d6c6da26670a46e6f6e65cb4024000000000000101f08b3"
            "61206c696e6520666f72207468652075736572c3c300a0"
        ),
    ),
    Golden(
        "WELCOME, sending the target on",
        Welcome(1, "hub-1", "ngram", "fp", "none", 10.0, 16, 31, 8, "", True, False, 9003, "dGlja2V0"),
        ("9f0101a56875622d31a56e6772616da26670a46e6f6e65cb4024000000000000101f08a0c3c2cd232ba864476c6a61325630"),
    ),
    Golden("READY", Ready("causal-lm"), "9202a963617573616c2d6c6d"),
    Golden("OPENED", Opened(1, TAG, 0), "940301c410000102030405060708090a0b0c0d0e0f00"),
    Golden(
        "DRAFT",
        Draft(TAG, 4, 12, [9, 300, 10], [-1, 0, -1], 120, 4500, 4700),
        "9904c410000102030405060708090a0b0c0d0e0f040c9309cd012c0a93ff00ff78cd1194cd125c",
    ),
    Golden("CLOSED", Closed(TAG, 12), "9305c410000102030405060708090a0b0c0d0e0f0c"),
    Golden("RESYNC", Resync(TAG, 10), "9306c410000102030405060708090a0b0c0d0e0f0a"),
    Golden("PROBED", Probed(3, bytes.fromhex("a1b2"), 120), "940803c402a1b278"),
    Golden(
        "ERROR (from the hub)",
        Error("unknown_session", "no such session; open it anew", "frame", TAG, 4),
        (
            "9807af756e6b6e6f776e5f73657373696f6ebd6e6f20737563682073657373696f6e3b206f70656e"
            "20697420616e6577a56672616d65c410000102030405060708090a0b0c0d0e0f0400c0"
        ),
    ),
    Golden(
        "ERROR refusing an OPEN",
        Error("too_many_sessions", "full", "session", None, 0, 5000, 2),
        "9807b1746f6f5f6d616e795f73657373696f6e73a466756c6ca773657373696f6ec000cd138802",
    ),
]
