"""The log of long-running commands: both forms, and what never stands in it."""

from __future__ import annotations

import io
import json
import logging
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer

from starsd_edge.cli.logs import LogFormat, LogLevel, LogOptions, logging_to
from starsd_edge.errors import EngineError
from tests.support.command_line import CommandLine
from tests.support.letter_target import LetterTarget
from tests.support.processes import Hub, running
from tests.support.scripted_hub import ScriptedHub

PROMPT = "abacabadabacaba"
log = logging.getLogger("starsd_edge.test")


@pytest.fixture
def err() -> io.StringIO:
    """Where the log goes."""
    return io.StringIO()


def options(level: str = "info", form: str = "json") -> LogOptions:
    return LogOptions(log_level=LogLevel(level), log_format=LogFormat(form))


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_json_line_says_when_how_grave_who_and_what(err: io.StringIO) -> None:
    with logging_to(err, options()):
        log.info("%d targets\nand 'quotes' \x1b[31m", 3)
        try:
            int("broken")
        except ValueError:
            log.exception("it failed")
    first, second = records(err.getvalue())
    assert list(first) == ["time", "level", "logger", "message"]
    assert datetime.fromisoformat(first["time"]).utcoffset() == timedelta(0)
    named = (first["level"], first["logger"], first["message"])
    assert named == ("info", "starsd_edge.test", "3 targets\nand 'quotes' \x1b[31m")
    assert "\x1b" not in err.getvalue()
    assert second["exception"].startswith("Traceback")
    assert second["exception"].endswith("'broken'")


def test_text_is_a_line_for_people(err: io.StringIO) -> None:
    with logging_to(err, options(form="text")):
        log.warning("cutting off %s", "arm")
    assert err.getvalue()[8:] == " WARNING starsd_edge.test: cutting off arm\n"


@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_the_level_decides_what_is_written(err: io.StringIO, level: str, count: int) -> None:
    with logging_to(err, options(level)):
        for grave in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            log.log(grave, "line")
    assert len(records(err.getvalue())) == count


def test_logging_is_as_it_was_afterwards(err: io.StringIO) -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    with logging_to(err, options("debug")):
        assert root.level == logging.DEBUG
    assert (root.level, root.handlers) == before


def test_the_error_that_ends_a_command_is_a_line_of_a_json_log(err: io.StringIO) -> None:
    with pytest.raises(typer.Exit) as ended, logging_to(err, options()):
        raise EngineError("no such engine")
    assert ended.value.exit_code == EngineError.exit_code
    (line,) = records(err.getvalue())
    assert (line["level"], line["message"]) == ("error", "no such engine")
    with pytest.raises(EngineError), logging_to(err, options(form="text")):
        raise EngineError("no such engine")


# The commands.


@pytest.fixture
def target(cli: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LetterTarget:
    return LetterTarget(cli, monkeypatch, tmp_path)


def test_standard_error_of_a_target_is_json_and_nothing_else(target: LetterTarget, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts"
    prompts.write_text(f"{PROMPT}\n{PROMPT * 20}\n")
    hub = ScriptedHub()
    hub.stop()
    for output in ((), ("--json",), ("--stream-json",)):
        ended = target("--prompts", prompts, "--hub", hub.url, "--log-format", "json", *output)
        assert ended.code == 1
        said = [(line["level"], line["message"]) for line in records(ended.err)]
        assert [level for level, _ in said] == ["info", "info", "error"]
        assert "cannot be reached" in said[0][1]
        assert said[1][1].startswith("answer 1: length after ")
        assert said[2][1].startswith("prompt 2 of 2: the prompt has 300 tokens")
    refused = target("--prompt", PROMPT, "--hub", hub.url, "--require-hub", "--log-format", "json")
    assert (refused.code, refused.out) == (1, "")
    assert "cannot be reached" in records(refused.err)[-1]["message"]


def traces(text: str, ids: list[int]) -> Iterator[str]:
    """How some characters or tokens in a row could stand in a log: as text, as a list, or as the bytes of a frame, of
    which a library shows the first and the last.
    """
    for start in range(len(text) - 8):
        yield text[start : start + 8]
    for start in range(len(ids) - 4):
        some = ids[start : start + 4]
        yield ", ".join(map(str, some))
        yield " ".join(f"{each:02x}" for each in some)


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_log_holds_a_prompt_an_answer_their_tokens_or_a_secret(
    target: LetterTarget, form: str, tmp_path: Path
) -> None:
    secret = tmp_path / "token"
    secret.write_text("open-sesame")
    secret.chmod(0o600)
    level = ("--log-level", "debug", "--log-format", form, "--token-file", secret)
    with running(Hub(*level)) as hub:
        asked = ("--prompt", PROMPT, "--name", "arm", "--max-tokens", 100, "--hub", hub.url, "--require-hub", "--json")
        ended = target(*asked, "--draft-wait", 30, *level)
        assert ended.code == 0
        hub.send(signal.SIGTERM)
        assert hub.wait() == 0
        logs = ended.err + hub.errors
    answer = json.loads(ended.out)
    assert answer["figures"]["rounds_by_drafter"]["hub"] > 0
    assert "arm" in hub.errors
    assert "answering a prompt of 15 tokens" in ended.err
    if form == "json":
        assert {line["level"] for line in records(logs)} >= {"debug", "info"}
    ids = [ord(letter) - ord("a") for letter in PROMPT]
    found = [trace for trace in (*traces(PROMPT, ids), *traces(answer["text"], answer["token_ids"])) if trace in logs]
    assert found == []
    assert "open-sesame" not in logs
