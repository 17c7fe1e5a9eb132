"""What the monitor shows, as data: a hub, its targets and what happened. Rates and shares are those of the last
seconds. And what the person in front of it has chosen, and what each key changes. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from starsd_edge.telemetry.feed import Event
from starsd_edge.telemetry.hub_facts import LatencyFacts, ShapeFacts

ON = "on"
"""State of a target whose last round used the hub's draft."""
WARMING = "warming"
FAILING = "failing"


@dataclass(frozen=True)
class Acceptance:
    """What drafts were worth, as the hub sees it.

    Attributes:
        nodes_per_draft: size of the trees.
        accepted_per_draft: nodes of them that came true; None while none is known.
        survival: by level, share of trees of which it came true, among those that offered it below a path that came
            true.
    """

    nodes_per_draft: float | None = None
    accepted_per_draft: float | None = None
    survival: tuple[float, ...] = ()


@dataclass(frozen=True)
class Spoken:
    """What a target tells of itself; None where it has said nothing of late or ever.

    Attributes:
        tokens_per_s: in rounds with a draft.
        plain_tokens_per_s: in rounds without one.
        verify_ms: of one round.
        wait_ms: of one round, for the hub.
        hub_share: of its rounds, those with a draft of the hub.
        local_share: those with a draft of its own.
    """

    tokens_per_s: float | None = None
    plain_tokens_per_s: float | None = None
    verify_ms: float | None = None
    wait_ms: float | None = None
    hub_share: float | None = None
    local_share: float | None = None


@dataclass(frozen=True)
class TargetRow:
    """One connected target.

    Attributes:
        key: tells connections apart, also those of one name.
        port: of the hub's, the one it is connected to; 0 where that is not known.
        rtt_history: milliseconds, one for each snapshot, oldest first.
        state: `ON`, or why its rounds go without the hub.
        latency: of its rounds as the hub observes them.
        shape: how large its drafts are, and why.
    """

    key: str
    name: str
    address: str
    drafter: str
    connected_s: float
    sessions: int
    rtt_ms: float | None
    min_rtt_ms: float | None
    rtt_history: tuple[float, ...]
    queue_ms_p50: float
    queue_ms_p99: float
    drafts_per_s: float
    bytes_up_per_s: float
    bytes_down_per_s: float
    acceptance: Acceptance
    spoken: Spoken
    state: str
    port: int = 0
    latency: LatencyFacts = field(default_factory=LatencyFacts)
    shape: ShapeFacts = field(default_factory=ShapeFacts)


@dataclass(frozen=True)
class DrafterRow:
    """One drafter of the hub."""

    kind: str
    state: str
    sessions: int
    failures: int
    last_error: str


@dataclass(frozen=True)
class HubRow:
    """The hub.

    Attributes:
        busy, idle, lag: shares of the drafting thread's time.
        queue_requests, queue_rows: waiting now.
        batch: drafts of one run of a drafter; None while it made none.
        last_batch: drafts of the last run.
        policy: the rule by which requests are ordered now.
    """

    hub_id: str = ""
    version: str = ""
    uptime_s: float = 0.0
    ready: bool = False
    drafters: tuple[DrafterRow, ...] = ()
    sessions: int = 0
    sessions_away: int = 0
    busy: float = 0.0
    idle: float = 0.0
    lag: float = 0.0
    queue_requests: int = 0
    queue_rows: int = 0
    batch: float | None = None
    drafts_per_s: float = 0.0
    bytes_up_per_s: float = 0.0
    bytes_down_per_s: float = 0.0
    queue_ms_p50: float = 0.0
    queue_ms_p99: float = 0.0
    draft_ms_p50: float = 0.0
    draft_ms_p99: float = 0.0
    acceptance: Acceptance = field(default_factory=Acceptance)
    auth_failures: int = 0
    turned_away: int = 0
    last_batch: int = 0
    policy: str = ""


@dataclass(frozen=True)
class StarBoard:
    """All of it.

    Attributes:
        targets: in the order in which the hub names them.
        events: oldest first.
    """

    hub: HubRow = field(default_factory=HubRow)
    targets: tuple[TargetRow, ...] = ()
    events: tuple[Event, ...] = ()


KEYS = {
    "q": "quit",
    "p, space": "hold the picture, and let it go on",
    "s, S": "sort by the next column, by the one before; the worst comes first",
    "/": "show only targets with these letters in name, state, drafter or address; esc shows all",
    "up, down, k, j": "choose a target; page up, page down, home and end choose further away",
    "enter, d, esc": "one target in detail, and back",
}


@dataclass(frozen=True)
class ViewState:
    """Attributes:
    paused: the picture stands still; snapshots are still taken in.
    sort: index into `ORDERS`.
    selected: key of a target, None before one was chosen.
    wanted: letters of the targets that are shown; "" shows all.
    typing: keys are letters of `wanted`.
    detail: the selected target fills the screen.
    help: so does the help.
    quit: leave.
    """

    paused: bool = False
    sort: int = 0
    selected: str | None = None
    wanted: str = ""
    typing: bool = False
    detail: bool = False
    help: bool = False
    quit: bool = False


ORDERS: tuple[tuple[str, Callable[[TargetRow], tuple[float | str, ...]]], ...] = (
    ("name", lambda row: (row.name, row.key)),
    ("RTT", lambda row: (-_or(row.rtt_ms, -1.0), row.name)),
    ("queue wait", lambda row: (-row.queue_ms_p99, row.name)),
    ("acceptance", lambda row: (_or(row.acceptance.accepted_per_draft, math.inf), row.name)),
    ("tokens/s", lambda row: (-_or(row.spoken.tokens_per_s, -1.0), row.name)),
    ("drafting", lambda row: (row.state == "on", row.state, row.name)),
)
"""Orders in which targets can be shown, those that need attention first."""


def ordered(board: StarBoard, choice: ViewState) -> list[TargetRow]:
    """The targets that are shown, in the order in which they are."""
    wanted = choice.wanted.casefold()
    shown = (row for row in board.targets if any(wanted in text.casefold() for text in _texts(row)))
    return sorted(shown, key=ORDERS[choice.sort][1])


def _texts(row: TargetRow) -> tuple[str, ...]:
    return row.name, row.state, row.drafter, row.address


def selected(board: StarBoard, choice: ViewState) -> TargetRow | None:
    """The chosen target, if it is there."""
    return next((row for row in board.targets if row.key == choice.selected), None)


_MOST_WANTED = 40
_NEAR = {"up": -1, "k": -1, "down": 1, "j": 1}
_PAGES = {"page-up": -1, "page-down": 1}
_ENDS = {"home": -1, "end": 1}


def press(choice: ViewState, key: str, board: StarBoard, page: int = 10) -> ViewState:
    """What is chosen after this key; see `parse_keys` for their names. Unknown keys do nothing.

    Args:
        page: targets that the screen has room for.
    """
    if choice.typing:
        return _typed(choice, key)
    if key == "q":
        return replace(choice, quit=True)
    if key in {"?", "h"}:
        return replace(choice, help=not choice.help)
    if key in {"p", " "}:
        return replace(choice, paused=not choice.paused)
    if key in {"s", "S"}:
        return replace(choice, sort=(choice.sort + (1 if key == "s" else -1)) % len(ORDERS))
    if key == "/":
        return replace(choice, typing=True, help=False, detail=False)
    if key == "esc":
        over_it = choice.help or choice.detail
        return replace(choice, help=False, detail=False, wanted=choice.wanted if over_it else "")
    if key in {"enter", "d"}:
        return replace(_some_selected(choice, board), detail=not choice.detail, help=False)
    if key in _NEAR:
        return _moved(choice, board, _NEAR[key])
    if key in _PAGES:
        return _moved(choice, board, _PAGES[key] * max(1, page))
    if key in _ENDS:
        return _moved(choice, board, _ENDS[key] * max(1, len(board.targets)))
    return choice


def _typed(choice: ViewState, key: str) -> ViewState:
    """Letters, until enter keeps them or esc drops them."""
    if key == "enter":
        return replace(choice, typing=False)
    if key == "esc":
        return replace(choice, typing=False, wanted="")
    if key == "backspace":
        return replace(choice, wanted=choice.wanted[:-1])
    is_letter = len(key) == 1 and key.isprintable() and len(choice.wanted) < _MOST_WANTED
    return replace(choice, wanted=choice.wanted + key) if is_letter else choice


def _moved(choice: ViewState, board: StarBoard, by: int) -> ViewState:
    keys = [row.key for row in ordered(board, choice)]
    if not keys:
        return choice
    if choice.selected in keys:
        index = keys.index(choice.selected) + by
    elif abs(by) == 1:
        index = 0 if by > 0 else len(keys) - 1
    else:  # a page further than the first, which is what is shown
        index = by
    return replace(choice, selected=keys[max(0, min(index, len(keys) - 1))])


def _some_selected(choice: ViewState, board: StarBoard) -> ViewState:
    return choice if selected(board, choice) else _moved(replace(choice, selected=None), board, 1)


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
