"""The figures of answers as data: names and values for machines, labels and text for people."""

from __future__ import annotations

from dataclasses import dataclass, field

from starsd_edge.protocol.codes import MEANINGS
from starsd_edge.telemetry.rounds import GRAMMAR, HUB, NGRAM, NONE, RoundStats
from starsd_edge.telemetry.rtt import TcpRtt

_ORIGINS = (HUB, NGRAM, GRAMMAR, NONE)
Value = int | float | str | list[float] | dict[str, int] | None


@dataclass(frozen=True)
class LinkFigures:
    """What a target's link to the hub has seen so far.

    Attributes:
        drafter: kind of drafter the hub offered last; "" before the first WELCOME.
        tcp: the kernel's round-trip times of the present or last connection; None when there was none.
        link_s: smoothed time that a draft's round trip spent outside the hub, in seconds; 0 before the first draft.
        connections: times the hub accepted this target.
        recent_link_s: times of the last drafts outside the hub, in seconds.
        is_up: the hub is there now.
        clamped_rows: rows with a feature of the target's model that was not finite in float16.
    """

    drafter: str = ""
    tcp: TcpRtt | None = None
    link_s: float = 0.0
    connections: int = 0
    recent_link_s: tuple[float, ...] = ()
    is_up: bool = False
    clamped_rows: int = 0


@dataclass
class Figures:
    """Sums over one answer or several.

    Attributes:
        answers: how many.
        tokens: their tokens.
        prefill_s: time to the first tokens, summed, in seconds.
        decode_s: time from the first to the last tokens, summed, in seconds.
        stats: their rounds.
    """

    answers: int = 0
    tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    stats: RoundStats = field(default_factory=RoundStats)

    def add(self, tokens: int, prefill_s: float, decode_s: float, stats: RoundStats) -> None:
        """Count one answer."""
        self.answers += 1
        self.tokens += tokens
        self.prefill_s += prefill_s
        self.decode_s += decode_s
        self.stats.merge(stats)

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the rounds per second of decoding: prefill and first tokens are left out."""
        return self.stats.emitted / self.decode_s if self.decode_s > 0 else 0.0

    def named(self, link: LinkFigures) -> dict[str, Value]:
        """Every figure by name; times in the unit that the name ends with."""
        stats = self.stats
        return {
            "tokens": self.tokens,
            "tokens_per_s": round(self.tokens_per_s, 3),
            "time_to_first_token_s": round(self.prefill_s / max(1, self.answers), 6),
            "decode_s": round(self.decode_s, 6),
            "rounds": stats.rounds,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "accepted_per_round": round(stats.accepted_per_round, 4),
            "tokens_per_round": round(stats.tokens_per_round, 4),
            "survival": [round(share, 4) for share in stats.survival],
            "draft_share": round(stats.draft_share, 4),
            "rounds_by_drafter": {origin: stats.by_origin.get(origin, 0) for origin in _ORIGINS},
            "rounds_off": dict(stats.why_off),
            "late_drafts_used": stats.late,
            "clamped_rows": link.clamped_rows,
            "bytes_up_per_round": round(stats.bytes_up_per_round, 1),
            "bytes_down_per_round": round(stats.bytes_down_per_round, 1),
            "round_ms": _per_round_ms(stats.round_s, stats),
            "verify_ms": _per_round_ms(stats.verify_s, stats),
            "draft_wait_ms": _per_round_ms(stats.wait_s, stats),
            "hub_drafter": link.drafter or None,
            "rtt_ms": round(link.tcp.rtt_s * 1e3, 3) if link.tcp else None,
            "min_rtt_ms": round(link.tcp.min_rtt_s * 1e3, 3) if link.tcp else None,
            "draft_link_ms": round(link.link_s * 1e3, 3) if link.link_s else None,
        }

    def lines(self, link: LinkFigures) -> list[tuple[str, str]]:
        """The main figures for people, as pairs of label and text."""
        stats = self.stats
        first_ms = 1e3 * self.prefill_s / max(1, self.answers)
        lines = [
            ("tokens", f"{self.tokens}, the first after {first_ms:.0f} ms, then {self.tokens_per_s:.1f} tokens/s"),
            ("accepted_per_round", f"{stats.accepted_per_round:.2f}"),
            ("tokens_per_round", f"{stats.tokens_per_round:.2f}"),
            ("rounds", f"{stats.rounds}, {stats.draft_share:.0%} with a draft: {_origins(stats, link)}"),
        ]
        lines += [("off", _off(reason, stats)) for reason in stats.why_off]
        if link.clamped_rows:
            lines.append(
                ("features", f"not finite in {link.clamped_rows} rows, clamped for the hub: its drafts are weak")
            )
        if stats.survival:
            lines.append(("survival by level", " ".join(f"{share:.2f}" for share in stats.survival)))
        if link.connections:
            lines.append(("RTT", _round_trip(link)))
            lines.append(
                ("bytes per round", f"{stats.bytes_up_per_round:.0f} up, {stats.bytes_down_per_round:.0f} down")
            )
        return lines


def _per_round_ms(seconds: float, stats: RoundStats) -> float:
    return round(1e3 * seconds / max(1, stats.rounds), 3)


def _origins(stats: RoundStats, link: LinkFigures) -> str:
    hub = f"hub ({link.drafter})" if link.drafter else "hub"
    names = {HUB: hub, NGRAM: "local ngram", GRAMMAR: "grammar", NONE: "none"}
    shown = [origin for origin in _ORIGINS if origin != GRAMMAR or stats.by_origin.get(GRAMMAR)]
    return ", ".join(f"{names[origin]} {stats.by_origin.get(origin, 0)}" for origin in shown)


def _off(reason: str, stats: RoundStats) -> str:
    count = stats.why_off[reason]
    return f"{reason} in {count} {'round' if count == 1 else 'rounds'}: {MEANINGS[reason]}"


def _round_trip(link: LinkFigures) -> str:
    tcp = "unknown" if link.tcp is None else f"{link.tcp.rtt_s * 1e3:.2f} ms (least {link.tcp.min_rtt_s * 1e3:.2f} ms)"
    return f"{tcp}, drafts {link.link_s * 1e3:.2f} ms on the link" if link.link_s else tcp
