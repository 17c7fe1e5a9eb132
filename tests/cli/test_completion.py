"""What shells offer: bash for real, zsh and fish by what they would be told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine

STARSD = """#!/bin/sh
exec {python} -m starsd_edge.cli "$@"
"""
PRESS_TAB = """
eval "$(starsd-edge --show-completion bash)"
COMP_WORDS=({words}) COMP_CWORD={last}
_starsd_edge_completion starsd-edge
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def environment(cache: Path, tmp_path: Path) -> dict[str, str]:
    """A cache with two bundles and something that is none, and the program on the path."""
    for name in ("small-fp32", "small-int8", "big-fp32"):
        (cache / "bundles" / name).mkdir(parents=True)
        (cache / "bundles" / name / "manifest.json").touch()
    (cache / "bundles" / "small-unfinished").mkdir()
    program = tmp_path / "bin" / "starsd-edge"
    program.parent.mkdir()
    program.write_text(STARSD.format(python=sys.executable))
    program.chmod(0o755)
    # typer looks at the process above for the shell, which here is this test's; this makes it take the one it is told.
    return {
        **os.environ,
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }


def run(arguments: list[str], environment: dict[str, str]) -> list[str]:
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    return ended.stdout.split("\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="not run: no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["run-target", "small"], ["small-fp32", "small-int8"]),
        (["run-draft", ""], ["big-fp32", "small-fp32", "small-int8"]),
        (["demo", "--draft", "b"], ["big-fp32"]),
        (["bench", "decode", "small-i"], ["small-int8"]),
        (["pull", "sm"], ["smollm2-135m"]),
        (["run-t"], ["run-target"]),
        (["run-target", "x", "--no-spec"], ["--no-speculation"]),
        (["run-draft", "--log-format", "j"], ["json"]),
        (["run-target", "./sm"], [""]),
        (["help", "bench", "verif"], [""]),
        (["help", "doc"], ["doctor"]),
        (["ls", "x"], [""]),
    ],
)
def test_bash_offers(environment: dict[str, str], words: list[str], offered: list[str]) -> None:
    quoted = " ".join(f"'{word}'" for word in ("starsd-edge", *words))
    script = PRESS_TAB.format(words=quoted, last=len(words))
    assert run(["bash", "--norc", "-c", script], environment)[:-1] == offered


@pytest.mark.parametrize(
    ("shell", "more", "wanted"),
    [
        ("zsh", {}, '"small-fp32"\n"small-int8"'),
        ("fish", {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}, "small-fp32\nsmall-int8"),
    ],
)
def test_other_shells_are_told(environment: dict[str, str], shell: str, more: dict[str, str], wanted: str) -> None:
    asked = {"_STARSD_EDGE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "starsd-edge run-target small"}
    assert wanted in "\n".join(run(["starsd-edge"], {**environment, **asked, **more}))
    script = "\n".join(run(["starsd-edge", "--show-completion", shell], environment))
    assert "_STARSD_EDGE_COMPLETE" in script


def test_an_empty_machine_offers_nothing_and_says_nothing(cache: Path, environment: dict[str, str]) -> None:
    shutil.rmtree(cache)
    asked = {"_STARSD_EDGE_COMPLETE": "complete_bash", "COMP_WORDS": "starsd-edge run-target s", "COMP_CWORD": "2"}
    assert run(["starsd-edge"], {**environment, **asked}) == ["", ""]


def test_names_of_bundles_cost_no_heavy_import() -> None:
    script = (
        "import sys; from starsd_edge.cli.shared_options import bundle_names; bundle_names('x'); "
        "heavy = {'numpy', 'msgspec', 'websockets', 'tokenizers', 'asyncio', 'rich'} & set(sys.modules); "
        "sys.exit(f'imported {sorted(heavy)}' if heavy else 0)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_the_help_names_both_ways_to_have_it(cli: CommandLine) -> None:
    shown = cli("--help").out
    assert "--install-completion" in shown
    assert "--show-completion" in shown
