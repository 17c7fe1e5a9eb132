"""What `check` found, as data: for people, for scripts and for the exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum

import msgspec

from starsd_edge import __version__

REPORT_VERSION = 1
EXIT_DIFFERS = 1


class Status(str, Enum):
    """How a check ended."""

    OK = "ok"
    DIFFERS = "differs"
    NOT_CHECKED = "not checked here"


@dataclass(frozen=True)
class Check:
    """One of them.

    Attributes:
        name: the same on every machine.
        finding: one line: what is so, what differs, or why it cannot be checked here.
        remedy: one line that says what to do; "" where there is nothing.
        largest: the largest difference seen, relative, where something was compared.
        allowed: and how large it may be.
    """

    name: str
    status: Status
    finding: str
    remedy: str = ""
    largest: float | None = None
    allowed: float | None = None


@dataclass(frozen=True)
class Part:
    """Checks of one thing against another.

    Attributes:
        title: what is checked against what.
        key: the same for scripts: "files", "recorded", "checkpoint", "engine", "head".
    """

    key: str
    title: str
    checks: Sequence[Check]


@dataclass(frozen=True)
class CheckReport:
    """All parts, in the order in which they are shown."""

    bundle: str
    parts: Sequence[Part]

    @property
    def checks(self) -> list[Check]:
        """Of all parts."""
        return [check for part in self.parts for check in part.checks]

    @property
    def exit_code(self) -> int:
        """1 where something differs, else 0."""
        return EXIT_DIFFERS if any(check.status is Status.DIFFERS for check in self.checks) else 0

    @property
    def summary(self) -> str:
        """How many checks ended how."""
        counts = Counter(check.status for check in self.checks)
        shown = (Status.DIFFERS, Status.OK, Status.NOT_CHECKED)
        verb = {Status.DIFFERS: "differs" if counts[Status.DIFFERS] == 1 else "differ"}
        return ", ".join(f"{counts[each]} {verb.get(each, each.value)}" for each in shown if counts[each])

    def to_json(self) -> bytes:
        """One object on one line: `version` of this form, `program`, `bundle`, `exit_code` and `checks`."""
        content = {
            "version": REPORT_VERSION,
            "program": __version__,
            "bundle": self.bundle,
            "exit_code": self.exit_code,
            "checks": [
                {"part": part.key, "of": part.title, **_plain(check)} for part in self.parts for check in part.checks
            ],
        }
        return msgspec.json.encode(content) + b"\n"


def ok(name: str, finding: str) -> Check:
    """A check that found what it should."""
    return Check(name, Status.OK, finding)


def differs(name: str, finding: str, remedy: str = "") -> Check:
    """A check that found something else."""
    return Check(name, Status.DIFFERS, finding, remedy)


def not_checked(name: str, why: str, remedy: str = "") -> Check:
    """A check that cannot be made on this machine."""
    return Check(name, Status.NOT_CHECKED, why, remedy)


def any_differs(checks: Iterable[Check]) -> bool:
    """Whether one of them found a difference."""
    return any(check.status is Status.DIFFERS for check in checks)


def _plain(check: Check) -> dict[str, object]:
    """Infinity is no number of JSON's: null."""
    fields = asdict(check)
    finite = check.largest is not None and check.largest < float("inf")
    return fields | {"largest": check.largest if finite else None}
