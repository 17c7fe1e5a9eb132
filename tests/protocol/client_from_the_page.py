"""A target that was written from docs/protocol.md and docs/protocol-vectors.json alone: nothing of the project is imported
here, and nothing but Python's standard library. It runs by itself, as `python -I -S client_from_the_page.py TASK`, where
TASK is JSON with `port`, `vectors` (a path), `hello` (fields that differ from the vectors' HELLO), `rounds` and `do`, the
names of functions at the end; it prints what it saw as JSON and ends with a traceback where page and hub disagree.
"""

import base64
import hashlib
import json
import os
import socket
import struct
import sys
import time

FIELDS = {
    "target": {
        1: "HELLO versions target vocab_size tokenizer_fp source_fp feature_fp feature_kind feature_width codecs max_tree "
        "max_depth max_context chains_only=false dedicated=false",
        2: 'OPEN ref first_row t_first drafter_kind="" sampling_kind="" resume=null',
        3: "EXTEND tag first_row ids features=null",
        4: "DRAFT_REQUEST tag epoch base_len first_row ids max_nodes max_depth branching features=null target_us=0",
        5: "CLOSE tag",
        6: "REPORT rounds hub_rounds local_rounds tokens draft_us plain_us verify_us wait_us "
        'why_off="" pass_rows=null pass_us=null',
        7: "ERROR code message scope tag=null epoch=0 retry_after_ms=0 ref=null",
        8: "PROBE number payload want_bytes",
    },
    "hub": {
        1: "WELCOME version hub_id drafter drafter_fp feature_codec heartbeat_s max_sessions max_nodes max_depth "
        'notice="" reports=false probes=false port=0 ticket=""',
        2: "READY drafter",
        3: "OPENED ref tag rows_held",
        4: "DRAFT tag epoch base_len ids parents queue_us service_us hub_us",
        5: "CLOSED tag rows_freed",
        6: "RESYNC tag from_row",
        7: "ERROR code message scope tag=null epoch=0 retry_after_ms=0 ref=null",
        8: "PROBED number payload hub_us",
    },
}
TENSOR = ("dtype", "shape", "data", "scales")


def schema(sender):
    """By kind: the message's name and its fields with their defaults, as JSON; None where there is no default."""
    for kind, line in FIELDS[sender].items():
        name, *fields = line.split()
        yield kind, name, [(field.partition("=")[0], field.partition("=")[2] or None) for field in fields]


# MessagePack.


def pack(value):
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        if -32 <= value < 128:
            return struct.pack("b", value)
        codes = ((0xCC, "B"), (0xCD, ">H"), (0xCE, ">I"), (0xCF, ">Q")) if value >= 0 else ((0xD3, ">q"),)
        code, form = next(each for each in codes if value < 256 ** struct.calcsize(each[1]))
        return bytes([code]) + struct.pack(form, value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return _head(len(value), ((0xC4, "B"), (0xC5, ">H"), (0xC6, ">I"))) + value
    if isinstance(value, str):
        text = value.encode()
        short = bytes([0xA0 | len(text)]) if len(text) < 32 else None
        return (short or _head(len(text), ((0xD9, "B"), (0xDA, ">H"), (0xDB, ">I")))) + text
    short = bytes([0x90 | len(value)]) if len(value) < 16 else None
    return (short or _head(len(value), ((0xDC, ">H"), (0xDD, ">I")))) + b"".join(map(pack, value))


def _head(size, codes):
    code, form = next(each for each in codes if size < 256 ** struct.calcsize(each[1]))
    return bytes([code]) + struct.pack(form, size)


def unpack(frame):
    value, end = _unpack(frame, 0)
    assert end == len(frame), "something follows the array"
    return value


_NUMBERS = {0xCC: "B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: "b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_NUMBERS |= {0xCA: ">f", 0xCB: ">d"}
_SIZES = {0xC4: "B", 0xC5: ">H", 0xC6: ">I", 0xD9: "B", 0xDA: ">H", 0xDB: ">I"}
_SIZES |= {0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}


def _unpack(data, at):
    code = data[at]
    at += 1
    if code < 0x80 or code >= 0xE0:
        return struct.unpack("b", bytes([code]))[0], at
    if code in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[code], at
    if code in _NUMBERS:
        return struct.unpack_from(_NUMBERS[code], data, at)[0], at + struct.calcsize(_NUMBERS[code])
    if code < 0xC0:
        size, code = code & (0x1F if code >= 0xA0 else 0x0F), (0xDF, 0xDD, 0xDB)[(code >= 0x90) + (code >= 0xA0)]
    else:
        size = struct.unpack_from(_SIZES[code], data, at)[0]
        at += struct.calcsize(_SIZES[code])
    if code <= 0xC6 or code <= 0xDB:
        raw = bytes(data[at : at + size])
        assert len(raw) == size
        return (raw if code <= 0xC6 else raw.decode()), at + size
    items = []
    for _ in range(size * (2 if code >= 0xDE else 1)):
        item, at = _unpack(data, at)
        items.append(item)
    return (dict(zip(items[::2], items[1::2])) if code >= 0xDE else items), at


# Messages.


def read(frame, sender="hub"):
    """Name and fields of a frame."""
    parts = unpack(frame)
    name, fields = next((name, fields) for kind, name, fields in schema(sender) if kind == parts[0])
    values = dict(zip([field for field, _ in fields], parts[1:]))
    for field, default in fields[len(parts) - 1 :]:
        assert default is not None, f"{name} without {field}"
        values[field] = json.loads(default)
    if values.get("features"):
        values["features"] = dict(zip(TENSOR, values["features"]))
    return name, values


def write(name, sender="target", **values):
    kind, fields = next((kind, fields) for kind, known, fields in schema(sender) if known == name)
    parts = [values[field] if field in values else json.loads(default) for field, default in fields]
    return pack([kind, *([part[each] for each in TENSOR] if isinstance(part, dict) else part for part in parts)])


def plain(value):
    """As the vectors show it."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def raw(value):
    """And back."""
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"]) if set(value) == {"hex"} else {key: raw(each) for key, each in value.items()}
    return [raw(each) for each in value] if isinstance(value, list) else value


# Features.

LARGEST = 65504.0


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def to_f2(value):
    if value != value:
        return b"\x00\x00"
    return struct.pack("<e", max(-LARGEST, min(LARGEST, value)))


def f2_of(values):
    return b"".join(map(to_f2, values))


def floats(data):
    return list(struct.unpack(f"<{len(data) // 2}e", data))


def i1_of(data):
    """Codes and scale of one row of float16."""
    row = floats(data)
    peak = max(map(abs, row))
    scale = to_f2(f32(peak / 127))
    if f32(floats(scale)[0] * 127) < peak:
        scale = struct.pack("<H", struct.unpack("<H", scale)[0] + 1)
    (step,) = floats(scale)
    if step > 515.5:
        step, scale = 515.5, to_f2(515.5)
    return b"".join(struct.pack("b", round(f32(value / step)) if step else 0) for value in row), scale


def read_i1(data, scale):
    (step,) = floats(scale)
    return b"".join(to_f2(f32(code * step)) for code in struct.unpack(f"{len(data)}b", data))


def tensor(codec, rows, width):
    values = [f2_of(row) for row in rows]
    if codec == "f2":
        return {"dtype": "f2", "shape": [len(rows), width], "data": b"".join(values), "scales": None}
    pairs = [i1_of(row) for row in values]
    data, scales = (b"".join(part) for part in zip(*pairs))
    return {"dtype": "i1", "shape": [len(rows), width], "data": data, "scales": scales}


# WebSocket.


class Closed(Exception):
    pass


class Connection:
    """One WebSocket to the hub."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        key = base64.b64encode(os.urandom(16)).decode()
        lines = ["GET / HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Protocol: starsd.v1", "", ""]
        self.socket.sendall("\r\n".join(lines).encode())
        while b"\r\n\r\n" not in self.buffer:
            self._more()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        digest = hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
        assert head.startswith(b"HTTP/1.1 101 ") and base64.b64encode(digest) in head, head

    def say(self, *frames):
        """All in one write."""
        self.socket.sendall(b"".join(self._masked(2, frame) for frame in frames))

    def hear(self):
        """The next message that is not READY; the ERROR's fields raise nothing."""
        while (message := read(self._message()))[0] == "READY":
            pass
        return message

    def hears_nothing_for(self, seconds):
        self.socket.settimeout(seconds)
        try:
            return ("too much", self.hear())[0] == ""
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(20)

    def break_off(self):
        """Without a word, as a lost link does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def part(self):
        self.socket.sendall(self._masked(8, struct.pack(">H", 1000)))
        self.socket.close()

    def _masked(self, opcode, payload):
        mask = os.urandom(4)
        size = len(payload)
        short = size if size < 126 else 126 if size < 65536 else 127
        length = {126: struct.pack(">H", size & 0xFFFF), 127: struct.pack(">Q", size)}.get(short, b"")
        repeated = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        body = (int.from_bytes(payload, "big") ^ repeated).to_bytes(size, "big")
        return bytes([0x80 | opcode, 0x80 | short]) + length + mask + body

    def _more(self):
        data = self.socket.recv(65536)
        if not data:
            raise Closed(1006)
        self.buffer += data

    def _take(self, size):
        while len(self.buffer) < size:
            self._more()
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        return taken

    def _message(self):
        whole = b""
        while True:
            first, size = self._take(2)
            size = struct.unpack(">H", self._take(2))[0] if size == 126 else size
            size = struct.unpack(">Q", self._take(8))[0] if size == 127 else size
            payload = self._take(size)
            if first & 15 == 8:
                raise Closed(struct.unpack(">H", payload[:2])[0])
            if first & 15 == 9:
                self.socket.sendall(self._masked(10, payload))
            elif first & 15 in (0, 2):
                whole += payload
                if first & 0x80:
                    return whole


# What it does.


def offline(task, vectors):
    """The vectors that need no hub."""
    for entry in vectors["good"] + vectors["accepted"]:
        name, fields = read(bytes.fromhex(entry["hex"]), entry["from"])
        assert (name, plain(fields)) == (entry["message"], entry["fields"]), entry["name"]
    for entry in vectors["good"]:
        assert write(entry["message"], entry["from"], **raw(entry["fields"])).hex() == entry["hex"], entry["name"]
    for entry in vectors["f2"]:
        assert to_f2(struct.unpack("<f", bytes.fromhex(entry["float32"]))[0]).hex() == entry["f2"], entry
    for entry in vectors["i1"]:
        data, scale = i1_of(bytes.fromhex(entry["f2"]))
        assert (data.hex(), scale.hex()) == (entry["data"], entry["scales"]), entry
    for entry in vectors["i1"] + vectors["i1_read"]:
        assert read_i1(bytes.fromhex(entry["data"]), bytes.fromhex(entry["scales"])).hex() == entry["read"], entry
    for entry in vectors["fingerprints"]:
        assert fingerprint(entry) == entry["sha256"], entry
    return sum(len(part) for part in vectors.values() if isinstance(part, list))


def fingerprint(entry):
    if entry["of"] == "tokenizer_fp":
        file = entry["tokenizer.json"]
        model, added = file["model"], file["added_tokens"]
        pieces = {index: piece for piece, index in model["vocab"].items()} | {each["id"]: each["content"] for each in added}
        value = {
            "kind": model["type"],
            "pieces": sorted([index, piece] for index, piece in pieces.items()),
            "scores": [],
            "merges": [merge.split(" ", 1) for merge in model["merges"]],
            "special": sorted(each["id"] for each in added if each["special"]),
            "byte_fallback": model["byte_fallback"],
            "normalizer": file["normalizer"],
            "pre_tokenizer": {key: each for key, each in file["pre_tokenizer"].items() if key != "trim_offsets"},
        }
    else:
        value = {key: each for key, each in entry.items() if key not in ("of", "sha256")}
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def faults(task, vectors):
    """Every bad frame is answered as the vectors say."""
    known = bytes.fromhex(vectors["tag"])
    done = 0
    for entry in vectors["bad"]:
        connection, tag = Connection(task["port"]), known
        codec = "none"
        for said in vectors["states"][entry["state"]]:
            connection.say(bytes.fromhex(said))
            name, answer = connection.hear()
            codec, tag = answer.get("feature_codec", codec), answer.get("tag", tag)
        if "features" in entry["state"] and codec == "none":
            continue
        connection.say(bytes.fromhex(entry["hex"]).replace(known, tag))
        for expected in entry["answers"]:
            if "close" in expected:
                try:
                    raise AssertionError((entry["name"], connection.hear()))
                except Closed as end:
                    assert end.args[0] == expected["close"], (entry["name"], end)
                break
            name, answer = connection.hear()
            told = {key: plain(answer[key]) for key in expected["fields"]}
            text = json.dumps(expected["fields"]).replace(known.hex(), tag.hex())
            assert (name, told) == (expected["message"], json.loads(text)), (entry["name"], answer)
        else:
            connection.say(write("CLOSE", tag=b"-" * 16))  # it still serves, and had no more to say
            assert connection.hear()[0] == "CLOSED", entry["name"]
        connection.socket.close()
        done += 1
    return done


def conversations(task, vectors):
    """The hub says what the vectors say: but for names, limits, times, and which tokens it guesses."""
    known = bytes.fromhex(vectors["tag"])
    for conversation in vectors["conversations"]:
        connection, tag, asked = Connection(task["port"]), known, {}
        for step in conversation["steps"]:
            if step.get("event") == "the connection breaks":
                connection.break_off()
                connection = Connection(task["port"])
            elif step.get("event") == "wait":
                time.sleep(step["seconds"])
            elif step["from"] == "target":
                connection.say(bytes.fromhex(step["hex"]).replace(known, tag))
                if step["message"] == "DRAFT_REQUEST":
                    asked.setdefault(step["fields"]["epoch"], step["fields"])  # once more: it is that request again
            else:
                name, fields = step["message"], step["fields"]
                if name == "READY":
                    continue
                heard, answer = connection.hear()
                while heard == "DRAFT" and (name != "DRAFT" or answer["epoch"] != fields["epoch"]):
                    assert answer["base_len"] == asked[answer["epoch"]]["base_len"]
                    heard, answer = connection.hear()
                assert heard == name, (conversation["name"], step, answer)
                if name == "OPENED" and tag == known:
                    tag = answer["tag"]
                keys = {"DRAFT": ["tag", "epoch", "base_len"], "WELCOME": ["version"], "OPENED": ["ref", "rows_held"]}
                keys["ERROR"] = ["code", "scope", "epoch", "ref", "tag"]
                for key in keys.get(name, fields):
                    expected = tag if raw(fields[key]) == known else raw(fields[key])
                    assert answer[key] == expected, (conversation["name"], step, answer)
                if name == "DRAFT":
                    check_tree(answer, asked[answer["epoch"]], 1000)
        connection.part()
    return len(vectors["conversations"])


def check_tree(draft, asked, vocabulary):
    """Rules 17 to 19; the depth of each node."""
    ids, parents = draft["ids"], draft["parents"]
    assert draft["base_len"] == asked["base_len"] and len(ids) == len(parents) <= asked["max_nodes"]
    assert draft["queue_us"] + draft["service_us"] <= draft["hub_us"] + 2, draft
    depths, path, children = [], [], {}
    for node, (token, parent) in enumerate(zip(ids, parents)):
        assert 0 <= token < vocabulary
        while path and path[-1] != parent:
            path.pop()
        assert path or parent == -1, "no preorder"
        path.append(node)
        depths.append(len(path))
        siblings = children.setdefault(parent, [])
        siblings.append(token)
        assert len(set(siblings)) == len(siblings) <= max(1, asked["branching"])
    assert max(depths, default=0) <= asked["max_depth"]
    return children


class Sequence:
    """A text as its hub is told of it, and the features along it."""

    def __init__(self, task):
        self.task = task
        self.text = [3]
        self.tag = None
        self.sent = 0
        self.epoch = 0
        self.refs = 0

    @property
    def n(self):
        return len(self.text) - 1

    def next_token(self):
        """What the model says: a song of which a line is now and then another."""
        at = len(self.text)
        noise = hashlib.sha256(struct.pack("<I", at)).digest()
        return noise[1] % self.task["hello"]["vocab_size"] if noise[0] < 40 else (3, 11, 7, 20, 7, 16, 2)[at % 7]

    def go_on(self, tokens=1):
        for _ in range(tokens):
            self.text.append(self.next_token())

    def rows(self, first, stop):
        fields = {"tag": self.tag, "first_row": first, "ids": self.text[first + 1 : stop + 1]}
        if self.codec != "none" and stop > first:
            width = self.task["hello"]["feature_width"]
            fields["features"] = tensor(self.codec, [feature(self.text, row, width) for row in range(first, stop)], width)
        return fields

    def extend(self, first=None):
        """EXTENDs of all that was not sent, or from `first` on."""
        start = self.sent if first is None else first
        self.sent = self.n
        return [write("EXTEND", **self.rows(row, min(row + 64, self.n))) for row in range(start, self.n, 64)]

    def request(self, new=True):
        """DRAFT_REQUEST, and what was asked."""
        self.epoch += new
        first, self.sent = self.sent, self.n
        asked = {"epoch": self.epoch, "base_len": self.n, "max_nodes": 8, "max_depth": 4, "branching": 3}
        return write("DRAFT_REQUEST", **self.rows(first, self.n), **asked), asked

    def open(self, connection):
        """OPEN, new or to go on."""
        self.refs += 1
        connection.say(write("OPEN", ref=self.refs, first_row=0, t_first=3, sampling_kind="greedy", resume=self.tag))
        name, opened = connection.hear()
        assert name == "OPENED" and opened["ref"] == self.refs and opened["rows_held"] <= self.sent
        assert self.tag in (None, opened["tag"])
        self.tag, self.sent = opened["tag"], opened["rows_held"]


def feature(text, row, width):
    """Any function of the text up to there."""
    seed = hashlib.sha256(struct.pack("<3I", row, text[row], text[max(0, row - 1)])).digest()
    return [(seed[place % 32] - 127.5) / 100 * (1 + place % 3) for place in range(width)]


def decode(task, vectors):
    """Rounds with a drafter; a twin that never hurries shows what every tree has to be."""
    hello = read(bytes.fromhex(vectors["states"]["welcomed"][0]), "target")[1] | task["hello"]
    seen = {"rounds": 0, "accepted": 0, "nodes": 0, "resumed": 0, "resyncs": 0, "bursts": 0, "probes": 0}
    target, twin = Sequence(task), Sequence(task)

    def connect():
        connection = Connection(task["port"])
        connection.say(write("HELLO", **hello))
        name, welcome = connection.hear()
        assert name == "WELCOME" and welcome["version"] == 1 and not welcome["port"], welcome
        target.codec = twin.codec = welcome["feature_codec"]
        assert target.codec in ("none", *hello["codecs"])
        target.refs = twin.refs = target.refs + twin.refs  # new ones on every connection, of both
        for each in (target, twin):
            twin.refs = target.refs = max(twin.refs, target.refs)
            each.open(connection)
        return connection

    def draft(asked, tag):
        while True:
            name, answer = connection.hear()
            assert name == "DRAFT" and answer["tag"] == tag, answer
            if answer["epoch"] == asked["epoch"]:
                return answer, check_tree(answer, asked, hello["vocab_size"])

    connection = connect()
    while seen["rounds"] < task["rounds"]:
        number = seen["rounds"]
        if number % 40 == 25:  # the link breaks while an answer is awaited
            connection.say(target.request()[0])
            connection.break_off()
            connection = connect()
            seen["resumed"] += 1
        if number % 30 == 17:  # a message gets lost
            target.go_on()
            target.sent = target.n
            target.go_on(2)
            lost = target.sent
            frame, asked = target.request()
            connection.say(frame, frame)
            name, resync = connection.hear()
            assert name == "RESYNC" and resync["tag"] == target.tag and resync["from_row"] < lost, resync
            target.sent = resync["from_row"]
            frame, asked = target.request(new=False)
            connection.say(frame)
            seen["resyncs"] += 1
        else:
            frame, asked = target.request()
            connection.say(frame)
        behind = number % 3 if number % 20 else 40
        if behind:  # and the target goes on without waiting
            root = list(target.text)
            for _ in range(behind):
                target.go_on()
                connection.say(*target.extend())
            seen["bursts"] += 1
        else:
            root = target.text
        answer, children = draft(asked, target.tag)
        twin.text = list(root)
        quiet, quiet_asked = twin.request()
        connection.say(quiet)
        same, _ = draft(quiet_asked, twin.tag)
        assert (same["ids"], same["parents"]) == (answer["ids"], answer["parents"]), (number, same, answer)
        walked = Sequence(task)
        walked.text, node = list(root), -1
        while walked.next_token() in children.get(node, ()):  # the path that comes true
            token = walked.next_token()
            node = next(i for i, (t, p) in enumerate(zip(answer["ids"], answer["parents"])) if (t, p) == (token, node))
            walked.go_on()
            seen["accepted"] += 1
        walked.go_on()
        target.text = max(target.text, walked.text, key=len)
        seen["nodes"] += len(answer["ids"])
        seen["rounds"] += 1
        if number % 50 == 10:  # many requests at once: the newest is answered, and whatever else is was asked
            waiting = {}
            frames = []
            for _ in range(48):
                target.go_on()
                frame, asked = target.request()
                frames.append(frame)
                waiting[asked["epoch"]] = asked
            connection.say(*frames)
            while asked["epoch"] in waiting:
                name, answer = connection.hear()
                assert name == "DRAFT" and answer["epoch"] in waiting, answer
                check_tree(answer, waiting.pop(answer["epoch"]), hello["vocab_size"])
            connection.say(write("PROBE", number=number, payload=bytes(1000), want_bytes=2000))
            name, answer = connection.hear()
            assert name == "PROBED" and answer["number"] == number and len(answer["payload"]) == 2000, answer
            seen["probes"] += 1
    alone = Sequence(task)
    alone.go_on(target.n)
    assert alone.text == target.text, "drafts changed the text"
    for _ in range(2):
        connection.say(write("CLOSE", tag=target.tag))
        assert connection.hear() == ("CLOSED", {"tag": target.tag, "rows_freed": target.sent})
        target.sent = 0
    connection.part()
    return seen


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    with open(told["vectors"]) as file:
        known_vectors = json.load(file)
    parts = (offline, faults, conversations, decode)
    print(json.dumps({part.__name__: part(told, known_vectors) for part in parts if part.__name__ in told["do"]}))
