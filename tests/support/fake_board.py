"""A Jetson as far as the install script looks at one: a root with its files, and programs that note
how they are called.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "jetson" / "deploy" / "install.sh"
JETPACK_6 = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64"
JETPACK_7 = "# R39 (release), REVISION: 2.0, GCID: 45755727, BOARD: generic, EABI: aarch64"
NODES = ("nvmap", "nvhost-gpu", "nvgpu/igpu0/ctrl", "nvidia0", "nvidiactl", "dri/renderD128", "video0")
DEVICES_CSV = "etc/nvidia-container-runtime/host-files-for-container.d/devices.csv"

_NOTED = """#!/bin/sh
echo "${0##*/} $*" >>"$CALLS"
"""
_PROGRAMS = {
    "uname": "#!/bin/sh\necho ${MACHINE:-aarch64}\n",
    "id": """#!/bin/sh
case "$*" in
-u) echo "${USER_ID:-0}" ;;
-nG*) cat "$CALLS.groups" 2>/dev/null ;;
*) [ -e "$CALLS.account" ] ;;
esac
""",
    "getent": '#!/bin/sh\ncase " ${GROUPS_THERE:-video render} " in *" $2 "*) ;; *) exit 2 ;; esac\n',
    "dpkg-query": '#!/bin/sh\n[ -n "$PACKAGE" ] && printf %s "$PACKAGE"\n',
    "useradd": _NOTED + ': >"$CALLS.account"\n',
    "usermod": _NOTED + 'printf "%s " "$3" >>"$CALLS.groups"\n',
    "systemctl": _NOTED,
    # There is no such user here to whom files could belong.
    "install": _NOTED + 'exec /usr/bin/install $(echo "$*" | sed -E "s/-[og] starsd//g")\n',
}
_PYTHON = """#!/bin/sh
echo "python $*" >>"$CALLS"
case "$2" in
"import sys;"*) echo "${PYTHON_VERSION:-3.10}" ;;
"import ensurepip") [ -z "$NO_VENV" ] ;;
"import tensorrt;"*) [ -n "${TENSORRT-10.3.0}" ] && echo "${TENSORRT-10.3.0}" ;;
venv) for place; do :; done && mkdir -p "$place/bin" && cp "$0" "$place/bin/python" ;;
esac
"""


@dataclass
class FakeBoard:
    """One board.

    Attributes:
        place: an empty directory.
        release: first line of nv_tegra_release; "" where there is no such file.
        environment: what its programs say other than usual.
    """

    place: Path
    release: str = JETPACK_6
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in NODES:
            self._write(f"dev/{node}", "")
        self._write("usr/bin/python3", _PYTHON, executable=True)
        if self.release:
            self._write("etc/nv_tegra_release", f"{self.release}\n# KERNEL_VARIANT: oot\n")
        for name, text in _PROGRAMS.items():
            program = self.place / "programs" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(text)
            program.chmod(0o755)

    @property
    def root(self) -> Path:
        """Its file system."""
        return self.place / "root"

    def install(self, *options: object) -> subprocess.CompletedProcess[str]:
        """Run the script."""
        own = {
            "PATH": f"{self.place / 'programs'}:/usr/bin:/bin",
            "STARSD_ROOT": str(self.root),
            "CALLS": str(self.place / "calls"),
            "LC_ALL": "C",
        }
        return subprocess.run(
            ["/bin/bash", SCRIPT, *map(str, options)],
            env={**own, **self.environment},
            cwd=os.sep,
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self) -> list[str]:
        """What its programs were called with since the last time that this was asked."""
        file = self.place / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines

    def files(self) -> dict[str, str]:
        """Everything that it holds, by its path."""
        return {str(file.relative_to(self.root)): file.read_text() for file in self.root.rglob("*") if file.is_file()}

    def _write(self, path: str, text: str, *, executable: bool = False) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        if executable:
            file.chmod(0o755)
