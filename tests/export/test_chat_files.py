"""Chat templates and special tokens of checkpoints render as in transformers, and the end of a turn ends answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import pytest
from transformers import AutoTokenizer

from starsd_edge.bundles.manifest import TextRules
from starsd_edge.errors import BundleError, UsageError
from starsd_edge.text.tokenizer import Tokenizer
from starsd_export.chat_files import choose_template, gguf_special_tokens, gguf_templates
from starsd_export.checkpoint import Checkpoint, checkpoint_tokenizer, open_checkpoint
from tests.support.small_tokenizers import byte_level
from tests.support.tiny_llama import write_gguf, write_safetensors

pytestmark = pytest.mark.export

NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask", "image")
SHOW = "".join(f"[{name}={{{{ {name}_token }}}}]" for name in NAMES)
SHOW += "{% for token in additional_special_tokens or [] %}<{{ token }}>{% endfor %}{{ messages[0].content }}"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
EOS_TURNS = (
    "{% for m in messages %}{{ m.content }} {% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)
HELLO = [{"role": "user", "content": "The hub"}]
GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
START, END = 2, 3


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_safetensors(tmp_path_factory.mktemp("weights"))


@pytest.fixture
def directory(weights: Path, tmp_path: Path) -> Path:
    for file in weights.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def write(directory: Path, files: dict[str, Any]) -> None:
    for name, contents in files.items():
        file = directory / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(contents if isinstance(contents, str) else json.dumps(contents), encoding="utf-8")


def settings(**changes: Any) -> dict[str, Any]:
    """tokenizer_config.json alone."""
    return {"tokenizer_config.json": {**GENERIC, "chat_template": SHOW, **changes}}


def several_ends(directory: Path) -> None:
    write(directory, {"generation_config.json": {"bos_token_id": 0, "eos_token_id": [1, 3]}})


def rendered(checkpoint: Checkpoint) -> str:
    tokenizer = checkpoint_tokenizer(checkpoint)
    assert tokenizer._chat is not None
    return tokenizer._chat.render(HELLO)


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "an eos that is not the lowest": settings(eos_token="<|im_end|>"),
    "an eos that is no special id at all": settings(eos_token="<think>"),
    "pad and unk": settings(pad_token="<|im_end|>", unk_token="<s>"),
    "sep, cls and mask": settings(sep_token="</s>", cls_token="<s>", mask_token="<|im_start|>"),
    "objects": settings(eos_token={"__type": "AddedToken", "content": "<|im_end|>", "special": True}),
    "bos is null": settings(bos_token=None),
    "all are null": settings(bos_token=None, eos_token=None, pad_token=None),
    "nothing is named": {
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": SHOW}
    },
    "additional ones": settings(additional_special_tokens=["<|im_start|>", "<|im_end|>"]),
    "extra ones as a list": settings(extra_special_tokens=["<|im_start|>"]),
    "extra ones by name": settings(extra_special_tokens={"image_token": "<|im_start|>"}),
    "one of the model's own": settings(image_token="<|im_end|>"),
    "a token that the vocabulary lacks": settings(pad_token="<pad>"),
    "flags that end in _token": settings(add_bos_token=True, add_eos_token=False),
    "the map counts": settings() | {"special_tokens_map.json": {"eos_token": "<|im_end|>", "pad_token": "<s>"}},
    "the map does not count": settings(added_tokens_decoder={"3": {"content": "<|im_end|>", "special": True}})
    | {"special_tokens_map.json": {"eos_token": "<|im_end|>"}},
    "a list of templates": settings(
        chat_template=[{"name": "tool_use", "template": "tools"}, {"name": "default", "template": SHOW}]
    ),
    "a file counts first": settings(chat_template="no") | {"chat_template.jinja": SHOW},
    "a file and more of them": settings(chat_template="no")
    | {"chat_template.jinja": SHOW, "additional_chat_templates/tool_use.jinja": "tools"},
    "a processor's file counts last": settings() | {"chat_template.json": {"chat_template": "no"}},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_directory_renders_as_in_transformers(directory: Path, name: str) -> None:
    several_ends(directory)
    write(directory, CONFIGURATIONS[name])
    stock = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    expected = stock.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=True)
    assert rendered(open_checkpoint(directory)) == expected


def test_a_gguf_names_each_token_by_its_own_id() -> None:
    pieces = ["<s>", "</s>", "<eot>", "<pad>", "<unk>", "<sep>"]
    ids = {"bos": 0, "eos": 1, "eot": 2, "padding": 3, "unknown": 4, "seperator": 5, "mask": 99, "cls": -1}
    fields = {f"tokenizer.ggml.{name}_token_id": value for name, value in ids.items()}
    assert gguf_special_tokens({"tokenizer.ggml.tokens": pieces, **fields}) == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "sep_token": "<sep>",
    }


def test_a_gguf_renders_as_in_transformers_and_ends_at_both_of_its_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_eos(writer: gguf.GGUFWriter, token: int) -> None:
        writer.add_uint32("tokenizer.ggml.eos_token_id", 3)
        writer.add_eot_token_id(1)
        writer.add_pad_token_id(2)
        writer.add_chat_template([{"name": "tool_use", "template": "tools"}, {"name": "default", "template": SHOW}])

    monkeypatch.setattr(gguf.GGUFWriter, "add_eos_token_id", add_eos)
    write_gguf(tmp_path / "tiny.gguf")
    checkpoint = open_checkpoint(tmp_path / "tiny.gguf")
    stock = AutoTokenizer.from_pretrained(tmp_path, gguf_file="tiny.gguf", local_files_only=True)
    expected = stock.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=True, chat_template=SHOW)
    assert rendered(checkpoint) == expected
    assert "[eos=<|im_end|>]" in expected
    assert checkpoint.text.eos_ids == [1, 3]
    assert checkpoint.notes == ["its chat template default is used and not tool_use: --chat-template takes another"]


def test_templates_of_a_gguf_have_names() -> None:
    fields = {"tokenizer.chat_template.rag": "r", "tokenizer.chat_template": "d", "tokenizer.chat_templates": ["rag"]}
    assert gguf_templates(fields) == {"rag": "r", "default": "d"}


def test_a_template_in_a_file_of_its_own_for_processors_is_used_where_there_is_no_other(directory: Path) -> None:
    write(directory, {"tokenizer_config.json": GENERIC, "chat_template.json": {"chat_template": "old"}})
    assert open_checkpoint(directory).chat_template == "old"


def test_more_templates_do_not_hide_the_one_of_the_settings(directory: Path) -> None:
    write(directory, settings() | {"additional_chat_templates/rag.jinja": "rag"})
    checkpoint = open_checkpoint(directory)
    assert checkpoint.chat_template == SHOW
    assert checkpoint.notes == ["its chat template default is used and not rag: --chat-template takes another"]
    assert open_checkpoint(directory, "rag").chat_template == "rag"


def test_of_named_templates_without_a_default_one_has_to_be_chosen(directory: Path) -> None:
    assert choose_template({}, None) == (None, [])
    write(directory, settings(chat_template=[{"name": "a", "template": "A"}, {"name": "b", "template": "B"}]))
    checkpoint = open_checkpoint(directory)
    assert checkpoint.chat_template is None
    assert "--chat-template takes a, b" in checkpoint.notes[0]
    assert open_checkpoint(directory, "b").chat_template == "B"
    with pytest.raises(UsageError, match=r"no chat template 'c'.* one of a, b"):
        open_checkpoint(directory, "c")


@pytest.mark.parametrize("template", [3, [3], [{"name": "a"}], [{"name": 1, "template": "a"}], {"a": 1}, True])
def test_what_is_no_template_is_refused_in_one_line(directory: Path, template: Any) -> None:
    write(directory, settings(chat_template=template))
    with pytest.raises(UsageError, match=r"tokenizer_config\.json has a chat_template that is neither") as caught:
        open_checkpoint(directory)
    assert "\n" not in str(caught.value)


def test_a_broken_template_is_refused_before_any_weight_is_loaded(directory: Path) -> None:
    write(directory, settings(chat_template="{% if %}"))
    with pytest.raises(BundleError, match="broken at line 1"):
        open_checkpoint(directory)
    write(directory, settings() | {"chat_template.jinja": ""})
    (directory / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"chat_template\.jinja cannot be read"):
        open_checkpoint(directory)


@pytest.mark.parametrize(
    ("template", "eos", "listed", "ends", "note"),
    [
        (CHATML, "<|im_end|>", 1, [1, 3], "answers end at <|im_end|>, too"),
        (CHATML, "<|im_end|>", None, [3], "answers end at <|im_end|>, too"),
        (CHATML, "<|im_end|>", [1, 3], [1, 3], None),
        (CHATML, "</s>", 1, [1], "ends turns with <|im_end|>, which ends no answer: --also-end '<|im_end|>'"),
        (CHATML, None, None, [], "ends turns with <|im_end|>, which ends no answer"),
        (EOS_TURNS, "<think>", 1, [1, 4], "answers end at <think>, too"),
        (EOS_TURNS, "</s>", 1, [1], None),
        (
            EOS_TURNS.replace("m.content", "m.content | upper"),
            "<|im_end|>",
            1,
            [1, 3],
            "answers end at <|im_end|>, too",
        ),
        ("{{ messages[0].content }}{{ eos_token }}", "\ud800", 1, [1], None),
        ("{{ messages[0].content }}", "</s>", None, [], "no token ends an answer: its tokenizer names </s>"),
        ("{{ raise_exception('no') }}", "</s>", 1, [1], None),
        (None, "</s>", None, [], "no token ends an answer: its tokenizer names </s>"),
        (None, None, None, [], "no token ends an answer: --also-end names one"),
    ],
)
def test_the_end_of_a_turn_ends_answers_or_a_note_says_that_it_does_not(
    directory: Path, template: str | None, eos: str | None, listed: Any, ends: list[int], note: str | None
) -> None:
    think = byte_level().token_to_id("<think>")
    write(directory, settings(chat_template=template, eos_token=eos))
    write(directory, {"generation_config.json": {"bos_token_id": 0, "eos_token_id": listed}})
    checkpoint = open_checkpoint(directory)
    assert checkpoint.text.eos_ids == [think if token == 4 else token for token in ends]
    assert len(checkpoint.notes) == (note is not None)
    assert (note or "") in "".join(checkpoint.notes)


def test_a_user_can_name_more_ends(directory: Path) -> None:
    write(directory, settings(chat_template=CHATML))
    checkpoint = open_checkpoint(directory, also_end=("<|im_end|>", "<|im_start|>"))
    assert checkpoint.text.eos_ids == [1, START, END]
    assert checkpoint.notes == []
    with pytest.raises(UsageError, match=re.escape("'<|nothing|>' is no token of this model")):
        open_checkpoint(directory, also_end=("<|nothing|>",))


def test_a_model_may_name_a_token_like_a_variable_of_ours() -> None:
    rules = TextRules(0, [1], False, special_tokens={"messages": "no", "pad_token": "<|im_end|>"})
    tokenizer = Tokenizer.of(byte_level(), rules, "{{ messages[0].content }}{{ pad_token }}")
    assert tokenizer.encode_chat(HELLO)[-1] == END
