"""docs/protocol-vectors.json, made from the code: frames, faults with their answers, roundings and conversations.

`python -m tests.support.wire_vectors` writes the file; a test holds the code to it, and another implementation can be
held to it likewise. What each part means is said on the page, under "Vectors".
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from starsd_edge.bundles.fingerprints import feature_fingerprint, source_fingerprint, tokenizer_fingerprint
from starsd_edge.protocol.codec import decode_from_hub, decode_from_target, encode
from starsd_edge.protocol.features import FLOAT16, INT8, read_features, write_features
from starsd_edge.protocol.hub_side import HangUp, HubAction, HubLimits, HubProtocol, Notice, Offer, Send
from starsd_edge.protocol.messages import (
    Close,
    DraftRequest,
    Error,
    Extend,
    Hello,
    HubMessage,
    Open,
    TargetMessage,
    Tensor,
)
from starsd_edge.protocol.rows import SentRows
from starsd_server.draft_queue import DraftQueue
from starsd_server.drafter_pool import Drafted, DrafterPool
from starsd_server.drafters.ngram import NgramDrafter
from tests.support.golden_frames import FROM_HUB, FROM_TARGET, TAG, Golden
from tests.support.wire_tables import PAGE, message_name

VECTORS = PAGE.with_name("protocol-vectors.json")
HELLO = Hello([1], "vector", 1000, "tok", "src", "feat", "none", 0, [], 32, 8, 4096)
OF_16 = msgspec.structs.replace(HELLO, max_context=16)
FEATURED = msgspec.structs.replace(
    HELLO, feature_fp="f" * 64, feature_kind="last_hidden", feature_width=2, codecs=[INT8, FLOAT16]
)
FIRST_OPEN = Open(1, 0, 5, "", "greedy")
STATES: dict[str, list[TargetMessage]] = {
    "connected": [],
    "welcomed": [HELLO],
    "opened": [OF_16, FIRST_OPEN],
    "opened, with features": [FEATURED, FIRST_OPEN],
}
"""What a target has said before each of the faults."""
_GOLDEN_HELLO = FROM_TARGET[0]
pack = msgspec.msgpack.encode


def vectors() -> dict[str, Any]:
    """The whole file."""
    return {
        "wire_version": 1,
        "tag": TAG.hex(),
        "states": {state: [encode(message).hex() for message in said] for state, said in STATES.items()},
        "good": [_good(golden, "target") for golden in FROM_TARGET] + [_good(golden, "hub") for golden in FROM_HUB],
        "accepted": list(_accepted()),
        "bad": list(_bad()),
        "f2": list(_float16_roundings()),
        "i1": list(_int8_roundings()),
        "i1_read": list(_int8_readings()),
        "fingerprints": list(_fingerprints()),
        "conversations": [_resume(), _resync(), _burst()],
    }


def text_of(content: dict[str, Any]) -> str:
    """The file: each entry of a list on a line of its own."""
    parts = []
    for name, value in content.items():
        if isinstance(value, list):
            lines = ",\n".join("  " + json.dumps(entry) for entry in value)
            parts.append(f"{json.dumps(name)}: [\n{lines}\n]")
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _json(value: object) -> Any:
    if isinstance(value, bytes | memoryview):
        return {"hex": bytes(value).hex()}
    if isinstance(value, Tensor):
        return _fields(value)
    return [_json(each) for each in value] if isinstance(value, list) else value


def _fields(message: msgspec.Struct) -> dict[str, Any]:
    return {name: _json(getattr(message, name)) for name in message.__struct_fields__}


def _told(message: TargetMessage | HubMessage) -> dict[str, Any]:
    return {"message": message_name(type(message)), "fields": _fields(message)}


def _good(golden: Golden, sender: str) -> dict[str, Any]:
    return {"name": golden.name, "from": sender, "hex": golden.hex, **_told(golden.message)}


def _accepted() -> Iterable[dict[str, Any]]:
    """Frames that no writer has to write and every reader has to take."""
    hello = list(msgspec.to_builtins(_GOLDEN_HELLO.message))
    frames: list[tuple[str, str, bytes]] = [
        ("HELLO without the fields that have a default", "target", pack([1, *hello[1:13]])),
        ("HELLO of a later version, with more fields", "target", pack([*hello, None, {"a": [1, b"x"]}, 1.5])),
        (
            "CLOSE in wide integers and a wide array",
            "target",
            b"\xdd\x00\x00\x00\x02\xd3" + bytes(7) + b"\x05\xc4\x10" + TAG,
        ),
        ("OPEN with wide strings", "target", b"\x96\x02\x01\x00\x07\xdb\x00\x00\x00\x00\xd9\x06greedy"),
        ("EXTEND with an id in 64 bits", "target", b"\x94\x03\xc4\x10" + TAG + b"\x00\x91\xcf" + bytes(7) + b"\x0b"),
        ("OPEN with a name of 256 characters, 1,024 bytes", "target", pack([2, 1, 0, 7, "\U0001f600" * 256])),
        ("ERROR of a code that nobody knows", "hub", pack([7, "later", "a line", "frame"])),
        ("WELCOME whose heartbeat is an integer", "hub", pack([1, 1, "hub-1", "ngram", "fp", "none", 10, 16, 31, 8])),
    ]
    for name, sender, frame in frames:
        decoded = decode_from_target(frame) if sender == "target" else decode_from_hub(frame)
        yield {"name": name, "from": sender, "hex": frame.hex(), **_told(decoded)}


class Talk:
    """A target and a hub of n-grams, whose clock stands still and whose first tag is `TAG`."""

    def __init__(self, codec: str = "none") -> None:
        self.hub = HubProtocol(
            "hub-1",
            lambda said: Offer("ngram", "ngram", codec),
            HubLimits(),
            iter([TAG, *(bytes([number]) * 16 for number in range(1, 9))]).__next__,
        )
        self.hub.ready("ngram")
        self.queue = DraftQueue()
        self.pool = DrafterPool([NgramDrafter(8)], lambda: 0.0)
        self.now = 0.0
        self.steps: list[dict[str, Any]] = []
        self.connect()

    def connect(self) -> None:
        """A new connection."""
        self.connection = self.hub.connect("anyone")

    def hang_up(self) -> None:
        """The connection breaks."""
        self._carry_out(self.connection.lost(self.now))
        self.steps.append({"event": "the connection breaks"})
        self.connect()

    def wait(self, seconds: float) -> None:
        """Nothing is said for so long."""
        self.now += seconds
        self.steps.append({"event": "wait", "seconds": seconds})

    def say(self, *messages: TargetMessage | bytes) -> None:
        """All at once; then what the hub says until it has no more to do."""
        actions: list[HubAction] = []
        for message in messages:
            frame = message if isinstance(message, bytes) else encode(message)
            step = {"from": "target", "hex": frame.hex()}
            self.steps.append(step if isinstance(message, bytes) else step | _told(message))
            actions += self.connection.receive(frame, self.now, 0)
        self._carry_out(actions)
        while (work := self.queue.take(self.now)) is not None:
            for outcome in self.pool.do(work).outcomes:
                assert isinstance(outcome, Drafted)
                self._carry_out(
                    self.hub.answer(outcome.session, outcome.epoch, outcome.base_len, outcome.tree, 0, 0, self.now)
                )

    def _carry_out(self, actions: list[HubAction]) -> None:
        for action in actions:
            if isinstance(action, Send):
                told = _told(decode_from_hub(action.frame))
                self.steps.append({"from": "hub", "hex": action.frame.hex(), **told})
            elif isinstance(action, HangUp):
                self.steps.append({"event": "the hub closes", "code": action.code})
            elif not isinstance(action, Notice):
                self.queue.put(action)  # type: ignore[arg-type]


def _conversation(name: str, talk: Talk) -> dict[str, Any]:
    return {"name": name, "steps": talk.steps}


def _begin() -> Talk:
    talk = Talk()
    talk.say(HELLO)
    talk.say(FIRST_OPEN)
    return talk


TEXT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7, 8, 5, 6]


def _resume() -> dict[str, Any]:
    talk = _begin()
    talk.say(Extend(TAG, 0, TEXT[1:5]))
    talk.say(DraftRequest(TAG, 1, 6, 4, TEXT[5:7], 4, 4, 1))
    talk.hang_up()
    talk.say(HELLO)
    talk.say(Open(1, 0, 5, "", "greedy", TAG))
    talk.say(DraftRequest(TAG, 1, 6, 6, [], 4, 4, 1))
    talk.say(DraftRequest(TAG, 2, 9, 6, TEXT[7:10], 4, 2, 1))
    talk.hang_up()
    talk.say(msgspec.structs.replace(HELLO, target="another"))
    talk.say(Open(3, 0, 5, "", "greedy", TAG))
    talk.say(Open(4, 0, 5, "", "greedy"))
    talk.say(Close(TAG))
    talk.say(Close(TAG))
    return _conversation("resume", talk)


def _resync() -> dict[str, Any]:
    talk = _begin()
    talk.say(Extend(TAG, 0, TEXT[1:5]))
    talk.say(Extend(TAG, 6, TEXT[7:9]), DraftRequest(TAG, 1, 9, 8, TEXT[9:10], 4, 4, 1))
    talk.wait(1.5)
    talk.say(Extend(TAG, 9, TEXT[10:12]))
    talk.say(Extend(TAG, 4, TEXT[5:8]))
    talk.say(DraftRequest(TAG, 1, 9, 7, TEXT[8:10], 4, 4, 1))
    talk.say(Extend(TAG, 7, TEXT[8:12]))
    talk.say(Extend(TAG, 2, [9]))
    return _conversation("resync, rows sent again, and rows that conflict", talk)


def _burst() -> dict[str, Any]:
    talk = _begin()
    talk.say(
        DraftRequest(TAG, 1, 7, 0, TEXT[1:8], 4, 4, 1),
        Extend(TAG, 7, TEXT[8:10]),
        Extend(TAG, 9, TEXT[10:11]),
    )
    talk.say(
        DraftRequest(TAG, 2, 11, 10, TEXT[11:12], 4, 4, 1),
        DraftRequest(TAG, 3, 12, 11, TEXT[12:13], 4, 4, 1),
        DraftRequest(TAG, 2, 12, 12, [], 4, 4, 1),
        DraftRequest(TAG, 3, 12, 12, [], 4, 4, 1),
    )
    talk.say(DraftRequest(TAG, 4, 12, 12, [], 0, 4, 1))
    talk.say(DraftRequest(TAG, 5, 11, 12, [13], 4, 4, 1))
    talk.say(DraftRequest(TAG, 6, 13, 13, [], 2, 4, 0))
    return _conversation("rows right behind a request, and requests that supersede each other", talk)


def _bad() -> Iterable[dict[str, Any]]:
    """Each on a connection of its own, in one of three states; what the hub says to it, and the close code, if any."""
    floats = Tensor(FLOAT16, [1, 2], memoryview(bytes.fromhex("003c0040")))
    rows = {
        "features in another codec": floats,
        "features without scales": Tensor(INT8, [1, 2], memoryview(b"ab")),
        "features of another width": Tensor(INT8, [1, 3], memoryview(b"abc"), memoryview(b"\x00<")),
        "features for another number of rows": Tensor(INT8, [2, 2], memoryview(b"abcd"), memoryview(b"\x00<" * 2)),
        "fewer bytes than the shape says": Tensor(INT8, [1, 2], memoryview(b"a"), memoryview(b"\x00<")),
        "a scale that is infinite": Tensor(INT8, [1, 2], memoryview(b"ab"), memoryview(b"\x00|")),
        "a code times a scale that overflows": Tensor(INT8, [1, 2], memoryview(b"\x7f\x00"), memoryview(b"\xff{")),
    }
    before: dict[str, bytes] = {
        "no MessagePack": b"\xc1",
        "nothing": b"",
        "a text of MessagePack": pack("HELLO"),
        "not HELLO": encode(Open(1, 0, 5)),
        "an ERROR": encode(Error("later", "a line", "frame")),
        "no wire version in common": encode(msgspec.structs.replace(HELLO, versions=[2, 3])),
        "no wire version at all": encode(msgspec.structs.replace(HELLO, versions=[])),
        "a vocabulary of one": encode(msgspec.structs.replace(HELLO, vocab_size=1)),
        "a HELLO that ends too early": pack([1, [1], "vector", 1000]),
    }
    welcomed: dict[str, bytes] = {
        "a second HELLO": encode(HELLO),
        "a kind that nobody knows": pack([99, 1]),
        "a kind of the other direction": pack([2, "ngram"]),
        "a map": pack({"kind": 5}),
        "bytes behind the array": encode(Close(TAG)) + b"\x00",
        "a float for an integer": pack([3, TAG, 0.0, []]),
        "a boolean for an integer": pack([3, TAG, True, []]),
        "str for bin": pack([5, "x" * 16]),
        "bin for str": pack([2, 1, 0, 5, b"ngram"]),
        "str that is not UTF-8": b"\x95\x02\x01\x00\x05\xa1\xff",
        "an id below 0": pack([3, TAG, 0, [-1]]),
        "a tag of 15 bytes": pack([5, TAG[:15]]),
        "a name of 257 characters": pack([2, 1, 0, 5, "\u00e9" * 257]),
        "1,025 rows": pack([3, TAG, 0, [1] * 1025]),
        "a number of 2^31": pack([2, 1 << 31, 0, 5]),
        "a session that there is none of": encode(Extend(b"?" * 16, 0, [1])),
        "a request of a session that there is none of": encode(DraftRequest(b"?" * 16, 3, 1, 0, [1], 4, 4, 1)),
        "CLOSE of a session that there is none of": encode(Close(b"?" * 16)),
        "a first token beyond the vocabulary": encode(Open(2, 0, 1000)),
        "a drafter that was not offered": encode(Open(2, 0, 5, "eagle")),
        "a resume of a session that there is none of": encode(Open(2, 0, 5, "", "", b"?" * 16)),
        "an ERROR for a session that there is none of": encode(Error("later", "a line", "session", b"?" * 16)),
        "an ERROR of scope connection": encode(Error("later", "a line", "connection")),
    }
    opened: dict[str, bytes] = {
        "epoch 0": encode(DraftRequest(TAG, 0, 1, 0, [1], 4, 4, 1)),
        "a base_len that is too large": encode(DraftRequest(TAG, 1, 2, 0, [1], 4, 4, 1)),
        "a base_len that is too small": encode(DraftRequest(TAG, 1, 0, 0, [1], 4, 4, 1)),
        "an id beyond the vocabulary": encode(Extend(TAG, 0, [1, 1000])),
        "features that nobody asked for": encode(Extend(TAG, 0, [1], floats)),
        "rows behind a gap": encode(Extend(TAG, 3, [1])),
        "the same OPEN again": encode(Open(1, 0, 5, "", "greedy")),
        "another OPEN of the same ref": encode(Open(1, 0, 6, "", "greedy")),
        "more rows than the context has places": encode(Extend(TAG, 0, [1] * 16)),
    }
    featured = {name: encode(Extend(TAG, 0, [1], tensor)) for name, tensor in rows.items()}
    featured["rows without features"] = encode(Extend(TAG, 0, [1]))
    of_state = {"connected": before, "welcomed": welcomed, "opened": opened, "opened, with features": featured}
    for state, frames in of_state.items():
        for name, frame in frames.items():
            talk = Talk(INT8 if frames is featured else "none")
            for message in STATES[state]:
                talk.say(message)
            before_it = len(talk.steps)
            talk.say(frame)
            answers = talk.steps[before_it + 1 :]
            yield {"name": name, "state": state, "hex": frame.hex(), "answers": [_answer(answer) for answer in answers]}


def _answer(step: dict[str, Any]) -> dict[str, Any]:
    """What of an answer every hub has to say alike: not the words for people."""
    if "message" not in step:
        return {"close": step["code"]}
    fields = {name: value for name, value in step["fields"].items() if name not in {"message", "retry_after_ms"}}
    return {"message": step["message"], "fields": fields}


def _float16_roundings() -> Iterable[dict[str, str]]:
    largest = 65504.0
    values = [
        0.0,
        -0.0,
        1.0,
        1 / 3,
        -0.1,
        1 + 2**-11,
        1 + 3 * 2**-11,
        2049.0,
        2051.0,
        largest,
        65519.996,
        65520.0,
        -1e9,
    ]
    values += [float("inf"), float("-inf"), float("nan"), 2**-24, 2**-25, 3 * 2**-26, 2**-14 * (1 - 2**-11), 1e-30]
    for value in np.array(values, dtype="<f4"):
        store = SentRows(1)
        with np.errstate(over="ignore"):
            store.append([1], value.reshape(1, 1))  # type: ignore[arg-type]
        tensor = store.features(0, 1, FLOAT16)
        assert tensor is not None
        yield {"float32": value.tobytes().hex(), "f2": bytes(tensor.data).hex()}


def _int8_roundings() -> Iterable[dict[str, str]]:
    rows = np.array(
        [
            [0, 0, -0.0, 0],
            [1, -1, 0.5, 0.25],
            [127, 0.5, 1.5, -2.5],
            [65504, -65504, 1, 258],
            [2**-24, -(2**-24), 0, 2**-24],
            [0.1, -0.2, 0.3, 1e-4],
            [1000, 999, 3.937, -3.94],
            [2**-14, 2**-15, -(2**-20), 0],
            [-7, 6.5, 0.027, -0.0276],
        ],
        dtype="<f2",
    )
    for row in rows:
        tensor = write_features(row[None], INT8)
        assert tensor.scales is not None
        read = read_features(tensor, 1, 4, INT8)
        assert read is not None
        yield {
            "f2": row.tobytes().hex(),
            "data": bytes(tensor.data).hex(),
            "scales": bytes(tensor.scales).hex(),
            "read": read.astype("<f2").tobytes().hex(),
        }


def _int8_readings() -> Iterable[dict[str, str]]:
    """Codes that no writer writes, and what a reader makes of them."""
    for data, scales in (("80807f01", "003c"), ("80000000", "ff5f"), ("7f817f81", "0100"), ("01020304", "00bc")):
        tensor = Tensor(INT8, [1, 4], memoryview(bytes.fromhex(data)), memoryview(bytes.fromhex(scales)))
        read = read_features(tensor, 1, 4, INT8)
        assert read is not None
        yield {"data": data, "scales": scales, "read": read.astype("<f2").tobytes().hex()}


def _fingerprints() -> Iterable[dict[str, Any]]:
    tokenizer: dict[str, Any] = {
        "model": {
            "type": "BPE",
            "vocab": {"a": 0, "b": 1, "ab": 2, "\u00e9": 3},
            "merges": ["a b"],
            "byte_fallback": True,
        },
        "added_tokens": [{"id": 4, "content": "<eos>", "special": True}, {"id": 5, "content": "<x>", "special": False}],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "decoder": {"type": "ByteLevel"},
        "padding": None,
    }
    yield {"of": "tokenizer_fp", "tokenizer.json": tokenizer, "sha256": tokenizer_fingerprint(tokenizer)}
    config, tensors = {"hidden_size": 8, "n_layers": 2}, {"embed.weight": "0" * 64}
    source = source_fingerprint(config, tensors)
    yield {"of": "source_fp", "config": config, "tensors": tensors, "sha256": source}
    for kind, layers, fusion in (("last_hidden", [], ""), ("fused_states", [2, 16, 29], "f" * 64)):
        parts = {"source": source, "kind": kind, "width": 8, "layers": layers} | ({"fusion": fusion} if fusion else {})
        yield {"of": "feature_fp", **parts, "sha256": feature_fingerprint(source, kind, 8, layers, fusion)}


if __name__ == "__main__":
    Path(VECTORS).write_text(text_of(vectors()))
