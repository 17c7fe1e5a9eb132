"""What the files of a checkpoint say about chats: its templates, its named special tokens, and where a turn ends.

transformers is the measure: which file counts before which, and what a template finds in `eos_token` and its like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starsd_edge.errors import UsageError
from starsd_edge.text.tokenizer import Tokenizer

DEFAULT_TEMPLATE = "default"
_GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Tokenizer classes of transformers that have no special tokens but those that the file names."""
_GGUF_NAMES = {
    "bos": "bos",
    "eos": "eos",
    "unknown": "unk",
    "padding": "pad",
    "seperator": "sep",
    "separator": "sep",
    "cls": "cls",
    "mask": "mask",
}
"""GGUF's names of special tokens (one of them is misspelled in its specification), and transformers'."""


def directory_templates(path: Path, tokenizer_config: Mapping[str, Any], legacy: Mapping[str, Any]) -> dict[str, str]:
    """The chat templates of a checkpoint directory by name; the one that is used by itself is `DEFAULT_TEMPLATE`.

    Files of Jinja count before tokenizer_config.json, which counts before chat_template.json.

    Args:
        path: the directory.
        tokenizer_config: contents of tokenizer_config.json.
        legacy: contents of chat_template.json.

    Raises:
        UsageError: what should be a template is none, or a file cannot be read.
    """
    found = _stated(path / "chat_template.json", legacy) | _stated(path / "tokenizer_config.json", tokenizer_config)
    if (path / "chat_template.jinja").is_file():
        found[DEFAULT_TEMPLATE] = _read(path / "chat_template.jinja")
    for file in sorted(path.glob("additional_chat_templates/*.jinja")):
        found[file.stem] = _read(file)
    return found


def gguf_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The chat templates of a GGUF file by name."""
    prefix = "tokenizer.chat_template"
    named = {
        name.removeprefix(f"{prefix}."): value for name, value in metadata.items() if name.startswith(f"{prefix}.")
    }
    if prefix in metadata:
        named[DEFAULT_TEMPLATE] = metadata[prefix]
    return {name: str(value) for name, value in named.items()}


def choose_template(templates: Mapping[str, str], wanted: str | None) -> tuple[str | None, list[str]]:
    """The template that a bundle takes, and one line where the checkpoint has others that it does not.

    Args:
        wanted: name of the template; None takes the default one.

    Raises:
        UsageError: there is none of that name.
    """
    if wanted is not None and wanted not in templates:
        known = ", ".join(sorted(templates)) or "none"
        raise UsageError(
            f"there is no chat template {wanted!r} in this checkpoint: --chat-template takes one of {known}"
        )
    taken = wanted or DEFAULT_TEMPLATE
    others = sorted(set(templates) - {taken})
    if not others:
        return templates.get(taken), []
    names = ", ".join(others)
    if taken not in templates:
        return None, [
            f"none of its chat templates is the default one, so chats have none: --chat-template takes {names}"
        ]
    return templates[taken], [f"its chat template {taken} is used and not {names}: --chat-template takes another"]


def directory_special_tokens(
    tokenizer_config: Mapping[str, Any], special_tokens_map: Mapping[str, Any], by_id: Mapping[str, str]
) -> dict[str, str]:
    """The texts that a template finds as `bos_token`, `eos_token`, `pad_token` and so on.

    Args:
        tokenizer_config: contents of tokenizer_config.json.
        special_tokens_map: contents of special_tokens_map.json, which counts where the former lists no added tokens.
        by_id: what the ids of the configuration stand for, where neither file says anything.
    """
    stated = dict(tokenizer_config)
    if "added_tokens_decoder" not in stated:
        stated |= special_tokens_map
    extra = stated.get("extra_special_tokens")
    if isinstance(extra, dict):
        stated |= {name: text for name, text in extra.items() if name.endswith("_token")}
    names = [name for name in stated if name.endswith("_token")]
    texts = {} if stated.get("tokenizer_class") in _GENERIC_CLASSES else dict(by_id)
    texts = {name: text for name, text in texts.items() if name not in names}
    return texts | {name: text for name in names if (text := _content(stated[name])) is not None}


def gguf_special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The texts that a template finds as `bos_token` and so on, of a GGUF file, which names them by their ids."""
    pieces: Sequence[str] = metadata.get("tokenizer.ggml.tokens", ())
    ids = [(name, metadata.get(f"tokenizer.ggml.{key}_token_id")) for key, name in _GGUF_NAMES.items()]
    return {
        f"{name}_token": str(pieces[token])
        for name, token in ids
        if isinstance(token, int) and 0 <= token < len(pieces)
    }


def ends_of_answers(
    tokenizer: Tokenizer, special_tokens: Mapping[str, str], also: Sequence[str] = ()
) -> tuple[list[int], list[str]]:
    """The tokens that end an answer, and a line where they are not those that the configuration lists.

    Where the chat template ends a turn with the very token that the tokenizer's files call `eos_token`, that one ends
    answers, too. Where the template stands alone it may only look like the end of a turn, and a line says so.

    Args:
        tokenizer: with the ids that the configuration lists, and its chat template.
        special_tokens: the named ones.
        also: texts of tokens that the user wants.

    Raises:
        UsageError: there is no such token.
    """
    listed = set(tokenizer.eos_ids)
    for text in also:
        token = tokenizer.id_of(text)
        if token is None:
            raise UsageError(
                f"{text!r} is no token of this model: --also-end takes the text of one, such as '<|im_end|>'"
            )
        listed.add(token)
    turn = tokenizer.end_of_turn()
    named = special_tokens.get("eos_token")
    end = None if turn is None else tokenizer.id_of(turn)
    if end is not None and end not in listed:
        if turn == named:
            return sorted({*listed, end}), [
                f"answers end at {turn}, too, which its configuration does not list: its chat template and its "
                "tokenizer end turns with it"
            ]
        return sorted(listed), [
            f"its chat template ends turns with {turn}, which ends no answer: --also-end {turn!r} lets it"
        ]
    if not listed:
        hint = "" if named is None else f": its tokenizer names {named}, and --also-end {named!r} lets it"
        return [], [f"no token ends an answer{hint or ': --also-end names one'}"]
    return sorted(listed), []


def _stated(file: Path, contents: Mapping[str, Any]) -> dict[str, str]:
    """Templates inside a JSON file: one text, or a list of named ones, or (chat_template.json) a mapping."""
    stated = contents.get("chat_template")
    if stated is None:
        return {}
    if isinstance(stated, str):
        return {DEFAULT_TEMPLATE: stated}
    try:
        named = stated if isinstance(stated, dict) else {each["name"]: each["template"] for each in stated}
    except (TypeError, KeyError):
        named = {"": None}
    if not all(isinstance(text, str) for pair in named.items() for text in pair):
        raise UsageError(
            f"{file} has a chat_template that is neither a text nor a list of named ones: mend or remove it"
        )
    return named


def _content(token: Any) -> str | None:
    """A special token is written as its text, or as an object with settings."""
    text = token.get("content") if isinstance(token, dict) else token
    # Half a surrogate pair is in no vocabulary, and no manifest can hold it.
    return text if isinstance(text, str) and text == text.encode(errors="ignore").decode() else None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read ({error}): fetch the checkpoint again") from None
