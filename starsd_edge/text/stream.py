"""Streaming detokenisation: text leaves as soon as no later token can change it.

What is given out, put together, is exactly `Tokenizer.decode` of all tokens, up to a stop string. Three things hold
text back: a character whose bytes are not all there, a run of byte-fallback tokens (one wrong byte turns the whole run
into replacement characters), and text that may be the beginning of a stop string.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from starsd_edge.errors import UsageError
from starsd_edge.text.tokenizer import Tokenizer

_CONTEXT = 4
"""Tokens decoded again before new ones. Decoders look back for a leading space (one token) and an unfinished UTF-8
character (at most 3 bytes, hence 3 tokens)."""

_WINDOW = 16
"""Most tokens decoded together; beyond it all but the last `_CONTEXT` are dropped. Bounds the cost of a token."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """The text of one answer, token by token.

    Args:
        tokenizer: decodes the tokens.
        stop: strings that end the text; they and what follows are not part of it. Of several the one completed first
            counts, of those completed by the same character the longest, so that the text does not depend on how it is
            cut into tokens.
        min_tokens: a stop string that one of this number of first tokens completes does not end the text.
        shown: special tokens that are written out.

    Raises:
        UsageError: a stop string is empty.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), min_tokens: int = 0, shown: Collection[int] = ()
    ) -> None:
        if not all(stop):
            raise UsageError("a stop string must not be empty")
        self._pieces = _Pieces(tokenizer, shown)
        self._stop = tuple(stop)
        self._held = ""
        self._min_tokens = min_tokens
        self._tokens = 0
        self._exempt = 0
        """Characters of the held text in which no stop string may end."""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string was completed."""
        return self._stopped

    def push(self, token: int) -> str:
        """Take the next token and give back the text that is final now; "" once the text has stopped."""
        if self._stopped:
            return ""
        self._tokens += 1
        self._hold(self._pieces.push(token))
        if self._cut_at_stop():
            return self._release(0)
        return self._release(self._possible_beginning())

    def finish(self) -> str:
        """The rest, once no token follows: incomplete characters as U+FFFD, and the beginning of a stop string that
        never came.
        """
        if self._stopped:
            return ""
        self._hold(self._pieces.finish())
        self._cut_at_stop()
        return self._release(0)

    def _hold(self, text: str) -> None:
        self._held += text
        if self._tokens <= self._min_tokens:
            self._exempt = len(self._held)

    def _cut_at_stop(self) -> bool:
        """Drop the stop string completed first, and what follows it."""
        found = ((self._held.find(stop, max(0, self._exempt - len(stop) + 1)), len(stop)) for stop in self._stop)
        ends = [(start + length, start) for start, length in found if start >= 0]
        if not ends:
            return False
        _, start = min(ends)
        self._held = self._held[:start]
        self._stopped = True
        return True

    def _possible_beginning(self) -> int:
        """Characters at the end that may become a stop string."""
        longest = max((len(stop) - 1 for stop in self._stop), default=0)
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(len(stop) > length and stop.startswith(self._held[-length:]) for stop in self._stop):
                return length
        return 0

    def _release(self, keep: int) -> str:
        end = len(self._held) - keep
        released, self._held = self._held[:end], self._held[end:]
        self._exempt = max(0, self._exempt - end)
        return released


class _Pieces:
    """Tokens to final pieces of text, decoding a short window of tokens only, however long the answer is."""

    def __init__(self, tokenizer: Tokenizer, shown: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._shown = shown
        self._window: list[int] = []
        self._given = 0
        """Characters of the window's text that were given out."""

    def push(self, token: int) -> str:
        if token in self._shown:
            before = self.finish()
            self._window, self._given = [], 0
            return before + self._tokenizer.bytes_of(token).decode(errors="replace")
        if self._tokenizer.is_silent(token):
            return ""
        self._window.append(token)
        if token in self._tokenizer.fallback_bytes:
            return ""
        piece = self._take(self._final_text(self._window))
        if len(self._window) >= _WINDOW:
            self._let_go()
        return piece

    def finish(self) -> str:
        return self._take(self._tokenizer.decode(self._window))

    def _take(self, text: str) -> str:
        piece = text[self._given :]
        self._given = max(self._given, len(text))
        return piece

    def _final_text(self, tokens: Sequence[int]) -> str:
        """Their text without a last character that may be unfinished."""
        text = self._tokenizer.decode(tokens)
        return text[:-1] if text.endswith(_REPLACEMENT) else text

    def _let_go(self) -> None:
        context = self._window[-_CONTEXT:]
        text = self._final_text(context)
        # A decoder may strip the first token's space, so what remains must have text of its own.
        if text:
            self._window, self._given = context, len(text)
