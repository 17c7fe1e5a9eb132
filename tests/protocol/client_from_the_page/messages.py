"""MessagePack, messages and features, as the page has them."""

import json
import struct

FIELDS = {
    "target": {
        1: "HELLO versions target vocab_size tokenizer_fp source_fp feature_fp feature_kind feature_width codecs "
        "max_tree max_depth max_context chains_only=false dedicated=false",
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
    return (dict(zip(items[::2], items[1::2], strict=True)) if code >= 0xDE else items), at


def read(frame, sender="hub"):
    """Name and fields of a frame."""
    parts = unpack(frame)
    name, fields = next((name, fields) for kind, name, fields in schema(sender) if kind == parts[0])
    values = dict(zip([field for field, _ in fields], parts[1:], strict=False))
    for field, default in fields[len(parts) - 1 :]:
        assert default is not None, f"{name} without {field}"
        values[field] = json.loads(default)
    if values.get("features"):
        values["features"] = dict(zip(TENSOR, values["features"], strict=True))
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
    data, scales = (b"".join(part) for part in zip(*pairs, strict=True))
    return {"dtype": "i1", "shape": [len(rows), width], "data": data, "scales": scales}
