"""A bundle whose tokenizer writes letters and whose graph is a word: the engine in its place is the numpy one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import tokenizers

from starsd_edge.bundles.bundle import write_manifest
from starsd_edge.bundles.integrity import hash_files
from starsd_edge.bundles.manifest import TextRules
from tests.support.decoding import EOS, letter_backend
from tests.support.small_bundle import small_manifest


def write_bundle(
    directory: Path,
    template: str | None = None,
    backend: tokenizers.Tokenizer | None = None,
    eos: int = EOS,
    context: int = 128,
) -> Path:
    """Write it into a new directory, with this chat template if any.

    Args:
        backend: another tokenizer.
        eos: its end of sequence.
    """
    backend = backend or letter_backend()
    words = backend.get_vocab_size()
    directory.mkdir()
    (directory / "model.onnx").write_bytes(b"graph")
    (directory / "model.onnx.data").write_bytes(b"weights")
    backend.save(str(directory / "tokenizer.json"))
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    manifest = small_manifest(hash_files(directory))
    rules = TextRules(None, [eos], False, None if template is None else "chat_template.jinja")
    model = msgspec.structs.replace(manifest.model, vocab_size=words, tokenizer_size=words, max_context=context)
    write_manifest(directory, msgspec.structs.replace(manifest, text=rules, model=model))
    return directory
