"""A small SentencePiece vocabulary, and its algorithm written down the slow way."""

from __future__ import annotations

import itertools

import gguf

UNKNOWN, CONTROL, NORMAL, BYTE, USER = (
    int(kind)
    for kind in (
        gguf.TokenType.UNKNOWN,
        gguf.TokenType.CONTROL,
        gguf.TokenType.NORMAL,
        gguf.TokenType.BYTE,
        gguf.TokenType.USER_DEFINED,
    )
)
_WORDS = [
    "▁t", "he", "▁the", "in", "er", "▁a", "▁hub", "hub", "ub", "▁h", "dr", "aft", "▁draft", "▁dr", "▁▁", "▁▁▁▁", "ing",
    "or", "▁w", "▁wor", "word", "ord", "aa", "aaaa", "▁target", "▁tar", "get", "ar", "ge", "et", "12", "▁1",
]  # fmt: skip
_LETTERS = [*"▁etaoinshrdlucmfwypvbgkqjxzTHWEPCS.,'0123456789:-_!?\n", "é", "中", "文"]
PIECES = [
    ("<unk>", 0.0, UNKNOWN),
    ("<s>", 0.0, CONTROL),
    ("</s>", 0.0, CONTROL),
    *((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)),
    *((word, -float(rank), NORMAL) for rank, word in enumerate(_WORDS)),
    *((letter, -1000.0 - rank, NORMAL) for rank, letter in enumerate(_LETTERS)),
    ("<think>", 0.0, USER),
]
"""(piece, score, type)"""


def add_sentencepiece(writer: gguf.GGUFWriter) -> None:
    """The vocabulary as the fields of a GGUF file."""
    writer.add_tokenizer_model("llama")
    writer.add_token_list([piece for piece, _, _ in PIECES])
    writer.add_token_scores([score for _, score, _ in PIECES])
    writer.add_token_types([kind for _, _, kind in PIECES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def slow_ids(text: str) -> list[int]:
    """Ids of a text without special tokens: of all neighbours, those merge first whose union scores highest, the
    leftmost of equals; what is left over becomes bytes.
    """
    ids = {piece: index for index, (piece, _, _) in enumerate(PIECES)}
    scores = {piece: score for piece, score, kind in PIECES if kind == NORMAL}
    parts = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        unions = [left + right for left, right in itertools.pairwise(parts)]
        found = [(-scores[union], at) for at, union in enumerate(unions) if union in scores]
        if not found:
            break
        _, at = min(found)
        parts[at : at + 2] = [unions[at]]
    return [
        token
        for part in parts
        for token in ([ids[part]] if part in scores else [ids[f"<0x{byte:02X}>"] for byte in part.encode()])
    ]
