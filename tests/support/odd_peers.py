"""What may listen at a hub's address and be none: bytes that are answered to the opening request of a WebSocket."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
import struct
import threading
from collections.abc import Callable, Mapping

Answer = Callable[[bytes], bytes | None]
"""The request to what is answered before the connection is closed; None resets it."""


def http(status: str, *headers: str, body: str = "") -> Answer:
    lines = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}"))
    return lambda request: f"{lines}\r\n{body}".encode()


def _raw(data: bytes) -> Answer:
    return lambda request: data


def _websocket(after: bytes, *, protocol: str | None = "", accept: str | None = None) -> Answer:
    """A handshake that succeeds, and these bytes; the first subprotocol offered is taken unless another is given."""

    def answer(request: bytes) -> bytes:
        key = re.search(rb"(?i)sec-websocket-key: *(\S+)", request)
        offered = re.search(rb"(?i)sec-websocket-protocol: *([^\s,]+)", request)
        if key is None or offered is None:  # a plain request for a page
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        digest = hashlib.sha1(key[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", usedforsecurity=False).digest()
        chosen = offered[1].decode() if protocol == "" else protocol
        head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        head += f"Sec-WebSocket-Accept: {accept or base64.b64encode(digest).decode()}\r\n"
        head += "" if chosen is None else f"Sec-WebSocket-Protocol: {chosen}\r\n"
        return head.encode() + b"\r\n" + after

    return answer


def _close(code: int, reason: bytes = b"") -> bytes:
    return bytes([0x88, 2 + len(reason)]) + struct.pack("!H", code) + reason


ODD_ANSWERS: Mapping[str, Answer] = {
    "301 to https": http("301 Moved Permanently", "Location: https://desk.example/hub"),
    "302 without a place": http("302 Found"),
    "302 to two places": http("302 Found", "Location: http://a.example/", "Location: http://b.example/"),
    "307 to another hub": http("307 Temporary Redirect", "Location: ws://127.0.0.1:9/"),
    "308 to what is no address": http("308 Permanent Redirect", "Location: http://[::1"),
    "302 to a bad port": http("302 Found", "Location: ws://desk:port/"),
    "301 to itself": http("301 Moved Permanently", "Location: /"),
    "301 to escape sequences": http("301 Moved Permanently", "Location: https://desk/\x1b[2J"),
    "300": http("300 Multiple Choices", "Location: gopher://desk/"),
    "200": http("200 OK", body="<html>It works!</html>"),
    "204": http("204 No Content"),
    "100 and nothing": _raw(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "400": http("400 Bad Request", body="The plain HTTP request was sent to HTTPS port"),
    "404": http("404 Not Found"),
    "426": http("426 Upgrade Required", "Upgrade: TLS/1.2, HTTP/1.1"),
    "500": http("500 Internal Server Error"),
    "502": http("502 Bad Gateway", body="<html>nginx</html>"),
    "503": http("503 Service Unavailable", "Retry-After: 100000000"),
    "999": http("999 Odd"),
    "no number": http("abc Odd"),
    "HTTP/1.0": _raw(b"HTTP/1.0 200 OK\r\n\r\n"),
    "half a header": _raw(b"HTTP/1.1 101 Switching"),
    "a header without end": _raw(b"HTTP/1.1 200 OK\r\nX: " + 70_000 * b"x"),
    "too many headers": _raw(b"HTTP/1.1 200 OK\r\n" + 300 * b"X: y\r\n" + b"\r\n"),
    "a length that is none": _raw(b"HTTP/1.1 404 Not Found\r\nContent-Length: many\r\n\r\n"),
    "two lengths": _raw(b"HTTP/1.1 404 Not Found\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx"),
    "chunks that are none": _raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
    "not ASCII": _raw("HTTP/1.1 200 ÖK\r\nLocation: \xff\r\n\r\n".encode("latin-1")),
    "SSH": _raw(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "HTTP/2": _raw(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00"),
    "a TLS alert": _raw(b"\x15\x03\x01\x00\x02\x02\x46"),
    "zeros": _raw(bytes(4096)),
    "nothing": _raw(b""),
    "a reset": lambda request: None,
    "101 with another key": _websocket(b"", accept="AAAAAAAAAAAAAAAAAAAAAAAAAAA="),
    "101 without subprotocol": _websocket(b"", protocol=None),
    "101 with another subprotocol": _websocket(b"", protocol="chat"),
    "101 with two subprotocols": _websocket(b"", protocol="a, b"),
    "101 and gone": _websocket(b""),
    "close 1000": _websocket(_close(1000)),
    "close 1008": _websocket(_close(1008, b"policy\x1b[2J")),
    "close 1011": _websocket(_close(1011)),
    "close 4001": _websocket(_close(4001)),
    "close with a code that is none": _websocket(_close(1005)),
    "close with half a code": _websocket(b"\x88\x01\x03"),
    "close that is no UTF-8": _websocket(_close(1000, b"\xff\xfe")),
    "reserved bits": _websocket(b"\xf2\x01x"),
    "an unknown opcode": _websocket(b"\x83\x00"),
    "a masked frame": _websocket(b"\x82\x81abcd\x00"),
    "a frame of 2^62 bytes": _websocket(b"\x82\x7f\x40" + bytes(7)),
    "a continuation of nothing": _websocket(b"\x80\x00"),
    "text that is no UTF-8": _websocket(b"\x81\x02\xff\xfe"),
    "text": _websocket(b"\x81\x05hello"),
    "a long ping": _websocket(b"\x89\x7e\x00\xff" + bytes(255)),
    "nil": _websocket(b"\x82\x01\xc0"),
    "garbage": _websocket(b"\x82\x04\xff\x00\xc1\x93"),
}


class OddPeer:
    """Listens on loopback and gives its answers one after the other, over and over, until `stop`.

    Args:
        answers: to each request that comes.
    """

    def __init__(self, answers: Mapping[str, Answer], port: int = 0) -> None:
        self._answers = list(answers.values())
        self._sock = socket.create_server(("127.0.0.1", port))
        self.port: int = self._sock.getsockname()[1]
        self.asked = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def __enter__(self) -> OddPeer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """The port is free again. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join(10)
        self._sock.close()

    def _run(self) -> None:
        while True:
            client, _ = self._sock.accept()
            with client:
                if self._stopping:
                    return
                self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(5)
        try:
            request = client.recv(65536)
            data = self._answers[self.asked % len(self._answers)](request)
            self.asked += 1
            if data is None:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):  # a close before all is read would reset what was sent
                pass
        except OSError:
            return
