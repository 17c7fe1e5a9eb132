"""Small tokenizers put together as the published tokenizer.json of each family is; the regular expressions are written
out here, not taken from the code under test.
"""

from __future__ import annotations

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.support.small_tokenizers import CORPUS, SPECIALS

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _REST
QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _REST
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _REST
)
_NUMBERS = ["1 12 123 1234 123456 2024 3.14 don't WE'RE SCREAMING camelCase snake_case x/y/z\r\n\r\n", "123 " * 20]


def published(splitting: str) -> Tokenizer:
    """A tokenizer of the kind that GGUF calls by this name, trained on a few lines."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    cuts = {
        "gpt-2": gpt2,
        "smollm": pre_tokenizers.Sequence([digits, gpt2]),
        "llama-bpe": _by(LLAMA3),
        "smaug-bpe": _by(LLAMA3),
        "qwen2": _by(QWEN2),
        "tekken": _by(TEKKEN),
    }
    backend = Tokenizer(models.BPE(ignore_merges=splitting in ("llama-bpe", "tekken")))
    if splitting == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = cuts[splitting]
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([*CORPUS, *_NUMBERS], trainer)
    backend.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return backend


def _by(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
