"""The vectors: alone, and against a hub."""

import hashlib
import json
import struct
import time

from connection import Connection, WasClosed
from messages import i1_of, plain, raw, read, read_i1, schema, to_f2, write
from sequence import check_tree


def offline(task, vectors):
    """The vectors that need no hub."""
    for entry in vectors["good"] + vectors["accepted"]:
        name, fields = read(bytes.fromhex(entry["hex"]), entry["from"])
        assert (name, plain(fields)) == (entry["message"], known(entry)), entry["name"]
    for entry in [each for each in vectors["good"] if known(each) == each["fields"]]:
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


def known(entry):
    """The fields of an entry that this client knows: others may have been appended since."""
    fields = next(fields for _, name, fields in schema(entry["from"]) if name == entry["message"])
    return {field: entry["fields"][field] for field, _ in fields}


def fingerprint(entry):
    if entry["of"] == "tokenizer_fp":
        file = entry["tokenizer.json"]
        model, added = file["model"], file["added_tokens"]
        pieces = {index: piece for piece, index in model["vocab"].items()} | {
            each["id"]: each["content"] for each in added
        }
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
                assert closed_with(connection) == expected["close"], entry["name"]
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


def closed_with(connection):
    """The close code that comes next; what else does is shown."""
    try:
        return connection.hear()
    except WasClosed as end:
        return end.args[0]


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
