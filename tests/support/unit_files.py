"""systemd's units as data."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

Unit = dict[str, dict[str, list[str]]]
"""Section to setting to its values in order; an empty one takes back those before it."""


def read_unit(file: Path) -> Unit:
    """Parse a unit or a drop-in.

    Raises:
        ValueError: a line that is neither a section, a setting nor a comment.
    """
    unit: Unit = {}
    section: dict[str, list[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        name, is_setting, value = line.partition("=")
        if line.startswith("[") and line.endswith("]"):
            section = unit.setdefault(line[1:-1], {})
        elif is_setting and not line.startswith("#"):
            section.setdefault(name, []).append(value)
            if not value:
                section[name].clear()
        elif line and not line.startswith("#"):
            raise ValueError(f"{file.name}: {line}")
    return unit


def complaints(files: list[Path], place: Path) -> list[str]:
    """What `systemd-analyze verify` says of units, except that the program is not installed here and that an older
    systemd does not know the settings of a newer one which the units say they use.

    Args:
        place: a new directory.
    """
    program = place / "starsd-edge"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copies = []
    for file in files:
        copies.append(place / file.name)
        copies[-1].write_text(file.read_text().replace("/opt/starsd-edge/venv/bin/starsd-edge", str(program)))
    analyser = shutil.which("systemd-analyze")
    assert analyser is not None
    ended = subprocess.run(
        [analyser, "verify", "--man=no", *copies],
        capture_output=True,
        text=True,
        check=False,
        env={"SYSTEMD_UNIT_PATH": f"{place}:", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    newer = re.compile(r"Unknown key (name )?'(RestartSteps|RestartMaxDelaySec)'")
    lines = [line for line in ended.stderr.splitlines() if not newer.search(line)]
    return lines if lines or ended.returncode == 0 else [f"systemd-analyze ended with {ended.returncode}"]
