"""A WebSocket to the hub."""

import base64
import hashlib
import os
import socket
import struct

from messages import read

HANG_S = 120.0
"""No test waits so long: a hub whose libraries are read from a cold disk takes half a minute to be warm."""


class WasClosed(Exception):  # noqa: N818 - no error where it is expected
    pass


class Connection:
    """One WebSocket to the hub."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), HANG_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        key = base64.b64encode(os.urandom(16)).decode()
        lines = ["GET / HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Protocol: starsd.v1", "", ""]
        self.socket.sendall("\r\n".join(lines).encode())
        while b"\r\n\r\n" not in self.buffer:
            self._more()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        digest = hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()  # noqa: S324 - RFC 6455
        assert head.startswith(b"HTTP/1.1 101 "), head
        assert base64.b64encode(digest) in head

    def say(self, *frames):
        """All in one write."""
        self.socket.sendall(b"".join(self._masked(2, frame) for frame in frames))

    def hear(self):
        """Name and fields of the next message that is not READY."""
        while (message := read(self._message()))[0] == "READY":
            pass
        return message

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
            raise WasClosed(1006)
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
                raise WasClosed(struct.unpack(">H", payload[:2])[0])
            if first & 15 == 9:
                self.socket.sendall(self._masked(10, payload))
            elif first & 15 in (0, 2):
                whole += payload
                if first & 0x80:
                    return whole
