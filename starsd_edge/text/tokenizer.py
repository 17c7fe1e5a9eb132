"""Text to token ids and back, by the tokenizer of a bundle."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import tokenizers

from starsd_edge.bundles.manifest import TextRules
from starsd_edge.errors import BundleError, UsageError
from starsd_edge.text.chat import ChatTemplate
from starsd_edge.text.grammar import Grammar, GrammarConstraint, GrammarTokens

TOKENIZER_FILE = "tokenizer.json"
_ONE_TURN = ({"role": "user", "content": "apple"}, {"role": "assistant", "content": "zebra"})
"""A chat whose last word shows what a template writes after an answer."""


class Tokenizer:
    """The tokenizer of one model; `load` opens a bundle's.

    Args:
        backend: the loaded tokenizer.
        rules: ids that belong to the model.
        chat: its chat template, if it has one.
    """

    def __init__(self, backend: tokenizers.Tokenizer, rules: TextRules, chat: ChatTemplate | None = None) -> None:
        # A tokenizer.json may carry the padding and truncation of its training run.
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self._rules = rules
        self._chat = chat
        self._size = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        added = backend.get_added_tokens_decoder()
        self._added = {token: each.content for token, each in added.items()}
        self._silent = frozenset(i for i, token in added.items() if token.special)
        decoder = backend.decoder
        self._decoders = set[str]() if decoder is None else _decoder_types(json.loads(decoder.__getstate__()))
        self._byte_of = _fallback_bytes(backend) if "ByteFallback" in self._decoders else {}
        self._grammar_tokens: GrammarTokens | None = None

    @classmethod
    def load(cls, directory: Path, rules: TextRules, now: Callable[[], datetime] = datetime.now) -> Tokenizer:
        """Open the tokenizer and the chat template in a bundle's directory.

        Args:
            directory: where `tokenizer.json` is, and the template that `rules.chat_template` names.
            rules: from the bundle's manifest.
            now: the clock for templates that write the date.

        Raises:
            BundleError: a file is missing or broken.
        """
        path = directory / TOKENIZER_FILE
        text = _read(path)
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing more precise
            raise BundleError(f"{path} is not a usable tokenizer ({error}): export the model again") from error
        template = None if rules.chat_template is None else _read(directory / Path(rules.chat_template).name)
        return cls.of(backend, rules, template, now)

    @classmethod
    def of(
        cls,
        backend: tokenizers.Tokenizer,
        rules: TextRules,
        template: str | None,
        now: Callable[[], datetime] = datetime.now,
    ) -> Tokenizer:
        """A tokenizer with the chat template whose Jinja source is `template`.

        Raises:
            BundleError: the template is broken.
        """
        texts = named_by_id(backend, rules) if rules.special_tokens is None else rules.special_tokens
        chat = None if template is None else ChatTemplate(template, texts, now)
        return cls(backend, rules, chat)

    @property
    def size(self) -> int:
        """One more than the highest id; the model's output head may be wider by padding."""
        return self._size

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return frozenset(self._rules.eos_ids)

    @property
    def added_tokens(self) -> Mapping[int, str]:
        """Tokens that stand beside the vocabulary, with their texts; special ones and others."""
        return self._added

    @property
    def fallback_bytes(self) -> frozenset[int]:
        """Tokens that stand for one byte each and are decoded run by run (byte fallback); empty for byte-level ones."""
        return frozenset(self._byte_of)

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` can be used."""
        return self._chat is not None

    @property
    def chat(self) -> ChatTemplate | None:
        """The chat template; None where the model has none."""
        return self._chat

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt, after the begin-of-sequence token where the model wants one.

        Raises:
            UsageError: the text holds half a surrogate pair.
        """
        ids = self._encode(text)
        bos = self._rules.bos_id
        if self._rules.add_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        return ids

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Token ids of a chat, up to where the assistant's answer begins. The template writes all special tokens
        itself.

        Args:
            messages: each with "role" and "content".
            tools: functions that the model may call; see `ChatTemplate.render`.

        Raises:
            UsageError: the model has no chat template, or it refuses these messages.
        """
        if self._chat is None:
            raise UsageError("this model has no chat template: give a plain prompt instead of chat messages")
        return self._encode(self._chat.render(messages, tools))

    def id_of(self, text: str) -> int | None:
        """The token of this text, special ones included; None where there is none."""
        token: int | None = self._backend.token_to_id(text)
        return token

    def end_of_turn(self) -> str | None:
        """The added token that the chat template writes right after an assistant's message; None where it writes none,
        or refuses such a chat.
        """
        if self._chat is None:
            return None
        try:
            text = self._chat.render(_ONE_TURN, prompt=False)
        except UsageError:
            return None
        # A template may write messages in capitals.
        rest = re.split(_ONE_TURN[-1]["content"], text, flags=re.IGNORECASE)[-1]
        added = (token.content for token in self._backend.get_added_tokens_decoder().values())
        return max((each for each in added if each and rest.lstrip().startswith(each)), key=len, default=None)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the tokens; special tokens and ids unknown to the tokenizer have none."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=True)
        return text

    def bytes_of(self, token: int) -> bytes:
        """What a token stands for inside a text, special tokens written out. It may be a part of a character; put
        together, the tokens of a text give its bytes, but for what a decoder takes from the beginning of a text.
        """
        if token in self._byte_of:
            return bytes([self._byte_of[token]])
        text: str | None = self._backend.id_to_token(token)
        if text is None:
            return b""
        if token in self._added:
            return self._added[token].encode()
        if "ByteLevel" in self._decoders:
            return bytes(_BYTE_LEVEL[letter] for letter in text if letter in _BYTE_LEVEL)
        return text.replace(_SPACE, " ").encode() if self._decoders & {"Metaspace", "Replace"} else text.encode()

    def is_silent(self, token: int) -> bool:
        """Whether decoding takes no notice of this token: it is special, or unknown to the tokenizer."""
        return token in self._silent or self._backend.id_to_token(token) is None

    def constraint(self, grammar: Grammar) -> GrammarConstraint:
        """Holds one answer to a grammar.

        Raises:
            UsageError: the grammar cannot be used with this model.
        """
        if self._grammar_tokens is None:
            self._grammar_tokens = GrammarTokens(self._backend.to_str(), self._size, self._rules.eos_ids)
        return self._grammar_tokens.constraint(grammar)

    def _encode(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"the text is not valid Unicode at character {error.start}: mend its encoding") from error
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"cannot read {path} ({error}): export the model again") from error


def named_by_id(backend: tokenizers.Tokenizer, rules: TextRules) -> dict[str, str]:
    """The special tokens of a template by the model's ids, for want of a file that names them."""
    ids = {"bos_token": rules.bos_id, "eos_token": next(iter(rules.eos_ids), None)}
    texts = {name: backend.id_to_token(token) for name, token in ids.items() if token is not None and token >= 0}
    return {name: text for name, text in texts.items() if text is not None}


def _fallback_bytes(backend: tokenizers.Tokenizer) -> dict[int, int]:
    """The byte that each token of byte fallback stands for."""
    ids = {backend.token_to_id(f"<0x{byte:02X}>"): byte for byte in range(256)}
    return {token: byte for token, byte in ids.items() if token is not None}


def _byte_level() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary stands for: printable ones stand for themselves, the others
    have the letters from U+0100 on, in order (Radford et al., "Language Models are Unsupervised Multitask Learners").
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_LEVEL = _byte_level()
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""How vocabularies of SentencePiece write a space."""


def _decoder_types(decoder: Mapping[str, Any]) -> set[str]:
    nested = (_decoder_types(inner) for inner in decoder.get("decoders", ()))
    return {decoder["type"]}.union(*nested)
