"""A target that was written from docs/protocol.md and docs/protocol-vectors.json alone. Nothing of the project is
imported here, and nothing but Python's standard library.

It runs by itself, as `python -I -S THIS_DIRECTORY TASK`, where TASK is JSON with `port`, `vectors` (a path), `hello`
(fields that differ from the vectors' HELLO), `rounds` and `do` (names of the functions to run). It prints what it saw
as JSON, and ends with a traceback where the page and the hub disagree.
"""

import json
import sys
from pathlib import Path

from connection import Connection
from messages import read, write
from sequence import Sequence, check_tree
from vectors import conversations, faults, offline


def decode(task, vectors):
    """Rounds with a drafter; a twin that never hurries shows what every tree has to be."""
    hello = read(bytes.fromhex(vectors["states"]["welcomed"][0]), "target")[1] | task["hello"]
    seen = {"rounds": 0, "accepted": 0, "nodes": 0, "resumed": 0, "resyncs": 0, "bursts": 0, "probes": 0}
    target, twin = Sequence(task), Sequence(task)

    def connect():
        connection = Connection(task["port"])
        connection.say(write("HELLO", **hello))
        name, welcome = connection.hear()
        assert (name, welcome["version"], welcome["port"]) == ("WELCOME", 1, 0), welcome
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
            assert (name, answer["tag"]) == ("DRAFT", tag), answer
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
            assert (name, resync["tag"]) == ("RESYNC", target.tag), resync
            assert resync["from_row"] < lost
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
        if number % 6 < 2:
            twin.text = list(root)
            quiet, quiet_asked = twin.request()
            connection.say(quiet)
            same, _ = draft(quiet_asked, twin.tag)
            assert (same["ids"], same["parents"]) == (answer["ids"], answer["parents"]), (number, same, answer)
        walked = Sequence(task)
        walked.text, node = list(root), -1
        while walked.next_token() in children.get(node, ()):  # the path that comes true
            token = walked.next_token()
            nodes = list(zip(answer["ids"], answer["parents"], strict=True))
            node = nodes.index((token, node))
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
                assert name == "DRAFT", answer
                check_tree(answer, waiting.pop(answer["epoch"]), hello["vocab_size"])
            connection.say(write("PROBE", number=number, payload=bytes(1000), want_bytes=2000))
            name, answer = connection.hear()
            assert (name, answer["number"], len(answer["payload"])) == ("PROBED", number, 2000), answer
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
    known_vectors = json.loads(Path(told["vectors"]).read_text())
    parts = (offline, faults, conversations, decode)
    print(json.dumps({part.__name__: part(told, known_vectors) for part in parts if part.__name__ in told["do"]}))
