"""`starsd-edge bench drafts`: how well a drafter predicts a target, without the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from starsd_edge.bench.draft_replay import Features, Paired, Passage, compare, rounds_from, through, walk
from starsd_edge.bench.figures import BenchReport, Figure, describe_machine, label_of
from starsd_edge.bench.prompts import HELD_OUT, is_looping, read_messages
from starsd_edge.cli.bench.modes import decode_plainly, load_target
from starsd_edge.cli.bench.options import BenchDraftsOptions
from starsd_edge.cli.output import output_console
from starsd_edge.protocol.features import FLOAT16, INT8, read_features, write_features
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.telemetry.rounds import Round, RoundStats

if TYPE_CHECKING:
    from starsd_jetson.target import Target
    from starsd_server.drafters.contract import Drafter


_SEED = 20
_SESSION = 1


@dataclass(frozen=True)
class Row:
    """What one kind of tree gave on the texts of one temperature.

    Attributes:
        stats: over the rounds of all texts that do not loop.
        looping: the same of those that do.
        int8: features as int8 against float16, over every start; None where the drafter needs no features.
    """

    temperature: float
    tree: str
    texts: int
    stats: RoundStats
    looping_texts: int
    looping: RoundStats
    int8: Paired | None


class DraftsBench:
    """One run of the command."""

    def __init__(self, options: BenchDraftsOptions, progress: Callable[[str], None]) -> None:
        self._options = options
        self._progress = progress

    def run(self) -> tuple[BenchReport, list[Row]]:
        """Decode the texts, then draft along them."""
        from starsd_edge.bundles.catalogue import find_bundle
        from starsd_edge.cli.run_draft.setup import open_drafters

        options = self._options
        self._progress("loading the target")
        target = load_target(options.bundle, "cpu", options.threads)
        self._progress("loading the drafter")
        (drafter,) = open_drafters([find_bundle(options.draft)], max_sessions=1, threads=options.threads)
        _require_fit(drafter, target)
        messages = read_messages(options.prompts, HELD_OUT)[: options.limit]
        rows: list[Row] = []
        for temperature in options.temperature:
            passages = []
            for number, message in enumerate(messages, 1):
                self._progress(f"decoding at temperature {temperature:g}: {number} of {len(messages)}")
                sampling = SamplingParams(temperature, seed=_SEED)
                passages.append(decode_plainly(target, message, options.new_tokens, sampling))
            for tree, numbers in zip(options.tree, options.shapes, strict=True):
                self._progress(f"drafting {tree} at temperature {temperature:g}")
                rows.append(_measure(drafter, passages, temperature, tree, DraftShape(*numbers)))
        return self._report(rows), rows

    def _report(self, rows: Sequence[Row]) -> BenchReport:
        figures: list[Figure] = []
        label = label_of("cpu")
        for row in rows:
            name = f"t{row.temperature:g}_{row.tree}".replace(".", "_")
            figures.append(Figure(f"{name}_tokens_per_round", row.stats.tokens_per_round, "", label))
            figures.append(Figure(f"{name}_accepted_per_round", row.stats.accepted_per_round, "", label))
            if row.int8 is not None:
                figures.append(Figure(f"{name}_int8_change", row.int8.change, "", label))
                figures.append(Figure(f"{name}_int8_starts", row.int8.starts, "", label))
        settings = {
            "bundle": self._options.bundle,
            "draft": self._options.draft,
            "new_tokens": self._options.new_tokens,
            "seed": _SEED,
        }
        return BenchReport(figures, describe_machine(("onnxruntime", "numpy")), settings)


@dataclass(frozen=True)
class _Session:
    """A drafter's only session, as `DraftSession`."""

    drafter: Drafter

    def extend(self, first_row: int, ids: Sequence[int], features: Features | None) -> None:
        from starsd_server.drafters.contract import extend_one

        extend_one(self.drafter, NewRows(_SESSION, first_row, ids, features))

    def draft(self, shape: DraftShape) -> DraftTree:
        from starsd_server.drafters.contract import draft_one

        return draft_one(self.drafter, _SESSION, shape)


def _require_fit(drafter: Drafter, target: Target) -> None:
    from starsd_edge.errors import UsageError

    reason = drafter.refuses(target.hello("bench", DraftShape(1, 1), target.engine.spec.max_context))
    if reason is not None:
        raise UsageError(f"this drafter does not fit this target: {reason}")


def _measure(drafter: Drafter, passages: Sequence[Passage], temperature: float, tree: str, shape: DraftShape) -> Row:
    wants = drafter.feature_codecs
    sound = [passage for passage in passages if not is_looping(passage.ids[passage.prompt_tokens :])]
    looping = [passage for passage in passages if is_looping(passage.ids[passage.prompt_tokens :])]
    plain = [_rounds(drafter, passage, shape, FLOAT16 if wants else None) for passage in sound]
    int8 = None
    if INT8 in wants and sound:
        coarse = [_rounds(drafter, passage, shape, INT8) for passage in sound]
        int8 = compare(coarse, plain, np.random.default_rng(_SEED))
    others = [_rounds(drafter, passage, shape, FLOAT16 if wants else None) for passage in looping]
    return Row(temperature, tree, len(sound), _walked(plain), len(looping), _walked(others), int8)


def _rounds(drafter: Drafter, passage: Passage, shape: DraftShape, codec: str | None) -> list[Round]:
    if codec is None:
        passage = Passage(passage.ids, passage.prompt_tokens, None)
    else:
        passage = through(passage, lambda features: _carried(features, codec))
    with _opened(drafter, passage.ids[0]):
        return rounds_from(passage, _Session(drafter), shape)


def _carried(features: Features, codec: str) -> Features:
    """As they come out at the hub."""
    rows, width = features.shape
    found = read_features(write_features(np.ascontiguousarray(features), codec), rows, width, codec)
    assert found is not None  # noqa: S101 (a codec was named)
    return found


@contextmanager
def _opened(drafter: Drafter, t_first: int) -> Iterator[None]:
    drafter.open(_SESSION, 0, t_first)
    try:
        yield
    finally:
        drafter.close(_SESSION)


def _walked(texts: Sequence[Sequence[Round]]) -> RoundStats:
    stats = RoundStats()
    for rounds in texts:
        stats.merge(walk(rounds))
    return stats


def show(rows: Sequence[Row]) -> None:
    """One line for each temperature and tree, then what the columns mean."""
    console = output_console(exact=True)
    table = Table(box=None, pad_edge=False, width=console.width)
    for heading in ("T", "tree", "texts", "tokens/ round", "accept./ round", "survival by level", "int8 features"):
        table.add_column(heading, justify="left" if heading.startswith(("tree", "surv")) else "right")
    for row in rows:
        table.add_row(
            f"{row.temperature:g}",
            row.tree,
            str(row.texts),
            f"{row.stats.tokens_per_round:.2f}",
            f"{row.stats.accepted_per_round:.2f}",
            " ".join(f"{share:.2f}" for share in row.stats.survival),
            _int8(row),
        )
    console.print(table)
    for row in rows:
        if row.looping_texts:
            console.print(
                f"T {row.temperature:g}, {row.tree}: {row.looping_texts} texts that loop are not counted above; "
                f"tokens_per_round {row.looping.tokens_per_round:.2f}"
            )
    console.print(
        "tree: nodes x depth x branching, at most; int8: change of the mean tokens of a round against float16, over "
        "every token as a start, with its 95 % interval"
    )


def _int8(row: Row) -> str:
    if row.int8 is None:
        return "-"
    return f"{100 * row.int8.change:+.1f} % ({100 * row.int8.low:+.1f} to {100 * row.int8.high:+.1f})"
