"""Scripts and container files, read by the linters of their kind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*ROOT.glob("scripts/*.sh"), *ROOT.glob("*/deploy/*.sh")])
CONTAINERS = sorted(ROOT.glob("*/deploy/Dockerfile*"))
FETCHED_INTO_A_SHELL = re.compile(
    r"(curl|wget)[^|\n]*\|\s*(sudo\s+)?(ba)?sh\b|(ba)?sh\s+-c\s+\"?\$\((curl|wget)|<\((curl|wget)"
)


def linter(name: str) -> str:
    """The program, of this environment or of the machine."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"not run: there is no {name} here (the dependency group `lint` has it for x86-64)")
    return found


def said_by(*command: object) -> str:
    return subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False).stdout


def test_there_is_something_to_read() -> None:
    assert {"install.sh", "prepare.sh", "test.sh", "demo.sh"} <= {script.name for script in SCRIPTS}
    assert {file.name for file in CONTAINERS} == {"Dockerfile", "Dockerfile.jetpack6", "Dockerfile.jetpack7"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    assert said_by(linter("shellcheck"), "--external-sources", script) == ""


@pytest.mark.parametrize("file", CONTAINERS, ids=lambda file: file.name)
def test_hadolint_has_nothing_to_say(file: Path) -> None:
    assert said_by(linter("hadolint"), "--no-color", file) == ""


def test_the_linters_would_say_of_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "wrong.sh").write_text("#!/bin/bash\ncd $1\n")
    assert "SC2086" in said_by(linter("shellcheck"), tmp_path / "wrong.sh")
    (tmp_path / "Dockerfile").write_text("FROM debian\nRUN cd /tmp\n")
    assert "DL3006" in said_by(linter("hadolint"), "--no-color", tmp_path / "Dockerfile")


RUN_BY_USERS = [script for script in SCRIPTS if script.name not in {"environment.sh", "pythons.sh"}]


@pytest.mark.parametrize("script", RUN_BY_USERS, ids=lambda script: script.name)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_who_asks_for_help_gets_it_and_nothing_else(script: Path, option: str, tmp_path: Path) -> None:
    """In a checkout without an environment, and with no program that could make one."""
    for folder in ("scripts", "server/deploy", "jetson/deploy"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    before = sorted(tmp_path.rglob("*"))
    for name in ("bash", "sed", "dirname", "cat", "grep"):
        path = shutil.which(name)
        assert path is not None
        (tmp_path.parent / f"{tmp_path.name}-bin").mkdir(exist_ok=True)
        (tmp_path.parent / f"{tmp_path.name}-bin" / name).symlink_to(path)
    command = ["bash", str(script.relative_to(ROOT)), option]
    environment = {"PATH": f"{tmp_path}-bin", "HOME": str(tmp_path)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert script.name in ended.stdout
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("file", [*SCRIPTS, *CONTAINERS], ids=lambda file: file.name)
def test_nothing_from_the_network_goes_into_a_shell(file: Path) -> None:
    assert FETCHED_INTO_A_SHELL.search(file.read_text()) is None


@pytest.mark.parametrize(
    "line", ["curl -fsSL https://x | sudo bash", "wget -qO- x | sh", 'bash -c "$(curl x)"', "source <(curl x)"]
)
def test_what_would_be_found(line: str) -> None:
    assert FETCHED_INTO_A_SHELL.search(line)
