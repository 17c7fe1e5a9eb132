"""Answers held to a grammar: JSON, JSON of a schema, or text with JSON in it.

A grammar forbids tokens; among those it allows, the target chooses as always, by its own distribution and the coin of
the position. What is allowed depends on the text alone, so an answer with a grammar is the same with and without
drafts. Draft tokens that the grammar forbids are not verified, and what it forces ("name":) is a draft that costs
nothing.

The parser is llguidance: no dependencies, 3 MB, wheels for x86_64 and aarch64. It fetches nothing that a schema refers
to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from starsd_edge.errors import UsageError, install_extra
from starsd_edge.speculation.tree import ROOT, DraftTree

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_KEPT_GRAMMARS = 4
"""Compiled ones: that of a request serves all its choices, and requests that say the same."""
_LONGEST_SCHEMA = 128 * 1024
"""Most characters of a schema: more is refused before it is parsed."""
_LIMITS = {
    "max_grammar_size": 100_000,
    "max_lexer_states": 50_000,
    "step_max_items": 20_000,
    "verbose_errors": False,
}
"""Bounds of the parser, below its own: a schema comes from whoever may ask. 50,000 states take about 100 MB at most."""
_WHITESPACE = r"[ \n\r\t]{1,32}"
"""Space between two tokens of JSON. Without a bound a model may write line ends until its answer is full."""
_DEAD_ENDS = ("NoExtension", "NoExtensionBias")
"""What the parser says of a grammar that no text fits."""
_JSON_OPTIONS = {"whitespace_flexible": True, "whitespace_pattern": _WHITESPACE}


@dataclass(frozen=True)
class Grammar:
    """What an answer may look like.

    Attributes:
        text: the grammar as llguidance takes it.
        what: what it is called in errors.
    """

    text: str
    what: str


def json_grammar(schema: Mapping[str, Any] | bool | None = None) -> Grammar:
    """The grammar of JSON that fits a schema; of any JSON object without one.

    Args:
        schema: JSON Schema, draft 2020-12; an object, or a truth value.

    Raises:
        UsageError: the schema is not one, or uses what cannot be held to, or llguidance is not installed.
    """
    what = "JSON object" if schema is None else "JSON schema"
    written = _written({"type": "object"} if schema is None else _as_object(schema))
    try:
        text = _library().LLMatcher.grammar_from_json_schema(written, overrides=_JSON_OPTIONS)
    except ValueError as error:
        raise UsageError(f"the JSON schema cannot be used: {_reason(str(error))}") from None
    return _checked(Grammar(text, what))


def json_rule(schema: Mapping[str, Any] | bool) -> str:
    """JSON that fits a schema, as an expression in the rules of `lark_grammar`.

    Raises:
        UsageError: the schema is not JSON, or too long.
    """
    options = {"x-guidance": _JSON_OPTIONS}
    return f"%json {_written({**_as_object(schema), **options})}"


def lark_grammar(rules: str, what: str) -> Grammar:
    """A grammar in llguidance's variant of Lark's syntax.

    Args:
        rules: one of them is named "start".
        what: what it is called in errors.

    Raises:
        UsageError: the rules cannot be used, or llguidance is not installed.
    """
    if len(rules) > _LONGEST_SCHEMA:
        raise UsageError(f"the {what} has {len(rules)} characters, and at most {_LONGEST_SCHEMA} are read")
    return _checked(Grammar(f"%llguidance {{}}\n{rules}", what))


def json_grammar_of_file(path: Path) -> Grammar:
    """The grammar of JSON that fits the schema in a file.

    Raises:
        UsageError: the file cannot be read, or see `json_grammar`.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_LONGEST_SCHEMA + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the JSON schema {path}: {error}") from None
    if len(text) > _LONGEST_SCHEMA:
        raise UsageError(f"the JSON schema {path} is too long: at most {_LONGEST_SCHEMA} characters are read")
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON schema: {error}") from None
    return json_grammar(schema)


class GrammarTokens:
    """What a parser has to know of a tokenizer. Made once for a model: for 150,000 tokens it takes about 0.3 s.

    Args:
        tokenizer_json: text of `tokenizer.json`.
        size: ids that the tokenizer knows.
        eos_ids: tokens that end an answer, allowed where the grammar is complete.

    Raises:
        UsageError: there is no token that ends an answer, or the parser does not know this kind of tokenizer.
    """

    def __init__(self, tokenizer_json: str, size: int, eos_ids: Sequence[int]) -> None:
        self._size = size
        self._eos_ids = np.array(sorted(token for token in eos_ids if token < size), dtype=np.int64)
        if not len(self._eos_ids):
            raise UsageError("the model has no end-of-sequence token, so an answer held to a grammar would never end")
        ends = self._eos_ids.tolist()
        library = _library()
        try:
            self._tokens: LLTokenizer = library.LLTokenizer(tokenizer_json, n_vocab=size, eos_token=ends)
        except ValueError as error:
            raise UsageError(f"no answer of this model can be held to a grammar: its tokenizer: {error}") from None
        self._compiled = lru_cache(_KEPT_GRAMMARS)(self._compile)

    def constraint(self, grammar: Grammar) -> GrammarConstraint:
        """A constraint at the begin of an answer. From any thread.

        Raises:
            UsageError: the grammar cannot be used with this tokenizer.
        """
        return GrammarConstraint(self._compiled(grammar).deep_copy(), grammar.what, self._size, self._eos_ids)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        """The parser at the begin of an answer. For a hundred functions it takes 0.1 s, a copy of it nothing."""
        matcher: LLMatcher = _library().LLMatcher(self._tokens, grammar.text, log_level=0, limits=_limits())
        first = GrammarConstraint(matcher.deep_copy(), grammar.what, self._size, self._eos_ids)
        first.allowed([])  # some grammars are found to have no text only here
        return matcher


class GrammarConstraint:
    """Which tokens of one answer are allowed; see `starsd_edge.speculation.sampling.Constraint`.

    The parser stands behind the text and, in between two calls, behind a path of draft tokens. It goes back no farther
    than two paths differ.
    """

    def __init__(self, matcher: LLMatcher, what: str, size: int, eos_ids: npt.NDArray[np.int64]) -> None:
        self._matcher = matcher
        self._what = what
        self._size = size
        self._eos_ids = eos_ids
        self._ends = frozenset(eos_ids.tolist())
        self._path: list[int] = []
        self._check()

    def append(self, tokens: Sequence[int]) -> None:
        """Take in emitted tokens."""
        self._go(tokens)
        self._path = []

    def allowed(self, path: Sequence[int]) -> npt.NDArray[np.bool_]:
        """bool [ids of the tokenizer]: what may follow the text and this path; an end of sequence where the grammar is
        complete.

        Raises:
            UsageError: the grammar is too complex to be held to.
        """
        if not self._ends.isdisjoint(path):
            return np.ones(self._size, dtype=np.bool_)  # behind the end of the answer, where nothing counts
        self._go(path)
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        mask = np.unpackbits(bits, count=self._size, bitorder="little").astype(np.bool_)
        mask[self._eos_ids] = self._matcher.is_accepting()
        return mask

    def prune(self, tree: DraftTree) -> DraftTree:
        """The tree without tokens that are not allowed, or that do not exist, and without what hangs from them."""
        kept: list[int] = []
        paths: dict[int, list[int]] = {ROOT: []}
        for node, (parent, token) in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)):
            path = paths.get(parent)
            if path is None or not 0 <= token < self._size:
                continue
            self._go(path)
            if self._matcher.validate_tokens([token]) == 1:
                kept.append(node)
                paths[node] = [*path, token]
        return tree.only(np.array(kept, dtype=np.intp))

    def forced(self) -> list[int]:
        """Tokens that spell what must follow the text; empty where there is a choice. The target may spell it by other
        tokens.
        """
        self._go([])
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def _go(self, path: Sequence[int]) -> None:
        """Put the parser behind the text and this path."""
        same = 0
        for mine, other in zip(self._path, path, strict=False):
            if mine != other:
                break
            same += 1
        if same < len(self._path):
            self._matcher.rollback(len(self._path) - same)
        rest = list(path[same:])
        if rest:
            self._matcher.consume_tokens(rest)
        self._path = list(path)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UsageError(f"the {self._what} cannot be used: {_reason(self._matcher.get_error())}")


def _as_object(schema: Mapping[str, Any] | bool) -> Mapping[str, Any]:
    """The schema, as options can be added to it."""
    return {"allOf": [schema]} if isinstance(schema, bool) else schema


def _written(schema: Mapping[str, Any]) -> str:
    """The text of a schema."""
    try:
        written = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the JSON schema is not JSON: {error}") from None
    if len(written) > _LONGEST_SCHEMA:
        raise UsageError(f"the JSON schema has {len(written)} characters, and at most {_LONGEST_SCHEMA} are read")
    return written


def _checked(grammar: Grammar) -> Grammar:
    """The grammar, if the parser takes it."""
    is_wrong, said = _library().LLMatcher.validate_grammar_with_warnings(grammar.text, limits=_limits())
    if is_wrong:
        raise UsageError(f"the {grammar.what} cannot be used: {_reason(said[0])}")
    return grammar


def _limits() -> Any:
    return _library().LLParserLimits(**_LIMITS)


def _reason(text: str) -> str:
    """What the parser says, in one line: its first; the last, too, where the first only leads up to it."""
    lines = text.strip().splitlines() or ["the parser gives no reason"]
    if lines[0] in _DEAD_ENDS:
        return "no text fits it"
    return f"{lines[0]} {lines[-1].strip()}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise UsageError(f"answers held to JSON need llguidance: {install_extra('json')}") from None
    return llguidance
