"""Prompts of one length: the template whole, the message cut or lengthened, never silently wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers

from starsd_edge.bench.prompts import fit_prompts, read_messages
from starsd_edge.bundles.manifest import TextRules
from starsd_edge.errors import UsageError
from starsd_edge.text.tokenizer import Tokenizer
from tests.support.small_tokenizers import byte_level

HEAD, TAIL = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
MESSAGES = ["The hub drafts, the target verifies.", "Speculative decoding: the same words, only sooner."]


@pytest.fixture(scope="module")
def backend() -> tokenizers.Tokenizer:
    return byte_level()


@pytest.fixture(scope="module")
def tokenizer(backend: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(backend, TextRules(bos_id=None, eos_ids=[], add_bos=False))


def in_chat(tokenizer: Tokenizer, message: str) -> list[int]:
    return tokenizer.encode(f"{HEAD}{message}{TAIL}")


@pytest.mark.parametrize("room", [8, 9, 30, 200])
def test_every_prompt_has_the_length_and_the_whole_template(tokenizer: Tokenizer, room: int) -> None:
    head, tail = tokenizer.encode(HEAD), tokenizer.encode(TAIL)
    length = len(head) + room + len(tail)
    prompts = fit_prompts(MESSAGES, lambda message: in_chat(tokenizer, message), length)
    assert [len(prompt) for prompt in prompts] == [length] * len(MESSAGES)
    for first, prompt in enumerate(prompts):
        assert prompt[: len(head)] == head
        assert prompt[len(prompt) - len(tail) :] == tail
        endless = " ".join([*MESSAGES[first:], *(MESSAGES * 20)])
        assert endless.startswith(tokenizer.decode(prompt[len(head) : len(prompt) - len(tail)]))


def test_without_a_template_the_whole_prompt_is_the_message(tokenizer: Tokenizer) -> None:
    prompts = fit_prompts(MESSAGES, tokenizer.encode, 8)
    assert prompts == [tokenizer.encode(message)[:8] for message in MESSAGES]


def test_too_short_a_prompt_names_the_least(tokenizer: Tokenizer) -> None:
    around = len(in_chat(tokenizer, ""))
    with pytest.raises(UsageError, match=f"the least is {around + 8} for this model"):
        fit_prompts(MESSAGES, lambda message: in_chat(tokenizer, message), around + 7)
    assert fit_prompts(MESSAGES, lambda message: in_chat(tokenizer, message), around + 8)


def test_template_that_depends_on_the_message_is_refused(tokenizer: Tokenizer) -> None:
    def capricious(message: str) -> list[int]:
        return in_chat(tokenizer, message) if len(message) < 10 else tokenizer.encode(message)

    with pytest.raises(UsageError, match="cannot be cut"):
        fit_prompts(MESSAGES, capricious, 60)


def test_messages_come_one_per_line_without_remarks(tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    file.write_text("# mine\n\n  first  \nsecond\n")
    assert read_messages(file) == ["first", "second"]


def test_shipped_messages_are_varied_and_long_enough_to_be_cut() -> None:
    messages = read_messages(None)
    assert len(messages) == len(set(messages)) == 12
    assert all(len(message.split()) > 40 for message in messages)
    assert len({message.split()[0] for message in messages}) >= 8


@pytest.mark.parametrize(
    ("content", "says"), [(None, "cannot read"), (b"# only\n\n", "no prompt"), (b"\xff\xfe", "not UTF-8")]
)
def test_bad_file_is_one_line(tmp_path: Path, content: bytes | None, says: str) -> None:
    file = tmp_path / "prompts"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=says):
        read_messages(file)
