"""What a link to a hub carries: probes of it, and what they say."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from starsd_edge.bench.figures import Figure, percentile
from starsd_edge.doctor.findings import Finding, not_run, note, ok, warning
from starsd_edge.protocol.codec import PROBE_INTERVAL_S
from starsd_edge.protocol.messages import MAX_PROBE_BYTES
from starsd_edge.protocol.target_side import ProbeAnswered
from starsd_edge.telemetry.rtt import TcpRtt

SMALL_BYTES = 64
"""Bytes of a small probe: about what a round of drafting sends each way."""
SMALL_PROBES = 40
LARGE_PROBES = 5
FIRST_LARGE_BYTES = MAX_PROBE_BYTES >> 4
LONG_PROBE_S = 0.1
"""Seconds that a large probe should take: no larger one is tried then."""
PROBE_TIMEOUT_S = 10.0
UNSTEADY_S = 0.005
"""Jitter in seconds below which no round is disturbed."""
RELAY_S = 0.005
"""Seconds: messages that take twice TCP's round trip and this go to an end beyond that of the TCP connection."""
LOSSY = 0.01
"""Share of segments sent again above which the waits for them are felt."""

Probe = Callable[[int, int, float], ProbeAnswered | None]
"""As `HubLink.probe`: bytes up, bytes back, timeout in seconds."""


@dataclass(frozen=True)
class Probes:
    """Link times of probes, in seconds: round trip minus the hub's own time.

    Attributes:
        small_s: of small messages.
        up_s, down_s: of large messages one way, small ones the other.
        up_bytes, down_bytes: their size.
    """

    small_s: Sequence[float]
    up_s: Sequence[float] = ()
    down_s: Sequence[float] = ()
    up_bytes: int = 0
    down_bytes: int = 0


@dataclass(frozen=True)
class LinkFacts:
    """What is known of the link.

    Attributes:
        tcp: the kernel's view; None where it does not tell.
        small_s: link times of small messages, in seconds: of probes, else of drafts.
        of_drafts: they are of drafts, because the hub is too old for probes.
        up_bytes_per_s, down_bytes_per_s: goodput of a large message; None where not measured.
    """

    tcp: TcpRtt | None
    small_s: Sequence[float]
    of_drafts: bool
    up_bytes_per_s: float | None = None
    down_bytes_per_s: float | None = None

    @classmethod
    def of(cls, tcp: TcpRtt | None, probes: Probes | None, draft_link_s: Sequence[float]) -> LinkFacts:
        """From probes where there are any, else from what drafts took."""
        if probes is None or not probes.small_s:
            return cls(tcp, draft_link_s, of_drafts=True)
        return cls(
            tcp,
            probes.small_s,
            of_drafts=False,
            up_bytes_per_s=goodput(probes.small_s, probes.up_s, probes.up_bytes),
            down_bytes_per_s=goodput(probes.small_s, probes.down_s, probes.down_bytes),
        )

    @property
    def median_s(self) -> float:
        """Of a small message, both ways."""
        return statistics.median(self.small_s)

    @property
    def is_relayed(self) -> bool:
        """Whether the TCP connection ends at a tunnel or a proxy, and the hub is some way behind."""
        return self.tcp is not None and bool(self.small_s) and min(self.small_s) > 2 * self.tcp.rtt_s + RELAY_S

    @property
    def rtt_s(self) -> float:
        """The kernel's round-trip time; the least link time where it tells none, or only that to a relay."""
        return min(self.small_s) if self.tcp is None or self.is_relayed else self.tcp.rtt_s

    def transfer_s(self, up_bytes: float, down_bytes: float) -> float:
        """What so many bytes take at the goodput; 0 where that is not known."""
        up = up_bytes / self.up_bytes_per_s if self.up_bytes_per_s else 0.0
        down = down_bytes / self.down_bytes_per_s if self.down_bytes_per_s else 0.0
        return up + down


def goodput(small_s: Sequence[float], large_s: Sequence[float], size: int) -> float | None:
    """Bytes per second by which a large message takes longer than a small one, medians; None where it does not."""
    if not small_s or not large_s:
        return None
    longer = statistics.median(large_s) - statistics.median(small_s)
    return (size - SMALL_BYTES) / longer if longer > 0 else None


def probe_link(probe: Probe, sleep: Callable[[float], None]) -> Probes | None:
    """Small probes, then large ones each way; None where the hub answers none. It ends early with what it has when the
    hub stops answering.

    Args:
        sleep: waits for so many seconds.
    """

    def link_s(up: int, down: int) -> float | None:
        answer = probe(up, down, PROBE_TIMEOUT_S)
        sleep(PROBE_INTERVAL_S)
        return None if answer is None else max(0, answer.round_trip_us - answer.hub_us) / 1e6

    if link_s(SMALL_BYTES, SMALL_BYTES) is None:  # it warms the path up, too
        return None
    small = _several(lambda: link_s(SMALL_BYTES, SMALL_BYTES), SMALL_PROBES)
    up_bytes, up = _large(lambda size: link_s(size, SMALL_BYTES))
    down_bytes, down = _large(lambda size: link_s(SMALL_BYTES, size))
    return Probes(small, up, down, up_bytes, down_bytes)


def _large(link_s: Callable[[int], float | None]) -> tuple[int, list[float]]:
    """Size and times of messages as large as this link carries without holding up others."""
    size = FIRST_LARGE_BYTES
    while size < MAX_PROBE_BYTES:
        seconds = link_s(size)
        if seconds is None or seconds >= LONG_PROBE_S:
            break
        size *= 4
    return size, _several(lambda: link_s(size), LARGE_PROBES)


def _several(measure: Callable[[], float | None], count: int) -> list[float]:
    times: list[float] = []
    for _ in range(count):
        seconds = measure()
        if seconds is None:
            break
        times.append(seconds)
    return times


def check_link(facts: LinkFacts) -> Iterator[Finding]:
    """RTT, jitter, goodput and loss."""
    yield _rtt(facts)
    yield _jitter(facts)
    yield _goodput(facts)
    yield _loss(facts.tcp)


def link_figures(facts: LinkFacts, label: str) -> Iterator[Figure]:
    """The same as figures."""
    if facts.tcp is not None:
        yield Figure("rtt_ms", 1e3 * facts.tcp.rtt_s, "ms", label)
        yield Figure("min_rtt_ms", 1e3 * facts.tcp.min_rtt_s, "ms", label)
        yield Figure("segments_out", facts.tcp.segments_out, "", label)
        yield Figure("retransmits", facts.tcp.retransmits, "", label)
    if facts.small_s:
        yield Figure("link_ms_min", 1e3 * min(facts.small_s), "ms", label)
        yield Figure("link_ms_p50", 1e3 * percentile(facts.small_s, 0.5), "ms", label)
        yield Figure("link_ms_p95", 1e3 * percentile(facts.small_s, 0.95), "ms", label)
    for name, rate in (("goodput_up", facts.up_bytes_per_s), ("goodput_down", facts.down_bytes_per_s)):
        if rate is not None:
            yield Figure(f"{name}_mb_per_s", rate / 1e6, "MB/s", label)


def _rtt(facts: LinkFacts) -> Finding:
    if facts.tcp is None:
        return not_run("RTT", "this system does not tell TCP round-trip times")
    text = f"{milliseconds(facts.tcp.rtt_s)}, least {milliseconds(facts.tcp.min_rtt_s)} (TCP, from the kernel)"
    if facts.is_relayed:
        text += f"; messages take {milliseconds(facts.rtt_s)}, so a tunnel or a proxy lies between: that is what counts"
        return note("RTT", text)
    return ok("RTT", text)


def _jitter(facts: LinkFacts) -> Finding:
    if not facts.small_s:
        return not_run("jitter", "no message came back")
    least, half, most = min(facts.small_s), percentile(facts.small_s, 0.5), percentile(facts.small_s, 0.95)
    what = "drafts" if facts.of_drafts else "small messages"
    text = (
        f"{len(facts.small_s)} {what} took {milliseconds(half)} on the link (p50), {milliseconds(most)} (p95), "
        f"{milliseconds(least)} at least"
    )
    if most - half > max(half, UNSTEADY_S):
        return warning("jitter", text, "look for other traffic or a weak radio link: rounds wait for the slow ones")
    return ok("jitter", text)


def _goodput(facts: LinkFacts) -> Finding:
    if facts.of_drafts:
        return not_run("goodput", "not measured (hub too old)", "bring the hub up to this version")
    if facts.up_bytes_per_s is None or facts.down_bytes_per_s is None:
        return not_run("goodput", "large messages did not come back, or took no longer than small ones")
    return ok("goodput", f"{rate(facts.up_bytes_per_s)} up, {rate(facts.down_bytes_per_s)} down")


def _loss(tcp: TcpRtt | None) -> Finding:
    if tcp is None or not tcp.segments_out:
        return not_run("loss", "this system does not tell what was sent again")
    text = f"{tcp.retransmits} of {tcp.segments_out} segments sent from here were sent again"
    if tcp.retransmits > max(1, LOSSY * tcp.segments_out):
        return warning("loss", text, "the path loses packets: each costs its round a wait")
    return ok("loss", text)


def milliseconds(seconds: float) -> str:
    """With two or three digits that matter."""
    value = 1e3 * seconds
    digits = 3 if value < 0.1 else 2 if value < 10 else 0
    return f"{value:.{digits}f} ms"


def rate(bytes_per_s: float) -> str:
    """In MB/s, or in kB/s below one."""
    return f"{bytes_per_s / 1e6:.0f} MB/s" if bytes_per_s >= 10e6 else f"{bytes_per_s / 1e3:.0f} kB/s"
