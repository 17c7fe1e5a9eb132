"""Tokenizers of every kind that checkpoints bring: our ids are transformers' ids, whatever the text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import processors
from transformers import AutoTokenizer, LlamaTokenizer, PreTrainedTokenizerFast

from starsd_edge.bundles.fingerprints import tokenizer_fingerprint
from starsd_edge.bundles.manifest import TextRules
from starsd_edge.errors import UsageError
from starsd_edge.text.tokenizer import TOKENIZER_FILE, Tokenizer
from starsd_export.gguf_source import GgufSource
from starsd_export.safetensors_source import SafetensorsSource
from tests.support.family_tokenizers import published
from tests.support.sentencepiece_vocabulary import PIECES, add_sentencepiece, slow_ids
from tests.support.small_tokenizers import byte_fallback
from tests.support.tiny_families import write_family
from tests.support.tiny_gguf import add_byte_level, write_tokenizer
from tests.support.torture import TORTURE

KINDS = ("gpt-2", "smollm", "llama-bpe", "smaug-bpe", "qwen2", "tekken")
NO_RULES = TextRules(bos_id=None, eos_ids=[], add_bos=False)


def ours(directory: Path, contents: dict[str, object], rules: TextRules = NO_RULES) -> Tokenizer:
    (directory / TOKENIZER_FILE).write_text(json.dumps(contents, ensure_ascii=False), encoding="utf-8")
    return Tokenizer.load(directory, rules)


def from_gguf(directory: Path, kind: str, backend: Backend) -> GgufSource:
    return GgufSource(write_tokenizer(directory / "t.gguf", lambda writer: add_byte_level(writer, backend, kind)))


def sentencepiece(directory: Path) -> GgufSource:
    return GgufSource(write_tokenizer(directory / "t.gguf", add_sentencepiece))


@pytest.mark.parametrize("kind", KINDS)
def test_ids_from_gguf_are_those_of_the_published_tokenizer_in_transformers(kind: str, tmp_path: Path) -> None:
    backend = published(kind)
    theirs = PreTrainedTokenizerFast(tokenizer_object=backend)
    mine = ours(tmp_path, from_gguf(tmp_path, kind, backend).tokenizer())
    for text in TORTURE:
        ids = theirs.encode(text, add_special_tokens=False)
        assert mine.encode(text) == ids, repr(text)
        assert mine.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_is_that_of_the_published_tokenizer(kind: str, tmp_path: Path) -> None:
    backend = published(kind)
    contents = json.loads(backend.to_str())
    assert tokenizer_fingerprint(from_gguf(tmp_path, kind, backend).tokenizer()) == tokenizer_fingerprint(contents)


def test_a_whole_word_is_taken_without_merging_where_the_kind_says_so(tmp_path: Path) -> None:
    contents = json.loads(published("llama-bpe").to_str())
    word = len(contents["model"]["vocab"])
    contents["model"]["vocab"]["zqzq"] = word  # no merges lead to it
    contents["added_tokens"][-1]["id"] = word + 1
    backend = Backend.from_str(json.dumps(contents))
    for kind, taken in (("llama-bpe", True), ("smaug-bpe", False)):
        assert (ours(tmp_path, from_gguf(tmp_path, kind, backend).tokenizer()).encode("zqzq") == [word]) is taken


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_pad_the_head_are_no_tokens(kind: str, tmp_path: Path) -> None:
    backend = published(kind)
    size = backend.get_vocab_size()
    path = write_tokenizer(tmp_path / "t.gguf", lambda writer: add_byte_level(writer, backend, kind, size + 20))
    mine = ours(tmp_path, GgufSource(path).tokenizer())
    assert mine.size == size
    assert tokenizer_fingerprint(GgufSource(path).tokenizer()) == tokenizer_fingerprint(json.loads(backend.to_str()))


def test_sentencepiece_merges_by_score(tmp_path: Path) -> None:
    mine = ours(tmp_path, sentencepiece(tmp_path).tokenizer())
    plain = [text for text in TORTURE if "<" not in text]
    assert len(plain) > 30
    for text in plain:
        assert mine.encode(text) == slow_ids(text), repr(text)
        assert mine.decode(mine.encode(text)) == text.replace("▁", " ")


def test_sentencepiece_ids_are_those_of_transformers(tmp_path: Path) -> None:
    contents = sentencepiece(tmp_path).tokenizer()
    mine = ours(tmp_path, contents)
    theirs = LlamaTokenizer(vocab=contents["model"]["vocab"], merges=[tuple(m) for m in contents["model"]["merges"]])
    theirs.add_tokens(["<think>"])
    # transformers' present class takes a leading space for the one that is put before a text; GGUF's readers do not.
    for text in [text for text in TORTURE if "<" not in text and not text.startswith((" ", "▁"))]:
        assert mine.encode(text) == theirs.encode(text, add_special_tokens=False), repr(text)


def test_sentencepiece_keeps_its_special_tokens_whole(tmp_path: Path) -> None:
    mine = ours(tmp_path, sentencepiece(tmp_path).tokenizer())
    think = len(PIECES) - 1
    assert mine.encode("<s>") == [1]
    assert mine.encode("a<think>a</s>") == [*slow_ids("a"), think, *slow_ids("a"), 2]
    assert mine.is_silent(2)
    assert not mine.is_silent(think)


@pytest.mark.parametrize(
    ("kind", "begins"), [("gpt-2", False), ("qwen2", False), ("llama-bpe", True), ("tekken", True), (None, True)]
)
def test_prompts_begin_as_is_the_custom_of_the_kind_and_else_as_the_file_says(
    kind: str | None, begins: bool, tmp_path: Path
) -> None:
    source = sentencepiece(tmp_path) if kind is None else from_gguf(tmp_path, kind, published(kind))
    assert source.add_bos is begins

    def stated(writer: object) -> None:
        writer.add_add_bos_token(not begins)  # type: ignore[attr-defined]
        add_byte_level(writer, published(kind or "gpt-2"), kind or "gpt-2")  # type: ignore[arg-type]

    assert GgufSource(write_tokenizer(tmp_path / "stated.gguf", stated)).add_bos is not begins


def test_sentencepiece_without_scores_is_refused(tmp_path: Path) -> None:
    def without(writer: object) -> None:
        add_sentencepiece(writer)  # type: ignore[arg-type]
        writer.add_token_scores([-1000.0] * len(PIECES))  # type: ignore[attr-defined]

    with pytest.raises(UsageError, match="without scores"):
        GgufSource(write_tokenizer(tmp_path / "t.gguf", without)).tokenizer()


@pytest.mark.parametrize("stated", [None, True, False])
@pytest.mark.parametrize("processed", [True, False])
def test_a_directory_gives_the_ids_of_transformers_auto_tokenizer(
    stated: bool | None, processed: bool, tmp_path: Path
) -> None:
    directory = write_family(tmp_path / "checkpoint", model_type="llama", vocab_size=600)
    backend = byte_fallback()
    if processed:
        backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    (directory / TOKENIZER_FILE).write_text(backend.to_str(), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    if stated is not None:
        settings["add_bos_token"] = stated  # type: ignore[assignment]
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    source = SafetensorsSource(directory)
    rules = TextRules(bos_id=source.bos_id, eos_ids=source.eos_ids, add_bos=source.add_bos)
    mine, theirs = ours(tmp_path, source.tokenizer(), rules), AutoTokenizer.from_pretrained(directory)
    for text in TORTURE:
        # Ours does not put a second one before a text that begins with the token itself.
        assert mine.encode(text) == theirs.encode(text) or text.startswith("<s>"), repr(text)


def test_tokens_that_only_the_settings_add_are_refused_by_name(tmp_path: Path) -> None:
    directory = write_family(tmp_path / "checkpoint", model_type="llama")
    settings = {"added_tokens_decoder": {"1": {"content": "</s>"}, "405": {"content": "<|tool|>", "special": True}}}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UsageError, match=r"adds <\|tool\|>, which its tokenizer.json lacks"):
        SafetensorsSource(directory).tokenizer()


def test_a_sentencepiece_file_alone_is_refused_with_the_way_out(tmp_path: Path) -> None:
    directory = write_family(tmp_path / "checkpoint", model_type="llama")
    (directory / TOKENIZER_FILE).rename(directory / "tokenizer.model")
    with pytest.raises(UsageError, match=r"tokenizer\.model and no tokenizer\.json: .*save_pretrained"):
        SafetensorsSource(directory).tokenizer()


@pytest.mark.model
def test_the_default_model_has_the_ids_of_transformers(model_file: Path, tmp_path: Path) -> None:
    contents = GgufSource(model_file).tokenizer()
    mine = ours(tmp_path, contents)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / TOKENIZER_FILE))
    converted = AutoTokenizer.from_pretrained(str(model_file.parent), gguf_file=model_file.name)
    for text in TORTURE:
        ids = mine.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False), repr(text)
        assert mine.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if not any(letter.isnumeric() for letter in text):  # their conversion lacks this model's rule for digits
            assert ids == converted.encode(text, add_special_tokens=False), repr(text)
