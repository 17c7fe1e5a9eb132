"""The report of `bench star`: tables in Markdown, and every point as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from starsd_edge.bench.figures import TIMING_BACKEND, BenchReport, Figure, percentile
from starsd_edge.bench.star_figures import StarResults, has_law, law_of
from starsd_edge.bench.star_plan import HEAD, PUBLISHED_DEPTH, SWEEPS
from starsd_edge.bench.star_runs import MeasuredPoint, Point, written_shape

_COLUMNS = (
    "system", "N", "RTT ms", "policy", "batch", "draft", "tokens/s", "accepted/s", "per target", "tokens/round",
    "accepted/round", "S ms", "Z ms", "hub busy", "waiting unserved", "round ms p50", "p99", "law tokens/s",
    "simulated",
)  # fmt: skip
_LEGEND = (
    "tokens/s: of all targets, with the bonus token of each round; accepted/s: without it. S: in the drafter, for each "
    "draft. Z: from the hub's sending a draft to the target's next request, between texts too. Waiting unserved: share "
    "of the time in which the drafting thread did nothing although work waited. Law: N E / max(S + Z, N S) from the S, "
    "Z and E (tokens for each draft) measured at that point. Co-located: one drafter beside one target; N of them are "
    "N times that, since they share nothing."
)


def star_markdown(report: BenchReport, results: StarResults, notes: Sequence[str]) -> str:
    """The whole report as Markdown."""
    return "\n".join([*_head(report), *_figures(report.figures), *_sweeps(results), *_notes(notes), ""])


def point_rows(results: StarResults) -> list[Mapping[str, object]]:
    """Every point that was run, in order, as plain data."""
    return [_data(run, results) for run in results.runs]


def _head(report: BenchReport) -> Iterator[str]:
    machine, settings = report.machine, report.settings
    yield f"# A star on the {TIMING_BACKEND}"
    yield ""
    yield (
        f"Every figure here was measured on the **{TIMING_BACKEND}**: targets replay recorded texts and take the time "
        f"of a modelled device ({settings['verify_ms']} ms x (1 + {settings['verify_growth']} (T - 1)) for a verify "
        f"pass over T rows, give or take {settings['verify_jitter']:.0%}) behind modelled links; hub, draft head, wire "
        "and decode loop are the real ones."
    )
    yield ""
    yield (
        f"The hub's accelerator is modelled, too: a pass takes at least {settings['draft_ms']} ms for one draft "
        f"{PUBLISHED_DEPTH} levels deep, {settings['draft_growth']:.1%} of it more for each further session, and less "
        f"for fewer levels. In the part *{HEAD}* it takes what the drafter takes on this machine; law runs, RTT and "
        "policies have batches of one."
    )
    yield ""
    yield (
        f"{machine['cpu']}, {machine['cores']} cores, load average {machine['load_average_before']} before; bundle "
        f"{settings['bundle']}, draft {settings['draft'] or 'n-grams'}, {settings['texts']} texts, "
        f"{settings['seconds']} s of each point after {settings['warm_up_rounds']} rounds of every target, seed "
        f"{settings['seed']}."
    )
    yield ""


def _figures(figures: Sequence[Figure]) -> Iterator[str]:
    yield "## Figures"
    yield ""
    yield from _table(("figure", "value", "unit"), [(each.name, f"{each.value:.4g}", each.unit) for each in figures])


def _sweeps(results: StarResults) -> Iterator[str]:
    for sweep in SWEEPS:
        runs = results.of(sweep)
        if runs:
            yield f"## {sweep.capitalize()}"
            yield ""
            yield from _table(_COLUMNS, [_row(run, results) for run in runs])
    yield _LEGEND


def _notes(notes: Sequence[str]) -> Iterator[str]:
    if notes:
        yield ""
        yield from (f"- {note}" for note in notes)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _row(run: MeasuredPoint, results: StarResults) -> list[str]:
    data = _data(run, results)
    return [_shown(data[column]) for column in _COLUMNS]


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _draft(point: Point) -> str | None:
    if point.hub is None:
        return None
    return written_shape(point.hub.shape) if point.hub.shape else f"auto, at most {written_shape(point.shape)}"


def _data(run: MeasuredPoint, results: StarResults) -> dict[str, object]:
    point, stats, hub = run.point, run.stats, run.hub
    links_ms = sorted({1e3 * link.rtt_s for link in point.links})
    accepted = stats.accepted / stats.emitted if stats.emitted else 0.0
    simulated = results.simulated.get(point)
    periods = run.periods_s
    return {
        "label": TIMING_BACKEND,
        "sweep": point.sweep,
        "system": point.system,
        "N": point.targets,
        "sessions": len(run.targets),
        "RTT ms": f"{links_ms[0]:g}" if len(links_ms) == 1 else f"{links_ms[0]:g}-{links_ms[-1]:g}",
        "policy": point.hub.policy if point.hub else None,
        "batch": point.hub.max_batch if point.hub else None,
        "draft": _draft(point),
        "tokens/s": run.tokens_per_s,
        "accepted/s": run.tokens_per_s * accepted,
        "per target": run.per_target,
        "tokens/round": stats.tokens_per_round,
        "accepted/round": stats.accepted_per_round,
        "S ms": 1e3 * run.mean_service_s if hub else None,
        "Z ms": 1e3 * run.mean_return_s if hub else None,
        "hub busy": hub.busy if hub else None,
        "waiting unserved": hub.lag if hub else None,
        "drafts/pass": hub.drafts_per_s / hub.passes_per_s if hub and hub.passes_per_s else None,
        "idle gap ms": 1e3 * hub.idle / hub.drafts_per_s if hub and hub.drafts_per_s else None,
        "round ms p50": 1e3 * percentile(periods, 0.5) if periods else None,
        "p90": 1e3 * percentile(periods, 0.9) if periods else None,
        "p99": 1e3 * percentile(periods, 0.99) if periods else None,
        "law tokens/s": law_of(run).tokens_per_s if has_law(run) else None,
        "law busy": law_of(run).utilisation if has_law(run) else None,
        "simulated": simulated.tokens_per_s if simulated else None,
        "simulated busy": simulated.utilisation if simulated else None,
        "per target each": [round(target.tokens_per_s, 3) for target in run.targets],
        "draft s each": [round(share, 4) for share in run.draft_shares],
        "RTT ms each": [round(1e3 * link.rtt_s, 4) for link in point.links],
    }
