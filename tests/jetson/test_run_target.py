"""`starsd-edge run-target` as a user meets it: text, figures, refusals, exit codes. The model is the numpy engine."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from starsd_edge.cli.run_target.output import TextOutput
from starsd_edge.cli.streams import printable
from starsd_edge.speculation.penalties import Penalties
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftTree
from starsd_edge.telemetry.rounds import NONE
from starsd_jetson import target as target_module
from starsd_jetson.decoder import Piece, Span
from tests.support.command_line import CommandLine
from tests.support.decoding import EOS, Plain, letters, plain_answer, request
from tests.support.letter_bundle import write_bundle
from tests.support.prefix_engine import PrefixEngine
from tests.support.scripted_hub import Asked, ScriptedHub

PROMPT = "abacabadabacaba"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> PrefixEngine:
    """The model that the command will run."""
    engine = PrefixEngine(1, max_context=128)
    monkeypatch.setattr(target_module, "open_engine", lambda *arguments, **named: engine)
    return engine


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], engine: PrefixEngine, bundle: Path) -> RunTarget:
    return RunTarget(capsys, bundle)


class RunTarget(CommandLine):
    """`starsd-edge run-target BUNDLE ...`"""

    def __init__(self, capture: pytest.CaptureFixture[str], bundle: Path) -> None:
        super().__init__(capture)
        self._bundle = bundle

    def __call__(self, *arguments: object) -> Any:
        return super().__call__("run-target", self._bundle, *arguments)

    def records(self, *arguments: object) -> list[dict[str, Any]]:
        """Its JSON objects."""
        ended = self(*arguments, "--json")
        assert ended.code == 0, ended
        return [json.loads(line) for line in ended.out.splitlines()]


def expected(engine: PrefixEngine, **changes: Any) -> Plain:
    return plain_answer(engine, letters(), request(**{"max_tokens": 30, **changes}))


def test_text_goes_to_stdout_and_figures_beside_it(command: RunTarget, engine: PrefixEngine) -> None:
    ended = command("--prompt", PROMPT, "--max-tokens", 30)
    assert (ended.code, ended.out) == (0, expected(engine).text + "\n")
    for label in ("finish_reason", "tokens/s", "accepted_per_round", "tokens_per_round", "local ngram", "seed"):
        assert label in ended.err


def test_json_says_everything_and_nothing_else(command: RunTarget, engine: PrefixEngine) -> None:
    first, second = command.records("--prompt", PROMPT, "--prompt", "abc", "--max-tokens", 30, "--name", "arm")
    assert Plain(tuple(first["token_ids"]), first["text"], first["finish_reason"]) == expected(engine)
    assert (first["target"], first["prompt"], first["prompt_tokens"], second["prompt"]) == ("arm", 1, 15, 2)
    figures = first["figures"]
    assert figures["rounds"] == sum(figures["rounds_by_drafter"].values())
    assert figures["tokens"] == 30
    assert figures["tokens_per_round"] == pytest.approx(29 / figures["rounds"], abs=1e-3)
    assert figures["hub_drafter"] is None


def test_pieces_as_json_are_the_text(command: RunTarget) -> None:
    ended = command("--prompt", PROMPT, "--stream-json")
    *pieces, answer = [json.loads(line) for line in ended.out.splitlines()]
    assert [record["type"] for record in (*pieces, answer)] == ["text"] * len(pieces) + ["answer"]
    assert len(pieces) > 1
    assert "".join(record["piece"] for record in pieces) == answer["text"]


def test_speculation_changes_nothing_but_the_rounds(command: RunTarget) -> None:
    drafted = command.records("--prompt", PROMPT)[0]
    plain = command.records("--prompt", PROMPT, "--no-speculation")[0]
    assert drafted["text"] == plain["text"]
    assert plain["figures"]["rounds_by_drafter"] == {
        "hub": 0,
        "ngram": 0,
        "grammar": 0,
        "none": plain["figures"]["rounds"],
    }
    assert drafted["figures"]["rounds"] < plain["figures"]["rounds"]


def test_hub_drafts_and_is_named(command: RunTarget, engine: PrefixEngine) -> None:
    def script(asked: Asked) -> list[bytes]:
        return [asked.draft(DraftTree.chain([1]))]

    with ScriptedHub(script) as hub:
        ended = command("--prompt", PROMPT, "--max-tokens", 30, "--hub", hub.url, "--require-hub", "--name", "arm")
        record = command.records("--prompt", PROMPT, "--max-tokens", 30, "--hub", hub.url)[0]
        assert hub.hellos[0].target == "arm"
        assert hub.hellos[0].max_context == 128
    assert ended.out == expected(engine).text + "\n"
    assert "drafts with scripted" in ended.err
    assert "bytes per round" in ended.err
    assert record["figures"]["hub_drafter"] == "scripted"
    assert record["figures"]["rtt_ms"] > 0


def test_hub_that_is_away_is_said_once(command: RunTarget, engine: PrefixEngine) -> None:
    hub = ScriptedHub()
    hub.stop()
    ended = command("--prompt", PROMPT, "--prompt", PROMPT, "--max-tokens", 30, "--hub", hub.url)
    assert ended.code == 0
    assert ended.out == 2 * (expected(engine).text + "\n")
    assert ended.err.count("cannot be reached (Connection refused)") == 1
    assert "Connection refused" in command("--prompt", "a", "--hub", f"ws://localhost:{hub.port}").err
    assert "cannot be reached" in command.refused("--prompt", PROMPT, "--hub", hub.url, "--require-hub")


def test_hub_that_a_file_may_name_is_left_alone_without_speculation(command: RunTarget, engine: PrefixEngine) -> None:
    with ScriptedHub() as hub:
        ended = command("--prompt", PROMPT, "--max-tokens", 30, "--hub", hub.url, "--no-speculation")
        assert (ended.code, ended.out) == (0, expected(engine).text + "\n")
        assert ended.err.splitlines()[0] == "the hub is left alone: --no-speculation decodes token by token"
        assert command("--prompt", "a", "--hub", "", "--token-file", "/nowhere/token", "--require-hub").code == 0
        assert hub.hellos == []


def test_wrong_token(command: RunTarget, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret-word\n")
    token.chmod(0o600)
    with ScriptedHub(status=401) as hub:
        ended = command("--prompt", PROMPT, "--hub", hub.url, "--token-file", token, "--require-hub")
    assert (ended.code, ended.out) == (1, "")
    assert "HTTP 401" in ended.err
    assert "secret-word" not in ended.err


# Sampling.


def test_random_seed_is_shown_and_gives_the_same_answer_again(command: RunTarget) -> None:
    first = command.records("--prompt", PROMPT, "--temperature", 1)[0]
    other = command.records("--prompt", PROMPT, "--temperature", 1)[0]
    again = command.records("--prompt", PROMPT, "--temperature", 1, "--seed", first["seed"])[0]
    assert first["seed"] != other["seed"]
    assert (again["text"], again["seed"]) == (first["text"], first["seed"])
    assert f"{first['seed']}" in command("--prompt", PROMPT, "--seed", first["seed"]).err


def test_stop_string_and_context(command: RunTarget, engine: PrefixEngine) -> None:
    full = expected(engine).text
    assert command("--prompt", PROMPT, "--stop", full[5:8]).out == full[: full.index(full[5:8])] + "\n"
    record = command.records("--prompt", PROMPT, "--context", 20)[0]
    assert (len(record["token_ids"]), record["finish_reason"]) == (5, "length")


def test_every_option_reaches_the_sampler(command: RunTarget, engine: PrefixEngine) -> None:
    options = {
        "--min-p": ("0.2", {"min_p": 0.2}),
        "--repetition-penalty": ("1.8", {"penalties": Penalties(repetition=1.8)}),
        "--presence-penalty": ("-1.5", {"penalties": Penalties(presence=-1.5)}),
        "--frequency-penalty": ("1.5", {"penalties": Penalties(frequency=1.5)}),
        "--logit-bias": ("3=5", {"logit_bias": ((3, 5.0),)}),
    }
    plain = expected(engine, sampling=SamplingParams(1.0, seed=6)).text
    for option, (value, changes) in options.items():
        sampling = SamplingParams(1.0, seed=6, **changes)
        wanted = expected(engine, sampling=sampling).text
        ended = command("--prompt", PROMPT, "--max-tokens", 30, "--temperature", 1, "--seed", 6, option, value)
        assert (ended.code, ended.out) == (0, wanted + "\n"), option
        assert wanted != plain, option


def test_tokens_can_be_forbidden_and_several_favoured(command: RunTarget) -> None:
    bias = ("--logit-bias", "0=-inf", "--logit-bias", "5=30", "--logit-bias", "6=30")
    assert set(command.records("--prompt", PROMPT, "--max-tokens", 40, *bias)[0]["text"]) == set("fg")


def test_an_answer_of_at_least_so_many_tokens_and_one_that_goes_on(command: RunTarget) -> None:
    bias = ("--prompt", PROMPT, "--max-tokens", 12, "--logit-bias", f"{EOS}=90")
    short, longer = command.records(*bias)[0], command.records(*bias, "--min-tokens", 7)[0]
    assert (len(short["token_ids"]), short["finish_reason"]) == (0, "stop")
    assert (len(longer["token_ids"]), longer["finish_reason"]) == (7, "stop")
    on = command.records(*bias, "--ignore-eos")[0]
    assert (on["token_ids"], on["finish_reason"]) == ([EOS] * 12, "length")


def test_json_names_every_option_as_it_was_given(command: RunTarget) -> None:
    usual = command.records("--prompt", "ab", "--max-tokens", 3)[0]["sampling"]
    names = ("temperature", "top_k", "top_p", "min_p")
    penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    assert list(usual) == [*names, *penalties, "logit_bias", "min_tokens"]
    given = dict.fromkeys(usual, 0.5) | {"top_k": 5, "min_tokens": 2, "logit_bias": ["3=-inf"]}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if name != "logit_bias"]
    bias = ("--logit-bias", "3=-inf")
    assert command.records("--prompt", "ab", "--max-tokens", 3, *options, *bias)[0]["sampling"] == given


# Prompts.


def test_chat_template_is_used_unless_raw(command: RunTarget, tmp_path: Path, engine: PrefixEngine) -> None:
    chatty = write_bundle(tmp_path / "chatty", "{% for m in messages %}c{{ m.content }}d{% endfor %}")
    command._bundle = chatty
    assert command.records("--prompt", "ab")[0]["prompt_tokens"] == 4
    assert command.records("--prompt", "ab", "--raw")[0]["prompt_tokens"] == 2


def test_prompts_from_a_file_and_from_standard_input(
    command: RunTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("abc\n\nabcd\n")
    assert [record["prompt_tokens"] for record in command.records("--prompts", file)] == [3, 4]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\r\nabc")))
    assert [record["prompt_tokens"] for record in command.records("--prompts", "-")] == [2, 3]


def test_only_line_ends_separate_prompts(command: RunTarget, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes("ab\fc\r\nab\u2028c\rab\n".encode())
    assert len(command.records("--prompts", file)) == 3


def test_prompt_that_is_too_long_does_not_stop_the_others(command: RunTarget, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("abc\n" + "ab" * 200 + "\nabcd\n")
    ended = command("--prompts", file, "--json")
    assert ended.code == 1
    assert [json.loads(line)["prompt"] for line in ended.out.splitlines()] == [1, 3]
    assert "error: prompt 2 of 3: the prompt has 400 tokens and the context holds 128" in ended.err
    assert "has 400 tokens and the context holds 128" in command.refused("--prompt", "ab" * 200)


@pytest.mark.parametrize(
    ("host", "arguments", "name"),
    [
        ("board-7", (), "board-7"),
        ("board-7", ("--name", "arm"), "arm"),
        ("board-7", ("--name", ""), "board-7"),
        ("", (), "target"),
        ("b\udcff", (), "b?"),  # bytes that are no UTF-8
        ("board-7", ("--name", "a\udcff"), "a?"),
    ],
)
def test_a_target_without_a_name_has_that_of_its_host(
    command: RunTarget, monkeypatch: pytest.MonkeyPatch, host: str, arguments: tuple[str, ...], name: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    with ScriptedHub() as hub:
        (record,) = command.records("--prompt", "abc", "--hub", hub.url, "--require-hub", *arguments)
    assert record["target"] == hub.hellos[0].target == name


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no prompt"),
        (["--prompt", ""], "empty"),
        (["--prompt", "  \n"], "empty"),
        (["--prompts", "/nowhere/prompts"], "cannot read the prompts"),
        (["--prompt", "a", "--device", "abacus"], "no device 'abacus'"),
        (["--prompt", "a", "--temperature", "-1"], "temperature"),
        (["--prompt", "a", "--temperature", "nan"], "temperature"),
        (["--prompt", "a", "--top-p", "0"], "top-p"),
        (["--prompt", "a", "--top-k", "-3"], "top-k"),
        (["--prompt", "a", "--seed", "-1"], "seed"),
        (["--prompt", "a", "--seed", str(2**64)], "seed"),
        (["--prompt", "a", "--max-tokens", "0"], "--max-tokens"),
        (["--prompt", "a", "--min-p", "1.5"], "min-p"),
        (["--prompt", "a", "--repetition-penalty", "0"], "repetition penalty"),
        (["--prompt", "a", "--presence-penalty", "3"], "presence penalty"),
        (["--prompt", "a", "--frequency-penalty", "nan"], "frequency penalty"),
        (["--prompt", "a", "--min-tokens", "-1"], "--min-tokens"),
        (["--prompt", "a", "--min-tokens", "9", "--max-tokens", "8"], "lower --min-tokens"),
        (["--prompt", "a", "--logit-bias", "5"], "ID=VALUE"),
        (["--prompt", "a", "--logit-bias", "the=1"], "ID=VALUE"),
        (["--prompt", "a", "--logit-bias", "24=1"], "ids go from 0 to 23"),
        (["--prompt", "a", "--logit-bias", "5=1000"], "between -100 and 100"),
        (["--prompt", "a", "--logit-bias", "5=1", "--logit-bias", "5=2"], "two logit biases"),
        (["--prompt", "a", "--context", "129"], "129 tokens is more than the 128"),
        (["--prompt", "a", "--stop", ""], "stop string"),
        (["--prompt", "a", "--draft-nodes", "99"], "at most 15 nodes"),
        (["--prompt", "a", "--hub", "http://127.0.0.1:1"], "not the address of a hub"),
        (["--prompt", "a", "--hub", "ws://user:word@127.0.0.1:1"], "must not hold a secret"),
        (["--prompt", "a", "--require-hub"], "need --hub"),
        (["--prompt", "a", "--name", "n" * 257], "--name has 257 characters: give at most 256"),
        (["--prompt", "a", "--draft-wait", "inf"], "number of seconds"),
        (["--prompt", "a", "--draft-wait", "-1"], "--draft-wait"),
        (["--prompt", "a", "--hub", "ws://h:1", "--token-file", "/nowhere/token"], "cannot be read"),
    ],
)
def test_bad_input_is_one_line(command: RunTarget, arguments: list[str], says: str) -> None:
    assert says in command.refused(*arguments)
    assert command(*arguments).code == 2


def test_missing_bundle_is_one_line(command: RunTarget, tmp_path: Path) -> None:
    command._bundle = tmp_path / "nowhere"
    assert "starsd-edge export" in command.refused("--prompt", "a")


def test_inexact_weights_draft_chains_only(
    command: RunTarget, engine: PrefixEngine, monkeypatch: pytest.MonkeyPatch
) -> None:

    def open_engine(*arguments: object, allow_inexact: bool) -> PrefixEngine:
        return PrefixEngine(1, max_context=128, exact_trees=allow_inexact)

    monkeypatch.setattr(target_module, "open_engine", open_engine)
    assert "--allow-inexact" in command.refused("--prompt", PROMPT, "--draft-branching", 3)
    tree = ("--prompt", PROMPT, "--max-tokens", 30, "--draft-branching", 3, "--allow-inexact")
    assert command(*tree).out == expected(engine).text + "\n"
    with ScriptedHub() as hub:
        command("--prompt", PROMPT, "--hub", hub.url)
        assert hub.hellos[0].chains_only


# Ctrl-C and the terminal.


def test_interrupt_ends_with_the_figures_so_far(command: RunTarget, engine: PrefixEngine) -> None:
    passes = 0
    forward = engine.forward

    def interrupted_forward(*arguments: Any, **named: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return forward(*arguments, **named)

    engine.forward = interrupted_forward  # type: ignore[method-assign]
    before = signal.getsignal(signal.SIGINT)
    ended = command("--prompt", PROMPT, "--prompt", PROMPT, "--no-speculation", "--json")
    assert ended.code == 130
    assert signal.getsignal(signal.SIGINT) == before
    records = [json.loads(line) for line in ended.out.splitlines()]
    assert [record["finish_reason"] for record in records] == ["cancelled"]
    assert records[0]["token_ids"] == list(expected(engine).token_ids[:6])
    assert records[0]["figures"]["rounds"] == 5


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def said(text: str) -> Piece:
    return Piece((Span(text, NONE),), (1,), (NONE,))


def test_model_and_hub_cannot_drive_the_terminal() -> None:
    out, err = Terminal(), io.StringIO()
    output = TextOutput(out, err, seed=1)
    output.piece(said("a\x1b[2J\x07b\tc\nd\x9b1m\x7f"))
    output.notice("hub says \x1b]0;title\x07")
    assert out.getvalue() == "a\\x1b[2J\\x07b\tc\nd\\x9b1m\\x7f\n"
    assert err.getvalue() == "hub says \\x1b]0;title\\x07\n"
    assert printable("ünïcödé 中文 🙂\n\t") == "ünïcödé 中文 🙂\n\t"


def test_redirected_text_is_left_as_it_is() -> None:
    out = io.StringIO()
    TextOutput(out, io.StringIO(), seed=1).piece(said("a\x1b[2J"))
    assert out.getvalue() == "a\x1b[2J"


def test_terminal_that_lacks_a_character_gets_another() -> None:
    data = io.BytesIO()
    out = io.TextIOWrapper(data, encoding="ascii")
    TextOutput(out, io.StringIO(), seed=1).piece(said("é!"))
    assert data.getvalue() == b"?!"


def test_link_is_gone_when_the_command_is(command: RunTarget) -> None:
    with ScriptedHub() as hub:
        command("--prompt", PROMPT, "--hub", hub.url)
    assert not any(thread.name == "hub-link" for thread in threading.enumerate())
