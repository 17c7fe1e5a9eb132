"""The figures of `bench decode`, computed from its runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from starsd_edge.bench.figures import Figure, percentile
from starsd_edge.bench.runs import Run, Runs
from starsd_edge.telemetry.rounds import HUB, Round, RoundStats
from starsd_edge.telemetry.summary import LinkFigures

PLAIN = "plain"
NGRAM = "ngram"
SPECULATIVE = "speculative"
"""Name of the mode through a hub with the first drafter asked for; modes of further drafters are named
`speculative_<drafter>`.
"""
TRANSFORMERS = "transformers"
LLAMA_CPP = "llama_cpp"


@dataclass(frozen=True)
class DecodeTimes:
    """What `bench decode` measured.

    Attributes:
        runs: runs by mode; `PLAIN` is always among the modes.
        prompt_tokens: tokens of every prompt.
        verify_s: seconds of verify passes by their number of rows.
        links: for modes through a hub, what the link had seen at the end.
    """

    runs: Runs
    prompt_tokens: int
    verify_s: Mapping[int, Sequence[float]]
    links: Mapping[str, LinkFigures] = field(default_factory=dict)


def decode_figures(measured: DecodeTimes, label: str) -> list[Figure]:
    """Every figure, the ratios among modes included: medians over the runs, a ratio being taken run by run."""
    return [
        *_speeds(measured, label),
        *_ratios(measured.runs, label),
        *_verify_curve(measured.verify_s, label),
        *_own_time(measured.runs[PLAIN], label),
        *(
            figure
            for mode, runs in measured.runs.items()
            if mode == NGRAM or mode.startswith(SPECULATIVE)
            for figure in _speculation(mode, runs, measured.links.get(mode), label)
        ),
    ]


def _speeds(measured: DecodeTimes, label: str) -> Iterator[Figure]:
    for mode, runs in measured.runs.items():
        yield Figure.median(f"{mode}_tokens_per_s", [run.tokens_per_s for run in runs], "tokens/s", label)
        yield Figure.median(f"{mode}_ttft_ms", [1e3 * run.first_s for run in runs], "ms", label)
        rates = [measured.prompt_tokens / run.first_s for run in runs]
        yield Figure.median(f"{mode}_prefill_tokens_per_s", rates, "tokens/s", label)
    yield Figure.median("ttft_ms", [1e3 * run.first_s for run in measured.runs[PLAIN]], "ms", label)


def _ratios(runs: Runs, label: str) -> Iterator[Figure]:
    pairs = [(mode, PLAIN) for mode in runs if mode != PLAIN]
    pairs += [(mode, rival) for rival in (TRANSFORMERS, LLAMA_CPP) if rival in runs for mode in (PLAIN, SPECULATIVE)]
    for one, other in pairs:
        if one in runs:
            ratios = [a.tokens_per_s / b.tokens_per_s for a, b in zip(runs[one], runs[other], strict=True)]
            yield Figure.median(f"{one}_over_{other}", ratios, "", label)


def _verify_curve(verify_s: Mapping[int, Sequence[float]], label: str) -> Iterator[Figure]:
    for rows, seconds in verify_s.items():
        yield Figure.median(f"verify_ms_{rows}", [1e3 * each for each in seconds], "ms", label)
    for rows, seconds in verify_s.items():
        if rows > 1:
            ratios = [many / one for many, one in zip(seconds, verify_s[1], strict=True)]
            yield Figure.median(f"verify{rows}_over_verify1", ratios, "", label)


def _own_time(runs: Sequence[Run], label: str) -> Iterator[Figure]:
    """What a plain round costs beside the model's pass: choosing, text, committing."""
    own = [1e3 * (done.round_s - done.verify_s) for run in runs for done in run.rounds]
    if own:
        yield Figure("plain_own_ms_p50", statistics.median(own), "ms", label)


def _speculation(mode: str, runs: Sequence[Run], link: LinkFigures | None, label: str) -> Iterator[Figure]:
    prefix = figure_prefix(mode)
    stats = RoundStats()
    for run in runs:
        for done in run.rounds:
            stats.add(done)
    yield Figure(f"{prefix}tokens_per_round", stats.tokens_per_round, "tokens", label)
    yield Figure(f"{prefix}accepted_per_round", stats.accepted_per_round, "tokens", label)
    for level, share in enumerate(stats.survival, 1):
        yield Figure(f"{prefix}survival_level_{level}", share, "", label)
    yield Figure(f"{prefix}draft_share", stats.draft_share, "", label)
    if link is None:
        return
    yield Figure(f"{prefix}hub_share", stats.by_origin.get(HUB, 0) / stats.rounds, "", label)
    yield Figure(f"{prefix}bytes_up_per_round", stats.bytes_up_per_round, "B", label)
    yield Figure(f"{prefix}bytes_down_per_round", stats.bytes_down_per_round, "B", label)
    yield from _hub_times(prefix, hub_rounds(runs), label)
    if link.tcp is not None:
        yield Figure(f"{prefix}rtt_ms", 1e3 * link.tcp.rtt_s, "ms", label)
        yield Figure(f"{prefix}min_rtt_ms", 1e3 * link.tcp.min_rtt_s, "ms", label)
    if link.link_s:
        yield Figure(f"{prefix}draft_link_ms", 1e3 * link.link_s, "ms", label)


def _hub_times(prefix: str, rounds: Sequence[Round], label: str) -> Iterator[Figure]:
    if rounds:
        yield Figure(f"{prefix}draft_ms_p50", 1e3 * statistics.median(done.draft_s for done in rounds), "ms", label)
        yield Figure(f"{prefix}round_ms_p50", 1e3 * statistics.median(done.round_s for done in rounds), "ms", label)
        added = [1e3 * (done.round_s - done.draft_s - done.verify_s) for done in rounds]
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            yield Figure(f"{prefix}hub_added_ms_{name}", percentile(added, share), "ms", label)


def hub_rounds(runs: Sequence[Run]) -> list[Round]:
    """Rounds with a hub's draft that came in its own round, without the first of each answer: that one also waits for
    the hub's own prefill.
    """
    return [done for run in runs for done in run.rounds[1:] if done.origin == HUB and not done.late]


def figure_prefix(mode: str) -> str:
    """The prefix of the names of a mode's figures about drafts; empty for `SPECULATIVE`."""
    return "" if mode == SPECULATIVE else f"{mode}_"
