"""Every `starsd-edge` command line that a user can read or a file runs is one that the program takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
import yaml

from starsd_edge.cli.settings_files import parse_toml
from starsd_edge.errors import UsageError
from tests.support.written_commands import WrittenCommand, commands_in, read_command

ROOT = Path(__file__).parents[2]
INSTALLED = {
    "/etc/starsd-edge/target.toml": str(ROOT / "jetson" / "deploy" / "target.toml"),
    "/etc/starsd-edge/hub.toml": str(ROOT / "server" / "deploy" / "hub.toml"),
}
"""Where files of the checkout are put."""
PATTERNS = ("*.md", "docs/*.md", "*/README.md", "jetson/deploy/*", "server/deploy/*", "scripts/*.sh")
FILES = sorted(file for pattern in PATTERNS for file in ROOT.glob(pattern) if file.is_file())
COMMANDS = [command for file in FILES for command in commands_in(file)]
ONCE = list({command.arguments: command for command in COMMANDS}.values())


def test_command_lines_are_found_where_they_stand() -> None:
    found = {command.where for command in COMMANDS}
    assert {"README.md", "jetson.md", "starsd-target.service", "starsd-hub.service", "keys.conf"} <= found
    assert {"Dockerfile", "Dockerfile.jetpack6", "Dockerfile.jetpack7", "install.sh", "prepare.sh", "hub.toml"} <= found
    assert len(COMMANDS) > 60


def test_commands_are_told_from_what_programs_print_and_from_talk_of_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "The starsd-edge cache; `starsd-edge doctor` tells.\n\n```text\nwould run: /usr/bin/starsd-edge nothing\n```\n"
        "```\nsudo -u a env B=c starsd-edge pull \\\n    'a model' | cat   # like this\n```\n"
        "```\ndocker run -v /starsd-edge:/b starsd-edge:tag export x\n```\n"
    )
    found = [(command.arguments, command.is_mention) for command in commands_in(page)]
    assert found == [(("pull", "a model"), False), (("export", "x"), False), (("doctor",), True)]


@pytest.mark.parametrize("command", ONCE, ids=str)
def test_the_program_takes_it(command: WrittenCommand) -> None:
    try:
        read_command([INSTALLED.get(argument, argument) for argument in command.arguments])
    except typer.TyperException as error:
        if not (command.is_mention and "Missing argument" in error.format_message()):
            raise


EXTRAS = set(parse_toml((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
SOURCES = [file for place in ("starsd_edge", "export", "server", "jetson") for file in (ROOT / place).rglob("*.py")]


def test_what_is_said_to_be_installed_is_a_directory_with_extras_that_there_are() -> None:
    """Never the program by its name: no package index has it."""
    found = 0
    for file in (*FILES, *SOURCES):
        text = file.read_text(encoding="utf-8")
        for place, extras in re.findall(r"""pip (?:install|wheel)[^`\n]*?'([^'\s]*)\[([a-z{,(.)}'-]+)\]'""", text):
            assert place in {".", "/src", "./starsd-edge"}, f"{file}: {place}[{extras}] is in no package index"
            assert "{" in extras or set(extras.split(",")) <= EXTRAS, f"{file}: {extras}"
            found += 1
    assert found > 15


NEEDS = {"export": {"export"}, "pull": set(), "run-draft": {"server", "cpu"}, "run-target": {"cpu"}}


def test_each_of_two_machines_has_what_its_commands_need() -> None:
    """The steps of the README, by the machine that each is for."""
    page = (ROOT / "README.md").read_text().partition("## A hub and a device")[2].partition("\n## ")[0]
    head, *steps = re.split(r"^\*\*\d\. ", page, flags=re.MULTILINE)
    installed = dict(re.findall(r"`(\w+)`[^`]*\(`pip install '\.\[([a-z,]+)\]'`\)", head.replace("\n", " ")))
    assert set(installed) == {"desk", "device"}
    assert len(steps) == 3
    for step in steps:
        machine = re.findall(r"\(on `(\w+)`\)", step)[0]
        for command in re.findall(r"^starsd-edge (\S+)", step, re.MULTILINE):
            assert NEEDS[command] <= set(installed[machine].split(",")), (machine, command)


def test_the_hub_of_the_compose_file_is_one_that_the_program_takes() -> None:
    services = yaml.safe_load((ROOT / "server" / "deploy" / "compose.yaml").read_text())["services"]
    options = read_command(services["hub"]["command"])
    assert (options.host, options.token_file, options.keys) == (
        "0.0.0.0",  # noqa: S104 (inside its container)
        Path("/run/secrets/hub.token"),
        Path("/run/secrets/keys.toml"),
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["run-draft", "--hots", "::1"],
        ["run-target", "bundle", "--chat", "--prompt", "both"],
        ["run-draft", "--max-batch", "0"],
        ["run-targets"],
    ],
)
def test_a_command_line_that_the_program_would_refuse_is_found(arguments: list[str]) -> None:
    with pytest.raises((UsageError, typer.TyperException)):
        read_command(arguments)
