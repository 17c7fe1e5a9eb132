"""What programs embed: the target and the hub of the package itself, and the examples of docs/python.md."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import starsd_edge
from starsd_edge import DraftSettings, OpenTarget, SamplingParams, open_target, start_hub
from starsd_edge.errors import StarsdError, UsageError
from starsd_edge.telemetry.rounds import HUB
from starsd_jetson import target as target_module
from tests.support.decoding import PROMPT, letters, plain_answer, request
from tests.support.letter_bundle import write_bundle
from tests.support.prefix_engine import PrefixEngine

ROOT = Path(__file__).parents[2]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), flags=re.DOTALL)
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}a"
SAMPLED = SamplingParams(temperature=1.0, seed=5)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> PrefixEngine:
    engine = PrefixEngine(1, max_context=128)
    monkeypatch.setattr(target_module, "open_engine", lambda *arguments, **named: engine)
    return engine


@pytest.fixture
def bundle(engine: PrefixEngine, tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle", TEMPLATE)


@pytest.fixture
def target(bundle: Path) -> Iterator[OpenTarget]:
    with open_target(bundle) as opened:
        yield opened


@pytest.mark.parametrize("sampling", [None, SAMPLED])
def test_an_answer_is_that_of_the_model_alone(
    target: OpenTarget, engine: PrefixEngine, sampling: SamplingParams | None
) -> None:
    wanted = request(context=128, sampling=sampling or SamplingParams(), max_tokens=30, stop=("dez",))
    expected = plain_answer(PrefixEngine(1, max_context=128), letters(), wanted)
    answer = target.answer(PROMPT, sampling, max_tokens=30, stop=["dez"])
    assert (answer.token_ids, answer.text, answer.finish_reason) == (
        expected.token_ids,
        expected.text,
        expected.finish_reason,
    )
    pieces = target.stream(PROMPT, sampling, max_tokens=30, stop=["dez"])
    assert "".join(piece.text for piece in pieces) == expected.text


def test_a_text_goes_through_the_chat_template_unless_it_is_raw(target: OpenTarget) -> None:
    assert target.answer("b", max_tokens=9).text == target.answer("uba", max_tokens=9, raw=True).text


def test_an_answer_that_is_closed_leaves_room_for_the_next(target: OpenTarget) -> None:
    pieces = target.stream("abc", max_tokens=30, ignore_eos=True)
    next(pieces)
    pieces.close()
    assert target.answer("abc", max_tokens=30, ignore_eos=True).finish_reason == "length"
    answer = target.answer("abc", max_tokens=30, ignore_eos=True, cancelled=lambda: True)
    assert answer.finish_reason == "cancelled"


def test_a_chat_is_answered_after_all_that_was_said_and_reads_only_what_is_new(target: OpenTarget) -> None:
    chat = target.chat(system="s")
    chat.answer("b", max_tokens=8)
    pieces = chat.stream("cd", max_tokens=8)
    second = "".join(piece.text for piece in pieces)
    prompt = target.target.tokenizer.encode_chat(chat.conversation.without_last().messages("cd"))
    assert second == target.answer(prompt, max_tokens=8).text
    assert [turn.message for turn in chat.conversation.turns] == ["b", "cd"]
    third = chat.answer("e", max_tokens=8)
    assert third.reused_tokens > third.prompt_tokens // 2


def test_drafts_of_a_hub_change_no_token(bundle: Path, target: OpenTarget) -> None:
    expected = target.answer(PROMPT, max_tokens=40, ignore_eos=True)
    with start_hub() as hub:
        drafts = DraftSettings(wait_s=5.0)
        with open_target(bundle, hub=hub.url, require_hub=True, name="board", drafts=drafts) as linked:
            answer = linked.answer(PROMPT, max_tokens=40, ignore_eos=True)
            assert linked.figures.is_up
            assert [shown.target for shown in hub.status().targets] == ["board"]
    assert answer.stats.by_origin.get(HUB, 0) > 0
    assert (answer.token_ids, answer.text) == (expected.token_ids, expected.text)


def test_what_cannot_be_opened_is_one_line(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(StarsdError, match="no bundle at"):
        open_target(tmp_path / "nothing")
    with pytest.raises(UsageError, match="is not the address of a hub"):
        open_target(bundle, hub="desk/8317 ")
    with pytest.raises(StarsdError, match="without --require-hub"):
        open_target(bundle, hub="ws://127.0.0.1:1", require_hub=True)
    with pytest.raises(StarsdError, match="the hub did not start"):
        start_hub(tmp_path / "nothing")
    with pytest.raises(UsageError, match="token file"):
        open_target(bundle, hub="ws://127.0.0.1:1", key_file=tmp_path / "no key")


def test_a_bundle_without_a_template_has_no_chat(engine: PrefixEngine, tmp_path: Path) -> None:
    with open_target(write_bundle(tmp_path / "plain")) as plain, pytest.raises(UsageError, match="no chat template"):
        plain.chat()


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_of_the_page_run(
    number: int, bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["example", str(bundle)])
    exec(compile(EXAMPLES[number], f"docs/python.md, example {number}", "exec"), {"__name__": "__main__"})  # noqa: S102
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_every_name_of_the_package_is_there_and_loads_nothing_before_it_is_asked_for() -> None:
    script = (
        "import sys, starsd_edge; before = {'numpy', 'msgspec', 'websockets', 'starsd_jetson'} & set(sys.modules); "
        "names = [getattr(starsd_edge, name).__name__ for name in starsd_edge.__all__]; "
        "sys.exit(str(before) if before or names != starsd_edge.__all__ else 0)"
    )
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert {*starsd_edge.__all__} <= {*dir(starsd_edge)}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = starsd_edge.nothing  # type: ignore[attr-defined]
