"""Measured parts of a round, from a file: durations as they were seen, or the points of a star bench.

    {"service_s": {"1": [0.0121, 0.0119], "4": [0.0163]},  S by size of batch, seconds
     "return_s": [0.036, 0.038],                           Z, seconds
     "tokens_per_round": 2.9,                              with the bonus token
     "plain_step_s": 0.036,                                optional
     "label": "measured on ..."}                           optional

or the list that `bench star` writes as points.json, of which the points of the system itself are taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from starsd_edge.errors import UsageError

Seconds = Annotated[float, Meta(gt=0, le=3600)]
Milliseconds = Annotated[float, Meta(ge=0, le=3_600_000)]
Samples = Annotated[list[Seconds], Meta(min_length=1, max_length=1_000_000)]
OURS, PLAIN = "starsd-edge", "plain"
"""Names of the systems in a star bench whose points are taken: ours, and plain decoding."""
_SWEEPS = ("law", "scale")
"""Sweeps of a star bench from which points are taken, the first that is there."""
_MOST_BYTES = 64 << 20
"""Most bytes of a file that is read, so that a wrong file does not fill the memory."""
_HOW = "see `starsd-edge plan --help` and docs/planning.md for what --from takes"


class MeasuredTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first form of the file: durations as they were seen."""

    service_s: Annotated[dict[str, Samples], Meta(min_length=1)]
    return_s: Samples
    tokens_per_round: Annotated[float, Meta(ge=1, le=1025)]
    plain_step_s: Seconds | None = None
    label: str = ""


class BenchPoint(msgspec.Struct, frozen=True):
    """What is used of a point of `bench star`."""

    sweep: str
    system: str
    targets: Annotated[int, Meta(ge=1)] = msgspec.field(name="N")
    label: str = ""
    service_ms: Milliseconds | None = msgspec.field(name="S ms", default=None)
    return_ms: Milliseconds | None = msgspec.field(name="Z ms", default=None)
    tokens: Annotated[float, Meta(ge=0, le=1025)] | None = msgspec.field(name="tokens/round", default=None)
    batch: Annotated[float, Meta(ge=0, le=1024)] | None = msgspec.field(name="drafts/pass", default=None)
    per_target: Annotated[float, Meta(ge=0)] | None = msgspec.field(name="per target", default=None)


@dataclass(frozen=True)
class RecordedRound:
    """The measured parts of a round, in seconds, as read from a file of either form.

    Attributes:
        service_s: samples of S by size of batch.
        origin: what was measured on which machine, and the number of samples.
    """

    service_s: dict[int, Sequence[float]]
    return_s: Sequence[float]
    tokens: float
    plain_s: float | None
    origin: str


def read_measured(path: Path) -> RecordedRound:
    """Read either form.

    Raises:
        UsageError: it cannot be read, or is neither.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is too large for measured times: {_HOW}")
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): name a JSON file with --from") from None
    try:
        if text.lstrip().startswith(b"["):
            return _from_points(path, msgspec.json.decode(text, type=list[BenchPoint]))
        return _from_times(path, msgspec.json.decode(text, type=MeasuredTimes))
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{path} holds no measured times ({error}): {_HOW}") from None


def _from_times(path: Path, times: MeasuredTimes) -> RecordedRound:
    service_s: dict[int, Sequence[float]] = {}
    for size, samples in times.service_s.items():
        if not (size.isascii() and size.isdigit() and 1 <= int(size) <= 1024):
            raise UsageError(f"{path}: service_s has times for batches of 1 to 1024, not of {size!r}")
        service_s[int(size)] = samples
    count = sum(map(len, service_s.values()))
    origin = f"{times.label or path.name}: {count} times of S, {len(times.return_s)} of Z"
    return RecordedRound(service_s, times.return_s, times.tokens_per_round, times.plain_step_s, origin)


def _from_points(path: Path, points: Sequence[BenchPoint]) -> RecordedRound:
    """The mean S of each size of batch, and Z and E from where targets were fewest: there, nothing but the round itself
    is in them. All of one sweep, so of one shape.
    """
    for sweep in _SWEEPS:
        runs = [
            point
            for point in points
            if point.system == OURS
            and point.sweep == sweep
            and point.service_ms
            and point.return_ms
            and point.tokens
            and point.tokens >= 1
        ]
        if runs:
            break
    else:
        raise UsageError(f"{path} has no point of the sweep {' or '.join(_SWEEPS)}: {_HOW}")
    by_batch = defaultdict(list)
    for point in runs:
        by_batch[max(1, round(point.batch or 1))].append((point.service_ms or 0.0) / 1e3)
    alone = min(runs, key=lambda point: point.targets)
    plain = next((point.per_target for point in points if point.system == PLAIN and point.per_target), None)
    return RecordedRound(
        dict(by_batch),
        [(alone.return_ms or 0.0) / 1e3],
        alone.tokens or 1.0,
        1 / plain if plain else None,
        f"{alone.label or path.name}: mean times of {len(runs)} points of the sweep {sweep}",
    )
