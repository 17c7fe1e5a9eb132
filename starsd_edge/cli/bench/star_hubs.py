"""Hubs of `bench star`: a process for each way in which one is told to work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from starsd_edge.bench.device_times import ModelDraftTimes
from starsd_edge.bench.star_runs import HubPlan, written_shape
from starsd_edge.cli.bench.timing_hub import PROGRAM
from starsd_edge.cli.draft_shapes import AUTO
from starsd_edge.hub_process import hub_process

_MAX_SESSIONS = 8192


class StarHubs:
    """Starts a hub when it is first needed and keeps it; one that nobody uses costs nothing. A context manager.

    Args:
        draft: the draft bundle; None for n-grams.
        wrong_ids: tokens that no text holds.
    """

    def __init__(self, draft: Path | None, wrong_ids: Sequence[int], program: Sequence[str] = PROGRAM) -> None:
        self._draft = draft
        self._wrong_ids = wrong_ids
        self._program = program
        self._stack = ExitStack()
        self._urls: dict[HubPlan, str] = {}

    def __enter__(self) -> StarHubs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def url(self, plan: HubPlan) -> str:
        """The address of a hub that is as planned.

        Raises:
            StarsdError: it does not start.
        """
        if plan not in self._urls:
            arguments = hub_arguments(plan, self._draft, self._wrong_ids)
            self._urls[plan] = self._stack.enter_context(hub_process(arguments, self._program))
        return self._urls[plan]


def hub_arguments(plan: HubPlan, draft: Path | None, wrong_ids: Sequence[int]) -> list[str]:
    """What the hub's process is told."""
    options: Mapping[str, object] = {
        "--threads": 1,
        "--max-sessions": _MAX_SESSIONS,
        "--resume-grace": 1,
        "--policy": plan.policy,
        "--max-batch": plan.max_batch,
        "--draft-shape": AUTO if plan.shape is None else f"fixed:{written_shape(plan.shape)}",
        **({} if plan.times is None else _modelled(plan.times)),
        **({"--wrong-ids": ",".join(map(str, wrong_ids))} if plan.wrong else {}),
    }
    written = [word for name, value in options.items() for word in (name, str(value))]
    return [*([] if draft is None else [str(draft), "--require-drafter"]), *written]


def _modelled(times: ModelDraftTimes) -> dict[str, object]:
    return {"--draft-ms": 1e3 * times.one_s, "--draft-growth": times.growth, "--draft-levels": times.levels}
