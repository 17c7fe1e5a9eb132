"""A text, its features, and the check of a tree under it."""

import hashlib
import struct

from messages import tensor, write


def check_tree(draft, asked, vocabulary):
    """Rules 17 to 19; the tokens below each node, -1 for the root."""
    ids, parents = draft["ids"], draft["parents"]
    assert draft["base_len"] == asked["base_len"]
    assert len(ids) == len(parents) <= asked["max_nodes"]
    assert draft["queue_us"] + draft["service_us"] <= draft["hub_us"] + 2, draft
    depths, path, children = [], [], {}
    for node, (token, parent) in enumerate(zip(ids, parents, strict=True)):
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
            fields["features"] = tensor(
                self.codec, [feature(self.text, row, width) for row in range(first, stop)], width
            )
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
        asked = {"epoch": self.epoch, "base_len": self.n, "max_nodes": 6, "max_depth": 3, "branching": 3}
        return write("DRAFT_REQUEST", **self.rows(first, self.n), **asked), asked

    def open(self, connection):
        """OPEN, new or to go on."""
        self.refs += 1
        connection.say(write("OPEN", ref=self.refs, first_row=0, t_first=3, sampling_kind="greedy", resume=self.tag))
        name, opened = connection.hear()
        assert (name, opened["ref"]) == ("OPENED", self.refs)
        assert opened["rows_held"] <= self.sent
        assert self.tag in (None, opened["tag"])
        self.tag, self.sent = opened["tag"], opened["rows_held"]


def feature(text, row, width):
    """Any function of the text up to there."""
    seed = hashlib.sha256(struct.pack("<3I", row, text[row], text[max(0, row - 1)])).digest()
    return [(seed[place % 32] - 127.5) / 100 * (1 + place % 3) for place in range(width)]
