"""Small tokenizers built in memory: byte-level BPE, BPE with spaces as a letter and byte fallback, WordPiece."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CORPUS = [
    "The hub drafts, the target verifies. The hub never waits, the target never lies.",
    "Speculative decoding: the same words, only sooner. Ça va? Ünïcödé, 中文字符, emoji 🙂🚀.",
    "  indented code:\n\tdef f(x):\n\t\treturn x * 2\n\nThe end.",
]

SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3, Qwen and SmolLM2 have it: every byte is a letter, so tokens may end inside a character."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken("<think>", special=False)])
    return backend


def byte_fallback() -> Tokenizer:
    """As Llama 2, Mistral and Gemma have it: a space is the letter ▁, and unknown characters become byte tokens."""
    letters = sorted({letter for text in CORPUS[0:1] for letter in text if letter != " "} | {"\n", "é"})
    words = ["▁", "▁the", "▁hub", "▁The", "▁▁", "dra", "fts"]
    vocab: dict[str, int] = {}
    for token in [*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *"▁", *words[1:]]:
        vocab.setdefault(token, len(vocab))
    for word in words:
        for end in range(2, len(word) + 1):
            vocab.setdefault(word[:end], len(vocab))
    merges = [(word[: end - 1], word[end - 1]) for word in words for end in range(2, len(word) + 1)]
    merges = [pair for pair in dict.fromkeys(merges) if pair[1] in vocab]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(SPECIALS)
    return backend


def metaspace() -> Tokenizer:
    """A third kind of decoder for the same vocabulary, which treats the first token's space by itself."""
    backend = byte_fallback()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    return backend


def word_piece() -> Tokenizer:
    """A decoder that puts the spaces between tokens."""
    tokens = [*SPECIALS, "[UNK]", "the", "hub", "##s", "draft", "##ed", ".", ","]
    backend = Tokenizer(models.WordPiece(vocab={t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(SPECIALS)
    return backend


def byte_tokens(backend: Tokenizer) -> dict[int, int]:
    """The token that stands for each byte, for the byte-level and the byte-fallback family."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    tokens: dict[int, int] = {}
    for byte in range(256):
        # Byte-level BPE writes a printable byte as itself and the others as the letters from U+0100 on.
        letter = chr(byte) if byte in printable else chr(256 + rest.index(byte))
        fallback = backend.token_to_id(f"<0x{byte:02X}>")
        token = backend.token_to_id(letter) if fallback is None else fallback
        if token is not None:
            tokens[byte] = token
    return tokens
