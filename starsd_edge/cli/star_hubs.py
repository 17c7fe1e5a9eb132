"""Hubs of `bench star`: what the program's hub can be told, and one process for each way it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType

from starsd_edge.bench.star_runs import FIFO, HubPlan
from starsd_edge.cli.hub_process import hub_process
from starsd_edge.cli.options import option_fields
from starsd_edge.cli.run_draft import RunDraftOptions
from starsd_edge.cli.timing_hub import PROGRAM

_MAX_SESSIONS = 8192
_USUAL_BATCH = 16


@dataclass(frozen=True)
class HubAbilities:
    """What this version's `run-draft` can be told.

    Attributes:
        policies: of its scheduler, by the names of `--policy`.
        usual_policy: what it takes by itself.
        batches: whether there is `--max-batch`.
    """

    policies: tuple[str, ...]
    usual_policy: str
    batches: bool

    @property
    def usual_batch(self) -> int:
        """Most drafts of one pass."""
        return _USUAL_BATCH if self.batches else 1


def hub_abilities() -> HubAbilities:
    """Read from the options of `run-draft`, the only place where they are written down."""
    fields = {field.key: field for field in option_fields(RunDraftOptions)}
    policy = fields.get("policy")
    if policy is None or not issubclass(policy.type, Enum):
        return HubAbilities((FIFO,), FIFO, "max-batch" in fields)
    default = policy.parameter.default
    names = tuple(str(member.value) for member in policy.type)
    return HubAbilities(names, str(default.value) if isinstance(default, Enum) else names[0], "max-batch" in fields)


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
            arguments = hub_arguments(plan, hub_abilities(), self._draft, self._wrong_ids)
            self._urls[plan] = self._stack.enter_context(hub_process(arguments, self._program))
        return self._urls[plan]


def hub_arguments(plan: HubPlan, abilities: HubAbilities, draft: Path | None, wrong_ids: Sequence[int]) -> list[str]:
    """What the hub's process is told."""
    options: Mapping[str, object] = {
        "--threads": 1,
        "--max-sessions": _MAX_SESSIONS,
        **({"--policy": plan.policy} if len(abilities.policies) > 1 else {}),
        **({"--max-batch": plan.max_batch} if abilities.batches else {}),
        **({"--draft-ms": 1e3 * plan.draft_s} if plan.draft_s else {}),
        **({"--wrong-ids": ",".join(map(str, wrong_ids))} if plan.wrong else {}),
    }
    written = [word for name, value in options.items() for word in (name, str(value))]
    return [*([] if draft is None else [str(draft), "--require-drafter"]), *written]
