"""What a check found, as data: for people, for scripts and for the exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum

import msgspec

from starsd_edge import __version__
from starsd_edge.bench.figures import Figure

REPORT_VERSION = 1
EXIT_FAILURE = 1


class Level(str, Enum):
    """How bad a finding is. Only a failure counts for the exit code."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAILURE = "failure"
    NOT_RUN = "not-run"


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        name: of the check, the same on every machine.
        level: how bad it is.
        finding: one line.
        remedy: one line that says what mends it; "" where nothing has to be mended or the finding says so itself.
    """

    name: str
    level: Level
    finding: str
    remedy: str = ""


def ok(name: str, finding: str, remedy: str = "") -> Finding:
    """All is well."""
    return Finding(name, Level.OK, finding, remedy)


def note(name: str, finding: str, remedy: str = "") -> Finding:
    """Worth knowing."""
    return Finding(name, Level.NOTE, finding, remedy)


def warning(name: str, finding: str, remedy: str = "") -> Finding:
    """It works, and badly."""
    return Finding(name, Level.WARNING, finding, remedy)


def failure(name: str, finding: str, remedy: str = "") -> Finding:
    """It does not work; only this counts for the exit code."""
    return Finding(name, Level.FAILURE, finding, remedy)


def not_run(name: str, finding: str, remedy: str = "") -> Finding:
    """The check could not be made."""
    return Finding(name, Level.NOT_RUN, finding, remedy)


@dataclass(frozen=True)
class Findings:
    """All findings of one run, in the order in which they are shown, and what was measured."""

    findings: Sequence[Finding]
    figures: Sequence[Figure] = ()

    @property
    def exit_code(self) -> int:
        """1 where something failed, else 0."""
        return EXIT_FAILURE if any(each.level is Level.FAILURE for each in self.findings) else 0

    @property
    def summary(self) -> str:
        """How many findings of each level."""
        counts = Counter(each.level for each in self.findings)
        plural = {Level.FAILURE: "failures", Level.WARNING: "warnings", Level.NOTE: "notes"}
        parts = []
        for level in (Level.FAILURE, Level.WARNING, Level.NOTE, Level.OK, Level.NOT_RUN):
            name = level.value.replace("-", " ") if counts[level] == 1 else plural.get(level, level.value)
            if counts[level]:
                parts.append(f"{counts[level]} {name.replace('-', ' ')}")
        return ", ".join(parts)

    def to_json(self) -> bytes:
        """One object on one line: `version` of this form, `program`, `exit_code`, `checks` and `figures`."""
        content = {
            "version": REPORT_VERSION,
            "program": __version__,
            "exit_code": self.exit_code,
            "checks": [asdict(each) for each in self.findings],
            "figures": [
                {"name": each.name, "value": round(each.value, 6), "unit": each.unit, "label": each.label}
                for each in self.figures
            ],
        }
        return msgspec.json.encode(content) + b"\n"
