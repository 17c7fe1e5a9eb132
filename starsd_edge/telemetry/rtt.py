"""Round-trip times: a smoothed estimate of our own measurements, and what the kernel knows of a TCP connection.

A WebSocket ping is no measure of the network: it waits behind our own event loop and behind whatever is being sent. The
kernel's estimate is.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from typing import Protocol

# Linux socket options (linux/tcp.h), by number because Python does not name them on every system.
_TCP_INFO_OPTION = 11
_TCP_QUICKACK_OPTION = 12
_IPPROTO_TCP = 6
_TCP_INFO_BYTES = 256
"""Bytes asked for of `struct tcp_info`: more than the fields that are read reach to."""
# Byte offsets in Linux' `struct tcp_info` (linux/tcp.h): tcpi_rtt, tcpi_total_retrans, tcpi_segs_out, tcpi_min_rtt.
_RTT_OFFSET = 68
_RETRANSMITS_OFFSET = 100
_SEGMENTS_OUT_OFFSET = 136
_MIN_RTT_OFFSET = 148
_NUMBER = struct.Struct("=I")
"""The form of each of these fields: 32 bits, unsigned, in the machine's byte order; times are in microseconds."""
_NO_MINIMUM_YET = 0xFFFFFFFF
"""Value of tcpi_min_rtt before the kernel has measured a round trip."""


class RttEstimator:
    """Smoothed round-trip time and its mean deviation (RFC 6298, section 2), and the least time seen.

    Attributes:
        samples: measurements taken in.
        smoothed_s: SRTT in seconds; 0 before the first sample.
        deviation_s: RTTVAR in seconds.
        minimum_s: the least sample in seconds; 0 before the first.
    """

    _SMOOTHED_GAIN = 1 / 8
    _DEVIATION_GAIN = 1 / 4

    def __init__(self) -> None:
        self.samples = 0
        self.smoothed_s = 0.0
        self.deviation_s = 0.0
        self.minimum_s = 0.0

    def add(self, seconds: float) -> None:
        """Take in one measurement, in seconds."""
        if self.samples == 0:
            self.smoothed_s, self.deviation_s, self.minimum_s = seconds, seconds / 2, seconds
        else:
            self.deviation_s += self._DEVIATION_GAIN * (abs(self.smoothed_s - seconds) - self.deviation_s)
            self.smoothed_s += self._SMOOTHED_GAIN * (seconds - self.smoothed_s)
            self.minimum_s = min(self.minimum_s, seconds)
        self.samples += 1

    @property
    def upper_s(self) -> float:
        """A time that few round trips exceed: SRTT + 4 RTTVAR, in seconds."""
        return self.smoothed_s + 4 * self.deviation_s


@dataclass(frozen=True)
class TcpRtt:
    """The kernel's view of one TCP connection, in seconds.

    Attributes:
        rtt_s: smoothed round-trip time.
        min_rtt_s: least recent round-trip time, as the kernel keeps it: the propagation delay.
        segments_out: segments sent from this end so far, those sent again included.
        retransmits: segments that were sent again.
    """

    rtt_s: float
    min_rtt_s: float
    segments_out: int = 0
    retransmits: int = 0


class SocketOptions(Protocol):
    """The one method of a socket that reading TCP_INFO needs."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """As `socket.socket.getsockopt`."""


class SettableOptions(Protocol):
    """The one method of a socket that acknowledging needs."""

    def setsockopt(self, level: int, optname: int, value: int, /) -> None:
        """As `socket.socket.setsockopt`."""


def acknowledge_now(sock: SettableOptions | None) -> None:
    """Acknowledge what has arrived, instead of with the next message or 40 ms later; call after every message.

    Both ends take turns here, so the kernel delays acknowledgements, and the delay (a target's verify pass, a hub's
    draft) would count as round-trip time at the other end. Nothing happens where the system has no such option.
    """
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(_IPPROTO_TCP, _TCP_QUICKACK_OPTION, 1)


def read_tcp_rtt(sock: SocketOptions) -> TcpRtt | None:
    """The kernel's round-trip times of this connection; None where it does not tell them (other systems, sockets that
    are not TCP, closed ones).
    """
    try:
        info = sock.getsockopt(_IPPROTO_TCP, _TCP_INFO_OPTION, _TCP_INFO_BYTES)
    except OSError:
        return None
    if len(info) < _MIN_RTT_OFFSET + _NUMBER.size:
        return None
    rtt, minimum, segments_out, retransmits = (
        int(_NUMBER.unpack_from(info, offset)[0])
        for offset in (_RTT_OFFSET, _MIN_RTT_OFFSET, _SEGMENTS_OUT_OFFSET, _RETRANSMITS_OFFSET)
    )
    return TcpRtt(rtt / 1e6, (rtt if minimum == _NO_MINIMUM_YET else minimum) / 1e6, segments_out, retransmits)
