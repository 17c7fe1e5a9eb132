"""A bundle of a few bytes, for tests of what surrounds a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from starsd_edge.bundles.bundle import write_manifest
from starsd_edge.bundles.integrity import hash_files
from starsd_edge.bundles.manifest import Fingerprints, Graph, Manifest, ModelShape, TextRules

FILES = {"model.onnx": b"graph", "model.onnx.data": bytes(range(256)) * 40, "tokenizer.json": b"{}"}


def small_manifest(files: dict[str, str]) -> Manifest:
    """A valid manifest that vouches for `files`."""
    return Manifest(
        schema_version=1,
        name="small",
        created_by="the tests",
        source="small.gguf",
        licence="Apache-2.0",
        model=ModelShape(
            architecture="llama",
            n_layers=1,
            n_heads=2,
            n_kv_heads=1,
            head_dim=4,
            hidden_size=8,
            vocab_size=16,
            tokenizer_size=16,
            max_context=32,
        ),
        fingerprints=Fingerprints(tokenizer_fp="0" * 64, source_fp="1" * 64, feature_fp="2" * 64),
        graph=Graph(
            file="model.onnx",
            opset=18,
            kv_strategy="append",
            kv_dtype="float16",
            weights="fp32",
            feature_kind="last_hidden",
            feature_width=8,
            max_tree=16,
            max_chunk=16,
            exact_trees=True,
        ),
        text=TextRules(bos_id=1, eos_ids=[2], add_bos=False),
        parity={},
        files=files,
    )


def write_small_bundle(directory: Path, others: Mapping[str, bytes] = MappingProxyType({})) -> Path:
    """Write FILES, or others of these names, and their manifest into a new directory."""
    directory.mkdir(parents=True)
    for name, content in {**FILES, **others}.items():
        (directory / name).write_bytes(content)
    write_manifest(directory, small_manifest(hash_files(directory)))
    return directory
