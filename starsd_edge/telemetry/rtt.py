"""Round-trip times and other durations that are measured again and again, and what the kernel knows of a connection.

`RttEstimator` is the estimate of RFC 6298. It needs a dozen samples to get to a new level and keeps a large variance
for longer still. `TrackedDuration` adds a two-sided CUSUM test (Page, 1954) on how many mean deviations each sample is
off. Each sample counts for at most `_MOST_OFF`, so that no single one is taken for a change. When the test says that
the level has changed, the estimate begins anew from the samples since.

A WebSocket ping is no measure of the network: it waits behind our own event loop and behind whatever is being sent. The
kernel's estimate is.
"""

from __future__ import annotations

import contextlib
import statistics
import struct
from collections import deque
from dataclasses import dataclass
from typing import Protocol

_SMOOTHED_GAIN = 1 / 8
"""Weight of a new sample in the smoothed time (alpha of RFC 6298, section 2)."""
_DEVIATION_GAIN = 1 / 4
"""Weight of a new sample in the mean deviation (beta of RFC 6298, section 2)."""
_MOST_OFF = 4.0
"""Mean deviations that one sample counts for at most in the CUSUM test."""
_SLACK = 1.0
"""Mean deviations by which a sample may be off without being evidence of a change."""
_ALARM = 7.0
"""Sum of deviations beyond the slack, in mean deviations, at which the level has changed: three samples in a row that
are far off, or more samples that are less far off.
"""
_MOST_FOLDED = 3.0
"""Mean deviations of a sample that enter the smoothed estimates at most, before a change is certain."""
_LEAST_SHARE = 1 / 16
"""Least mean deviation as a share of the level, so that a very steady duration raises no alarm at a small difference.
"""
_LEAST_S = 0.00025
"""Least mean deviation in seconds, for the same purpose at short durations."""
_SUSPECTS = 8
"""Most samples kept since the test began to rise; the new level is estimated from them."""

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

    Args:
        averages_first: average the first samples instead of weighting them as the RFC does, so that the very first one
            does not count for long. `TrackedDuration` needs it: each change of level begins with a first sample.

    Attributes:
        samples: measurements taken in.
        smoothed_s: SRTT in seconds; 0 before the first sample.
        deviation_s: RTTVAR in seconds.
        minimum_s: the least sample in seconds; 0 before the first.
    """

    def __init__(self, *, averages_first: bool = False) -> None:
        self.samples = 0
        self.smoothed_s = 0.0
        self.deviation_s = 0.0
        self.minimum_s = 0.0
        self._averages_first = averages_first

    def add(self, seconds: float) -> None:
        """Take in one measurement, in seconds."""
        if self.samples == 0:
            self.begin(seconds, seconds / 2)
            return
        self.samples += 1
        least = 1 / self.samples if self._averages_first else 0.0
        self.deviation_s += max(_DEVIATION_GAIN, least) * (abs(self.smoothed_s - seconds) - self.deviation_s)
        self.smoothed_s += max(_SMOOTHED_GAIN, least) * (seconds - self.smoothed_s)
        self.minimum_s = min(self.minimum_s, seconds)

    def begin(self, level_s: float, deviation_s: float) -> None:
        """Forget all samples; a first one was at this level in seconds, with this mean deviation."""
        self.samples = 1
        self.smoothed_s, self.deviation_s, self.minimum_s = level_s, deviation_s, level_s

    @property
    def upper_s(self) -> float:
        """A time that few round trips exceed: SRTT + 4 RTTVAR, in seconds."""
        return self.smoothed_s + 4 * self.deviation_s


@dataclass(frozen=True)
class Change:
    """The level was `before_s` and is `after_s` now, in seconds."""

    before_s: float
    after_s: float


class TrackedDuration:
    """A smoothed duration (RFC 6298) that follows a sudden change of level at once; see the module's docstring.

    Attributes:
        samples: number of samples taken in.
        changes: number of sudden changes so far.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.changes = 0
        self._estimate = RttEstimator(averages_first=True)
        self._above = _Suspicion()
        self._below = _Suspicion()

    @property
    def smoothed_s(self) -> float:
        """SRTT in seconds; 0 before the first sample."""
        return self._estimate.smoothed_s

    @property
    def deviation_s(self) -> float:
        """RTTVAR in seconds."""
        return self._estimate.deviation_s

    def add(self, seconds: float) -> Change | None:
        """Take in a sample; the change, if it settles that there was one."""
        self.samples += 1
        if self.samples == 1:
            self._estimate.add(seconds)
            return None
        level_s = self.smoothed_s
        spread_s = max(self.deviation_s, _LEAST_SHARE * level_s, _LEAST_S)
        off = (seconds - level_s) / spread_s
        if self._above.add(off, seconds):
            return self._change_to(self._above)
        if self._below.add(-off, seconds):
            return self._change_to(self._below)
        self._estimate.add(level_s + max(-_MOST_FOLDED, min(_MOST_FOLDED, off)) * spread_s)
        return None

    def _change_to(self, suspicion: _Suspicion) -> Change:
        before_s = self.smoothed_s
        level_s = statistics.median(suspicion.samples)
        self._estimate.begin(level_s, statistics.fmean(abs(sample - level_s) for sample in suspicion.samples))
        self._above, self._below = _Suspicion(), _Suspicion()
        self.changes += 1
        return Change(before_s, level_s)


class _Suspicion:
    """One side of the CUSUM test, and the samples since its sum began to rise."""

    def __init__(self) -> None:
        self.samples: deque[float] = deque(maxlen=_SUSPECTS)
        self._sum = 0.0

    def add(self, off: float, sample: float) -> bool:
        """Whether a change to this side is certain now; `off` in mean deviations to this side."""
        self._sum = max(0.0, self._sum + min(off, _MOST_OFF) - _SLACK)
        if self._sum == 0.0:
            self.samples.clear()
        elif off > _SLACK:
            self.samples.append(sample)
        return self._sum > _ALARM


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
