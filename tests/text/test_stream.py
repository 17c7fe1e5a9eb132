"""Streaming text: what comes out in pieces is what decoding everything at once gives, and a stop string ends it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from starsd_edge.bundles.manifest import TextRules
from starsd_edge.errors import UsageError
from starsd_edge.text.stream import TextStream
from starsd_edge.text.tokenizer import Tokenizer
from tests.support.small_tokenizers import byte_fallback, byte_level, byte_tokens, metaspace, word_piece

RULES = TextRules(bos_id=None, eos_ids=[1], add_bos=False)
FAMILIES = {build.__name__: Tokenizer(build(), RULES) for build in (byte_level, byte_fallback, metaspace, word_piece)}
UNICODE = {name: FAMILIES[name] for name in ("byte_level", "byte_fallback", "metaspace")}

BYTES = {tokenizer: byte_tokens(tokenizer._backend) for tokenizer in UNICODE.values()}

families = pytest.mark.parametrize("tokenizer", FAMILIES.values(), ids=FAMILIES.keys())
unicode_families = pytest.mark.parametrize("tokenizer", UNICODE.values(), ids=UNICODE.keys())


def pieces(tokenizer: Tokenizer, ids: Sequence[int], stop: Sequence[str] = (), min_tokens: int = 0) -> list[str]:
    stream = TextStream(tokenizer, stop, min_tokens)
    return [*(stream.push(token) for token in ids), stream.finish()]


def cut(text: str, stop: Sequence[str], exempt: int = 0) -> tuple[str, bool]:
    """By the definition: letter by letter, the first stop string completed ends the text, of several the longest; none
    that ends within the exempt letters.
    """
    for end in range(exempt + 1, len(text) + 1):
        completed = [s for s in stop if text[:end].endswith(s)]
        if completed:
            return text[: end - max(map(len, completed))], True
    return text, False


@families
@given(st.data())
def test_the_pieces_of_any_tokens_are_their_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.size + 3), max_size=60))
    text = tokenizer.decode(ids)
    given_out = pieces(tokenizer, ids)
    assert "".join(given_out) == text


@unicode_families
@given(st.data())
def test_the_pieces_of_broken_bytes_are_their_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Single bytes in any order, among a few letters: unfinished, overlong, wrong and lone bytes."""
    raw = data.draw(st.lists(st.sampled_from(b"\xf0\x9f\x99\x82\xe4\xb8\xad\xc3\xff\x80d "), max_size=60))
    ids = [BYTES[tokenizer][byte] for byte in raw]
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


@unicode_families
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="▁"), max_size=40))
@example("🙂🚀👩‍👩‍👧 中文字符")
@example("  two spaces, a\ttab\n\n  and é e\N{COMBINING ACUTE ACCENT}")
def test_no_piece_holds_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    given_out = pieces(tokenizer, ids)
    whole = "".join(given_out)
    assert whole == tokenizer.decode(ids)
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert "\N{REPLACEMENT CHARACTER}" not in whole


def test_a_character_leaves_with_its_last_byte() -> None:
    tokenizer = FAMILIES["byte_level"]
    ids = [BYTES[tokenizer][byte] for byte in "🙂d".encode()]
    assert pieces(tokenizer, ids) == ["", "", "", "🙂", "d", ""]


def test_a_run_of_fallback_bytes_leaves_when_it_ends() -> None:
    tokenizer = FAMILIES["byte_fallback"]
    good = [BYTES[tokenizer][byte] for byte in "中".encode()]
    letter = tokenizer.encode("d")[-1]
    assert pieces(tokenizer, [letter, *good, letter]) == ["d", "", "", "", "中d", ""]
    bad = BYTES[tokenizer][0xFF]
    assert pieces(tokenizer, [letter, *good, bad]) == ["d", "", "", "", "", "\N{REPLACEMENT CHARACTER}" * 4]


@unicode_families
def test_bytes_left_over_at_the_end_are_flushed(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("the"), BYTES[tokenizer][0xF0], BYTES[tokenizer][0x9F]]
    given_out = pieces(tokenizer, ids)
    assert "".join(given_out[:-1]) == "the"
    assert set(given_out[-1]) == {"\N{REPLACEMENT CHARACTER}"}
    assert "".join(given_out) == tokenizer.decode(ids)


@unicode_families
def test_text_without_stop_strings_leaves_at_once(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("The hub drafts the hub drafts the hub drafts the hub drafts the hub drafts")
    stream = TextStream(tokenizer)
    text = ""
    for end, token in enumerate(ids, 1):
        text += stream.push(token)
        assert text == tokenizer.decode(ids[:end])


@unicode_families
def test_special_tokens_have_no_text_and_do_not_disturb_it(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("The hub 中")
    noisy = [2, *(token for id_ in ids for token in (id_, 2)), tokenizer.size + 7]
    assert "".join(pieces(tokenizer, noisy)) == "The hub 中"


def test_an_added_token_that_is_not_special_has_text() -> None:
    tokenizer = FAMILIES["byte_level"]
    assert "".join(pieces(tokenizer, tokenizer.encode("a<think>b"))) == "a<think>b"


@unicode_families
def test_special_tokens_that_are_asked_for_are_written_out(tokenizer: Tokenizer) -> None:
    before, after = tokenizer.encode("The hub 中"), tokenizer.encode("the hub")
    stream = TextStream(tokenizer, shown={2})
    said = "".join([*(stream.push(token) for token in (*before, 2, 3, *after)), stream.finish()])
    assert said == f"The hub 中<|im_start|>{tokenizer.decode(after)}"
    stream = TextStream(tokenizer, ("<|im",), shown={2})
    assert "".join(stream.push(token) for token in (*before, 2)) == "The hub 中"
    assert stream.stopped


# Stop strings


@families
@given(st.data())
def test_stop_strings_cut_the_text_wherever_tokens_end(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.size - 1), min_size=1, max_size=40))
    text = tokenizer.decode(ids)
    inside = st.integers(0, max(0, len(text) - 1)).flatmap(lambda a: st.integers(1, 6).map(lambda n: text[a : a + n]))
    near = inside.map(lambda s: s + "!")
    stop = data.draw(st.lists(st.one_of(inside, near).filter(bool), max_size=3))
    stream = TextStream(tokenizer, stop)
    out = "".join(stream.push(token) for token in ids) + stream.finish()
    assert (out, stream.stopped) == cut(text, stop)


@given(
    st.text("ab", min_size=1, max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.integers(0, 12),
)
@settings(max_examples=500)
def test_overlapping_stop_strings(text: str, stop: list[str], min_tokens: int) -> None:
    tokenizer = Tokenizer(_letters(), RULES)
    stream = TextStream(tokenizer, stop, min_tokens)
    out = ""
    for end, token in enumerate(tokenizer.encode(text), 1):
        out += stream.push(token)
        assert stream.stopped == cut(text[:end], stop, min_tokens)[1]
    assert out + stream.finish() == cut(text, stop, min_tokens)[0]


def test_a_stop_string_that_begins_among_the_first_tokens_may_end_after_them() -> None:
    tokenizer = Tokenizer(_letters(), RULES)
    for min_tokens, expected in ((2, ""), (3, "aab"), (5, "aab"), (6, "aabaab")):
        assert "".join(pieces(tokenizer, tokenizer.encode("aabaab"), ["aab"], min_tokens)) == expected


def test_bytes_that_come_with_the_end_belong_to_the_first_tokens_too() -> None:
    tokenizer = FAMILIES["byte_fallback"]
    ids = [BYTES[tokenizer][byte] for byte in "中".encode()]
    assert "".join(pieces(tokenizer, ids, ["中"])) == ""
    assert "".join(pieces(tokenizer, ids, ["中"], min_tokens=3)) == "中"
    assert "".join(pieces(tokenizer, ids, ["中"], min_tokens=2)) == ""


def _letters() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    backend.decoder = tokenizers.decoders.Fuse()
    return backend


@unicode_families
def test_a_stop_string_may_span_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("The hub drafts the hub")
    stream = TextStream(tokenizer, ["b drafts t"])
    out = [stream.push(token) for token in ids]
    assert "".join(out) == "The hu"
    assert stream.stopped
    assert stream.finish() == ""


@unicode_families
def test_a_beginning_that_does_not_become_a_stop_string_is_given_back(tokenizer: Tokenizer) -> None:
    text = "The hub drafts the hub"
    assert "".join(pieces(tokenizer, tokenizer.encode(text), ["hub dragon", "the hubs"])) == text


@unicode_families
def test_only_what_may_begin_a_stop_string_is_held_back(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, ["hubs"])
    assert "".join(stream.push(token) for token in tokenizer.encode("The hub")) == "The "
    assert stream.finish() == "hub"


def test_the_stop_string_completed_first_counts() -> None:
    tokenizer = FAMILIES["byte_level"]
    assert "".join(pieces(tokenizer, tokenizer.encode("The hub drafts"), ["hub drafts", "b d"])) == "The hu"
    assert "".join(pieces(tokenizer, tokenizer.encode("The hub drafts"), ["afts", "drafts"])) == "The hub "


def test_nothing_comes_after_a_stop_string() -> None:
    tokenizer = FAMILIES["byte_level"]
    stream = TextStream(tokenizer, ["hub"])
    assert "".join(map(stream.push, tokenizer.encode("The hub"))) == "The "
    assert [stream.push(token) for token in tokenizer.encode(" drafts")] == [""] * len(tokenizer.encode(" drafts"))
    assert stream.finish() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        TextStream(FAMILIES["byte_level"], ["a", ""])


def test_a_long_answer_is_not_decoded_again_and_again() -> None:
    calls: list[int] = []

    class Counting(Tokenizer):
        def decode(self, ids):  # type: ignore[no-untyped-def]
            calls.append(len(ids))
            return super().decode(ids)

    for build in (byte_level, byte_fallback):
        tokenizer = Counting(build(), RULES)
        ids = tokenizer.encode("The hub drafts, 中 the target verifies. ") * 100
        ids += [byte_tokens(tokenizer._backend)[0xFF]] * 500
        text = tokenizer.decode(ids)
        calls.clear()
        assert "".join(pieces(tokenizer, ids)) == text
        assert sum(calls) < 20 * len(ids)
