"""Options from flags, the environment, files and defaults: which one counts, and what is said of wrong ones."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from starsd_edge.cli import settings_files as settings_places
from starsd_edge.cli.settings_files import parse_toml
from tests.support.command_line import CommandLine
from tests.support.letter_target import LetterTarget

ROOT = Path(__file__).parents[2]
PROMPT = ("--prompt", "abacabadabacaba")


@pytest.fixture
def target(cli: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LetterTarget:
    return LetterTarget(cli, monkeypatch, tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration file of this test's own, not written yet."""
    return tmp_path / "config.toml"


@pytest.fixture
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Where files are looked for without --config: for the machine, and for the user."""
    monkeypatch.delenv("STARSD_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    system, user = tmp_path / "etc" / "config.toml", tmp_path / "xdg" / "starsd-edge" / "config.toml"
    monkeypatch.setattr(settings_places, "SYSTEM_FILE", system)
    for place in (system, user):
        place.parent.mkdir(parents=True)
    return system, user


def shown(cli: CommandLine, command: str, *before: object) -> dict[str, Any]:
    """`config show COMMAND --json`: value and origin of each option."""
    ended = cli(*before, "config", "show", command, "--json")
    assert ended.code == 0, ended
    (options,) = json.loads(ended.out)["commands"].values()
    return {key: (each["value"], each["origin"]) for key, each in options.items()}


# Which one counts.


def test_flag_before_environment_before_file_before_default(
    target: LetterTarget, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokens(*flags: object) -> int:
        return len(target.record(*PROMPT, *flags, before=("--config", file))["token_ids"])

    file.write_text("")
    assert tokens("--context", 30) == 15
    file.write_text("[run-target]\ncontext = 30\nmax-tokens = 7\n")
    assert tokens() == 7
    monkeypatch.setenv("STARSD_RUN_TARGET_MAX_TOKENS", "5")
    assert tokens() == 5
    assert tokens("--max-tokens", 3) == 3


def test_a_flag_undoes_what_the_environment_or_a_file_says(
    target: LetterTarget, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("[run-target]\nspeculation = false\njson = true\n")

    def ngram_rounds(*flags: object) -> int:
        ended = target(*PROMPT, *flags, before=("--config", file))
        rounds: int = json.loads(ended.out)["figures"]["rounds_by_drafter"]["ngram"]
        return rounds

    assert ngram_rounds() == 0
    assert ngram_rounds("--speculation") > 0
    monkeypatch.setenv("STARSD_RUN_TARGET_SPECULATION", "true")
    assert ngram_rounds() > 0
    assert ngram_rounds("--no-speculation") == 0
    assert not target(*PROMPT, "--no-json", before=("--config", file)).out.startswith("{")


def test_options_that_may_be_repeated(
    cli: CommandLine, target: LetterTarget, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = target.record(*PROMPT)["text"]
    late, middle, early = full[8:11], full[3:6], full[:3]

    def answer(*flags: object) -> str:
        text: str = target.record(*PROMPT, *flags, before=("--config", file))["text"]
        return text

    file.write_text(f'[run-target]\nstop = ["?", "{late}"]\n')
    assert answer() == full[: full.index(late)]
    monkeypatch.setenv("STARSD_RUN_TARGET_STOP", f'["two words", "{middle}"]')
    assert answer() == full[: full.index(middle)] != full[: full.index(late)]
    assert answer("--stop", early) == ""
    monkeypatch.setenv("STARSD_RUN_TARGET_STOP", "two words")
    assert shown(cli, "run-target")["stop"] == (["two words"], "STARSD_RUN_TARGET_STOP")


def test_a_required_argument_can_be_set_elsewhere(target: LetterTarget, file: Path) -> None:
    file.write_text(f"[run-target]\nbundle = {json.dumps(str(target.bundle))}\n")
    ended = target.cli("--config", file, "run-target", *PROMPT, "--max-tokens", 3, "--json")
    assert len(json.loads(ended.out)["token_ids"]) == 3


def test_the_users_file_goes_before_the_machines_and_one_that_is_named_replaces_both(
    cli: CommandLine, usual: tuple[Path, Path], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, user = usual
    system.write_text('[run-draft]\nport = 1000\nhost = "::1"\n')
    user.write_text("[run-draft]\nport = 2000\n")
    options = shown(cli, "run-draft")
    assert options["port"] == (2000, str(user))
    assert options["host"] == ("::1", str(system))
    assert options["max-sessions"] == (64, "default")
    assert cli("config", "path").out == f"{system}\n{user}\n"
    file.write_text("[run-draft]\nport = 3000\n")
    for before in (("--config", file), ()):
        options = shown(cli, "run-draft", *before)
        assert options["port"] == (3000, str(file))
        assert options["host"] == ("127.0.0.1", "default")
        monkeypatch.setenv("STARSD_CONFIG", str(file))  # for the second time round


def test_no_file_is_no_fault(cli: CommandLine, usual: tuple[Path, Path]) -> None:
    ended = cli("config", "path")
    assert (ended.code, ended.out) == (0, "")
    assert str(usual[1]) in ended.err
    assert cli("pull", "--list").code == 0


def test_paths_in_a_file_are_meant_from_where_it_is(
    cli: CommandLine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    file.write_text('[run-target]\nhub = "ws://desk:8317"\ntoken-file = "hub.token"\nprompts = "-"\n')
    options = shown(cli, "run-target", "--config", file)
    assert options["token-file"] == (str(file.parent / "hub.token"), str(file))
    assert options["prompts"][0] == "-"
    file.write_text('[monitor]\ntoken-file = "~/hub.token"\n')
    assert shown(cli, "monitor", "--config", file)["token-file"][0] == "/home/someone/hub.token"


def test_a_home_that_nobody_knows_makes_a_file_that_is_not_there(
    cli: CommandLine, target: LetterTarget, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("--hub", "ws://desk:8317", *PROMPT)
    monkeypatch.setenv("STARSD_RUN_TARGET_TOKEN_FILE", "~no-such-user/hub.token")
    assert "~no-such-user/hub.token cannot be read" in cli.refused("run-target", target.bundle, *given)
    monkeypatch.delenv("STARSD_RUN_TARGET_TOKEN_FILE")
    file.write_text('[run-target]\ntoken-file = "~no-such-user/hub.token"\n')
    assert "hub.token cannot be read" in cli.refused("--config", file, "run-target", target.bundle, *given)


def test_an_empty_hub_undoes_that_of_a_file(cli: CommandLine, file: Path) -> None:
    file.write_text('[doctor]\nhub = "ws://desk:8317"\nnetwork = ""\njson = true\n')
    refused = cli.refused("--config", file, "doctor", "--network", "ws://127.0.0.1:9")
    assert "leave out --hub" in refused
    there = cli("--config", file, "doctor", "--network", "ws://127.0.0.1:9", "--hub", "", "--bundle", "nowhere")
    assert "no bundle named 'nowhere'" in there.err


# What is shown.


def test_show_is_a_file_that_says_the_same_again(cli: CommandLine, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARSD_BENCH_DECODE_DRAFTER", "ngram")
    file.write_text('[run-target]\nstop = ["\\n\\n", "\\u007f\\u0085\\"é"]\ntemperature = 0.5\nthreads = 3\n')
    first = cli("--config", file, "config", "show")
    assert (first.code, first.err) == (0, "")
    again = file.with_name("again.toml")
    again.write_text(first.out)
    assert parse_toml(first.out)["run-target"]["stop"] == ["\n\n", '\x7f\x85"é']
    second = cli("--config", again, "config", "show")
    assert second.code == 0, second
    assert parse_toml(second.out) == parse_toml(first.out)
    assert "\x7f" not in first.out
    assert "\x85" not in first.out


def test_show_fits_80_columns_and_says_where_everything_is_from(cli: CommandLine, file: Path) -> None:
    file.write_text('[run-target]\nmax-tokens = 7\nname = "a target whose name is so long that it fills the line"\n')
    lines = cli("--config", file, "config", "show", "run-target").out.splitlines()
    assert lines[0] == "[run-target]"
    assert lines[1].split() == ["#", "bundle", "=", "#", "required", "argument"]
    assert f"max-tokens = 7 # {file}" in [" ".join(line.split()) for line in lines] or f"# {file}" in lines
    assert lines[lines.index('name = "a target whose name is so long that it fills the line"') - 1] == f"# {file}"
    assert all(len(line) <= 80 for line in lines if str(file) not in line)


def test_show_tells_the_place_of_a_token_and_never_the_token(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("open-sesame\n")
    monkeypatch.setenv("STARSD_RUN_DRAFT_TOKEN_FILE", str(token))
    ended = cli("config", "show", "run-draft")
    assert str(token) in ended.out
    assert "open-sesame" not in ended.out + ended.err


def test_show_takes_a_command_of_two_words_and_a_whole_group(cli: CommandLine) -> None:
    whole = cli("config", "show", "bench").out
    one, other = (cli("config", "show", "bench", name).out for name in ("decode", "drafts"))
    assert one.startswith("[bench.decode]\n")
    assert other.startswith("[bench.drafts]\n")
    assert one.strip() in whole
    assert other.strip() in whole
    assert cli("config", "show", "bench.decode").out == one
    assert "no command 'benhc' has options" in cli.refused("config", "show", "benhc")


def test_show_tells_of_variables_that_are_no_options(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARSD_RUN_TARGET_MAX_TOKEN", "5")
    ended = cli("config", "show", "run-target")
    assert (ended.code, ended.err) == (0, "note: STARSD_RUN_TARGET_MAX_TOKEN is set, and there is no such option\n")


def test_show_tells_when_options_do_not_go_together(cli: CommandLine, file: Path) -> None:
    file.write_text("[run-target]\nrequire-hub = true\n")
    ended = cli("--config", file, "config", "show", "run-target")
    assert ended.code == 2
    assert "require-hub = true" in ended.out
    assert ended.err == "error: run-target: --require-hub and --token-file need --hub, the address of the hub\n"


# What is refused.


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[run-target]\nmax-token = 5\n", "[run-target] has no key 'max-token': did you mean max-tokens"),
        ("[run-target]\ntoken = 'secret'\n", "[run-target] has no key 'token': did you mean token-file"),
        ("[run-target]\nmax_tokens = 5\n", "did you mean max-tokens"),
        ("[run-targt]\nmax-tokens = 5\n", "no command has the table [run-targt]: did you mean [run-target]"),
        ("[bench.decod]\nrepeats = 5\n", "no command has the table [bench.decod]: did you mean [bench.decode]?"),
        ("[config.show]\njson = true\n", "no command has the table [config]"),
        ("[bench]\nrepeats = 5\n", "bench.repeats belongs into the table of a command: [bench.decode]"),
        ("max-tokens = 5\n", "max-tokens belongs into the table of a command: [run] or [run-target] or [demo]"),
        ("[run-target]\nmax-tokens = '5'\n", '[run-target] max-tokens must be a whole number, not "5"'),
        ("[run-target]\nmax-tokens = 5.5\n", "[run-target] max-tokens must be a whole number, not 5.5"),
        ("[run-target]\nmax-tokens = true\n", "[run-target] max-tokens must be a whole number, not true"),
        ("[run-target]\ntemperature = 'hot'\n", '[run-target] temperature must be a number, not "hot"'),
        ("[run-target]\nraw = 1\n", "[run-target] raw must be true or false, not 1"),
        ("[run-target]\nstop = 'x'\n", '[run-target] stop must be an array of strings, not "x"'),
        ("[run-target]\nstop = [1]\n", "[run-target] stop must be an array of strings, not an array"),
        ("[run-target]\nname = 2026-01-01\n", "[run-target] name must be a string, not a date or time"),
        ("[run-target.hub]\nurl = 'x'\n", "[run-target] hub must be a string, not a table"),
        ("[run-draft]\nlog-level = 5\n", "[run-draft] log-level must be one of debug, info, warning, error, not 5"),
        ("[run-target\n", "is not TOML: Expected ']'"),
        ("[run-target]\nraw = true\nraw = true\n", "is not TOML: "),
        ("[run-target]\nname = 'caf\udce9'\n", "is not UTF-8 text (byte 24)"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(cli: CommandLine, file: Path, text: str, says: str) -> None:
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    table = text.partition("]")[0].strip("[").partition(".")[0]
    stopped = ("pull", "--list")  # by what may be meant for any command
    if table in ("run-target", "run-draft", "bench") and "is not" not in says:
        stopped = (table, *(("decode",) if table == "bench" else ()), "x")
    for command in (stopped, ("config", "show")):
        said = cli.refused("--config", file, *command)
        assert says in said
        assert str(file) in said
        assert "secret" not in said


def test_a_file_that_cannot_be_read_is_one_line(cli: CommandLine, tmp_path: Path) -> None:
    missing = cli.refused("--config", tmp_path / "none", "pull", "--list")
    assert missing == f"error: the configuration {tmp_path / 'none'} cannot be read: No such file or directory"
    assert "Is a directory" in cli.refused("--config", tmp_path, "pull", "--list")


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("MAX_TOKENS", "many", "'--max-tokens'"),
        ("MAX_TOKENS", "0", "greater than or equal to 1"),
        ("RAW", "perhaps", "'--raw'"),
        ("LOG_LEVEL", "loud", "'loud' is not one of 'debug', 'info', 'warning', 'error'"),
        ("STOP", '["a', "begins like an array and is none"),
        ("STOP", "[1]", "is an array of strings"),
    ],
)
def test_a_wrong_variable_is_named(
    target: LetterTarget, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    monkeypatch.setenv(f"STARSD_RUN_TARGET_{variable}", value)
    said = target.cli.refused("run-target", target.bundle, *PROMPT)
    assert says in said
    assert f"STARSD_RUN_TARGET_{variable}" in said


def test_a_value_out_of_range_names_its_file_and_table(target: LetterTarget, file: Path) -> None:
    file.write_text("[run-target]\nmax-tokens = 0\n")
    said = target.cli.refused("--config", file, "run-target", target.bundle, *PROMPT)
    assert "'--max-tokens'" in said
    assert f"(set in {file}, [run-target])" in said
    given = target.cli.refused("--config", file, "run-target", target.bundle, *PROMPT, "--max-tokens", 0)
    assert str(file) not in given


def test_what_only_the_command_can_refuse_tells_where_else_options_come_from(target: LetterTarget, file: Path) -> None:
    file.write_text("[run-target]\ntemperature = -1\n[run-draft]\nport = 1\n")
    said = target.cli.refused("--config", file, "run-target", target.bundle, *PROMPT)
    assert f"(options also come from {file}: `starsd-edge config show run-target` shows them)" in said
    assert "config show" not in target.cli.refused("--config", file, "monitor", "http://desk")


def test_the_example_in_the_page_is_understood(cli: CommandLine, file: Path) -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    (example,) = [block for block in page.split("```") if "\n[run-target]\n" in block]
    file.write_text(example)
    ended = cli("--config", file, "config", "show")
    assert (ended.code, ended.err) == (0, "")
    assert parse_toml(ended.out)["bench"]["decode"]["repeats"] == 3
    assert parse_toml(ended.out)["run-target"]["token-file"] == str(file.parent / "hub.token")


def test_help_and_version_work_whatever_a_file_says(cli: CommandLine, file: Path) -> None:
    file.write_text("[nonsense")
    assert cli("--config", file, "--help").code == 0
    assert cli("--config", file, "--version").code == 0
    assert cli("--config", file, "run-target", "--help").code == 0
    assert cli("--config", file, "config", "path").out == f"{file}\n"


@pytest.mark.parametrize(
    "text",
    [
        f"a = {'[' * 9000}",
        f"a = {'{b=' * 9000}",
        f"a = {'9' * 9000}",
        "a.b = 1\na.b.c = 2\n",
        "a = 9999-99-99T99:99:99Z\n",
        "\0",
    ],
)
def test_toml_that_breaks_a_parser_is_a_wrong_file(cli: CommandLine, file: Path, text: str) -> None:
    file.write_text(text)
    assert f"{file} is not TOML" in cli.refused("--config", file, "pull", "--list")


def test_a_wrong_table_stops_its_own_command_only(cli: CommandLine, file: Path) -> None:
    file.write_text("[run-target]\nmax-token = 5\n[bench]\nrepeats = 5\n[pull]\nlist = true\n")
    assert "[run-target] has no key 'max-token'" in cli.refused("--config", file, "run-target")
    assert "bench.repeats" in cli.refused("--config", file, "bench", "verify", "x")
    assert "no command has the table" not in cli.refused("--config", file, "plan", "--rtt", "x")
    assert cli("--config", file, "pull").code == 0
    assert cli("--config", file, "run-target", "--help").code == 0


def test_a_variable_with_a_typo_is_named(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARSD_PULL_LISTT", "1")
    ended = cli("pull", "--list")
    assert (ended.code, ended.err) == (0, "note: STARSD_PULL_LISTT is set, and there is no such option\n")


def test_tables_are_parsed_by_the_standard_library_where_it_can() -> None:
    assert ("tomli" in sys.modules) == (sys.version_info < (3, 11))
    assert os.environ["STARSD_CONFIG"] == os.devnull, "tests do not depend on who runs them"
