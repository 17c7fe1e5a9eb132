"""The tokenizer of a bundle: ids, special tokens, chat templates, and files that cannot be used."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from starsd_edge.bundles.manifest import TextRules
from starsd_edge.errors import BundleError, UsageError
from starsd_edge.text import chat
from starsd_edge.text.tokenizer import Tokenizer
from tests.support.small_tokenizers import byte_fallback, byte_level, metaspace

BOS, EOS, START, END = 0, 1, 2, 3

CHATML = """{% for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{% endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

HELLO = [{"role": "user", "content": "The hub"}]


def rules(**changes: Any) -> TextRules:
    return TextRules(**{"bos_id": BOS, "eos_ids": [EOS, END], "add_bos": False, **changes})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def load_with_template(directory: Path, template: str) -> Tokenizer:
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    leap_day = datetime(2024, 2, 29)
    return Tokenizer.load(directory, rules(chat_template="chat_template.jinja"), now=lambda: leap_day)


def render(directory: Path, template: str, messages: list[dict[str, str]] = HELLO) -> str:
    tokenizer = load_with_template(directory, template)
    return tokenizer._backend.decode(tokenizer.encode_chat(messages), skip_special_tokens=False)


def test_text_to_ids_and_back(directory: Path) -> None:
    tokenizer = Tokenizer.load(directory, rules())
    for text in ("The hub drafts", " leading space", "中🙂\n\ttabs  ", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_ids == frozenset({EOS, END})


@pytest.mark.parametrize("backend", [byte_level, byte_fallback, metaspace], ids=lambda build: build.__name__)
def test_the_bytes_of_tokens_are_those_of_their_text(backend: Callable[[], tokenizers.Tokenizer]) -> None:
    """But for the space that a decoder takes from the beginning of a text."""
    tokenizer = Tokenizer(backend(), rules())
    for text in ("The hub drafts", "é 中🙂\n\ttabs", "a\N{NO-BREAK SPACE}b\x00"):
        data = b"".join(tokenizer.bytes_of(token) for token in tokenizer.encode(text))
        assert data.decode().removeprefix(" ") == text
    assert tokenizer.bytes_of(START) == b"<|im_start|>"
    assert tokenizer.bytes_of(tokenizer.size + 5) == b""


def test_size_counts_added_tokens_and_gaps() -> None:
    assert Tokenizer(byte_level(), rules()).size == byte_level().get_vocab_size()
    backend = byte_fallback()
    assert Tokenizer(backend, rules()).size == max(backend.get_vocab().values()) + 1


def test_the_beginning_of_sequence_is_added_once_where_the_model_wants_it() -> None:
    wanting = Tokenizer(byte_level(), rules(add_bos=True))
    plain = Tokenizer(byte_level(), rules())
    assert wanting.encode("The hub") == [BOS, *plain.encode("The hub")]
    assert wanting.encode("<s>The hub") == [BOS, *plain.encode("The hub")]
    assert plain.encode("The hub")[0] != BOS


def test_special_tokens_have_no_text() -> None:
    tokenizer = Tokenizer(byte_level(), rules())
    assert tokenizer.decode([BOS, *tokenizer.encode("The hub"), EOS]) == "The hub"
    assert tokenizer.decode([tokenizer.size + 5]) == ""


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(UsageError, match="not valid Unicode"):
        Tokenizer(byte_level(), rules()).encode("half a pair: \ud83d")


def test_truncation_and_padding_of_the_file_are_not_used(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=4)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path, rules())
    assert tokenizer.decode(tokenizer.encode("The hub drafts, the target verifies.")) == (
        "The hub drafts, the target verifies."
    )
    assert len(tokenizer.encode("a")) == 1


def test_a_chat_ends_where_the_answer_begins(directory: Path) -> None:
    tokenizer = load_with_template(directory, CHATML)
    ids = tokenizer.encode_chat([{"role": "system", "content": "Be brief."}, *HELLO])
    assert ids.count(START) == 3
    assert ids.count(END) == 2
    assert tokenizer.decode(ids) == "system\nBe brief.\nuser\nThe hub\nassistant\n"


def test_a_template_writes_the_beginning_of_sequence_itself(directory: Path) -> None:
    (directory / "t.jinja").write_text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    tokenizer = Tokenizer.load(directory, rules(add_bos=True, chat_template="t.jinja"))
    ids = tokenizer.encode_chat(HELLO)
    assert (ids[0], ids[-1], ids.count(BOS)) == (BOS, EOS, 1)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ strftime_now('%d %b %Y') }}", "29 Feb 2024"),
        ("{{ messages | tojson }}", json.dumps(HELLO)),
        ("{{ {'a': '<é>'} | tojson(indent=1) }}", '{\n "a": "<é>"\n}'),
        ("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", "The hub"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% if tools %}tools{% elif documents is none %}none{% endif %}{{ undefined_name }}", "none"),
        ("a\n  {% if true %}\n  b\n  {% endif %}\nc", "a\n  b\nc"),
        ("{% set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = m.role %}{% endfor %}{{ ns.x }}", "user"),
    ],
)
def test_what_templates_expect(directory: Path, template: str, text: str) -> None:
    assert render(directory, template) == text


def test_a_template_may_refuse_messages(directory: Path) -> None:
    template = "{% if messages[0].role != 'system' %}{{ raise_exception('The first must be system') }}{% endif %}"
    with pytest.raises(UsageError, match=r"refuses these messages: The first must be system$"):
        render(directory, template)
    with pytest.raises(UsageError, match=r"refuses these messages: two lines$"):
        render(directory, "{{ raise_exception('two\n lines') }}")


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.append('x') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages[0].pop('role') }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ 1 + 'a' }}",
        "{{ messages[0].content.missing.deeper }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_template_cannot_leave_its_sandbox_and_fails_in_one_line(directory: Path, template: str) -> None:
    with pytest.raises(UsageError, match="refuses these messages") as caught:
        render(directory, template)
    assert "\n" not in str(caught.value)


def test_what_a_template_writes_is_limited(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_RENDERED_CHARACTERS", 100)
    tokenizer = load_with_template(directory, "{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}")
    with pytest.raises(UsageError, match="longer than 100 characters"):
        tokenizer.encode_chat(HELLO)


def test_a_model_without_a_template_says_so(directory: Path) -> None:
    tokenizer = Tokenizer.load(directory, rules())
    assert not tokenizer.has_chat_template
    with pytest.raises(UsageError, match="no chat template"):
        tokenizer.encode_chat(HELLO)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path, rules())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model": 3}', b"\xff\xfe"])
def test_a_broken_tokenizer_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(BundleError, match=r"tokenizer\.json") as caught:
        Tokenizer.load(tmp_path, rules())
    assert "\n" not in str(caught.value)


def test_a_broken_or_missing_template_is_named(directory: Path) -> None:
    with pytest.raises(BundleError, match=r"gone\.jinja"):
        Tokenizer.load(directory, rules(chat_template="gone.jinja"))
    with pytest.raises(BundleError, match="broken at line 2"):
        load_with_template(directory, "\n{% if %}")


def test_a_template_outside_the_bundle_is_not_read(directory: Path) -> None:
    inside = directory / "bundle"
    inside.mkdir()
    byte_level().save(str(inside / "tokenizer.json"))
    (directory / "secret.jinja").write_text("secret")
    with pytest.raises(BundleError, match=r"bundle/secret\.jinja"):
        Tokenizer.load(inside, rules(chat_template="../secret.jinja"))
