"""Manifests whose numbers do not go together, and files that are not what was exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers

from starsd_edge.bundles.bundle import load_bundle
from starsd_edge.bundles.fingerprints import tokenizer_fingerprint
from starsd_edge.bundles.manifest import Manifest, TensorrtGraph, TextRules
from starsd_edge.parity.files import check_each_file, check_manifest, check_tokenizer
from starsd_edge.parity.findings import Status
from tests.support.letter_bundle import write_bundle
from tests.support.small_bundle import FILES, small_manifest, write_small_bundle

CACHES = TensorrtGraph(head="fp16", block=0, capacity=40)


def manifest(model: dict[str, Any], graph: dict[str, Any], text: dict[str, Any]) -> Manifest:
    base = small_manifest({})
    parts = {"model": model, "graph": graph, "text": text}
    replaced = {name: msgspec.structs.replace(getattr(base, name), **changes) for name, changes in parts.items()}
    return msgspec.structs.replace(base, **replaced)


def test_a_sound_manifest_is_told_in_a_line() -> None:
    check = check_manifest(Path("small"), small_manifest({}))
    assert (check.status, check.finding) == (Status.OK, "llama, 1 layers, fp32 weights, append float16 KV")


@pytest.mark.parametrize(
    ("model", "graph", "text", "said"),
    [
        ({"n_heads": 3, "n_kv_heads": 2}, {}, {}, "3 heads do not share 2 KV heads evenly"),
        ({}, {"feature_width": 9}, {}, "features of 9 numbers are not the hidden state of 8"),
        ({}, {"tap_layers": [0, 5]}, {}, "layers [0, 5] cannot be tapped of 1"),
        ({}, {"kv_strategy": "inplace"}, {}, "an inplace graph needs caches of a fixed size"),
        ({}, {"kv_strategy": "inplace", "tensorrt": CACHES}, {}, "caches of 40 rows do not hold 32 tokens and a tree"),
        ({}, {"revision": 99}, {}, "graph revision 99 is newer than this program's"),
        ({}, {}, {"eos_ids": [16]}, "token 16 is beyond the vocabulary of 16"),
    ],
)
def test_what_an_exporter_never_writes_is_named(
    model: dict[str, Any], graph: dict[str, Any], text: dict[str, Any], said: str
) -> None:
    check = check_manifest(Path("small"), manifest(model, graph, text))
    assert check.status is Status.DIFFERS
    assert said in check.finding
    assert check.remedy == "export the bundle again"


def test_every_bad_file_has_a_line_of_its_own(tmp_path: Path) -> None:
    path = write_small_bundle(tmp_path / "small")
    files = small_manifest(dict.fromkeys(FILES, "")).files
    assert [check.name for check in check_each_file(path, files)] == [*FILES]
    (path / "model.onnx").unlink()
    said = [check.finding for check in check_each_file(path, {**files, "../outside": ""})]
    assert "model.onnx is missing" in said[0]
    assert "names '../outside', which is no file of the bundle" in said[-1]


@pytest.mark.parametrize("content", [b"{}", b"[]", b"no json", b"\xff", b'{"model": {"vocab": 3}}'])
def test_a_file_that_is_no_tokenizer_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    path = write_small_bundle(tmp_path / "small")
    (path / "tokenizer.json").write_bytes(content)
    check = check_tokenizer(path, small_manifest({}), None)
    assert check.status is Status.DIFFERS
    assert "is not a usable tokenizer" in check.finding


def test_a_turn_that_ends_no_answer_is_said(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}<end>{% endfor %}"
    path = write_bundle(tmp_path / "letters", template)
    contents = json.loads((path / "tokenizer.json").read_text())
    contents["added_tokens"].append(
        {
            "id": 2,
            "content": "<end>",
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
    )
    (path / "tokenizer.json").write_text(json.dumps(contents))
    read = load_bundle(path, check_files=False).manifest
    prints = msgspec.structs.replace(read.fingerprints, tokenizer_fp=tokenizer_fingerprint(contents))
    read = msgspec.structs.replace(read, fingerprints=prints)
    end = tokenizers.Tokenizer.from_str(json.dumps(contents)).token_to_id("<end>")

    def finding(*ends: int) -> str:
        return check_tokenizer(
            path, msgspec.structs.replace(read, text=TextRules(None, [*ends], False, "chat_template.jinja")), None
        ).finding

    assert "ends turns with <end>, which ends no answer (export --also-end '<end>')" in finding(0)
    assert finding(0, end).endswith(" ids")
    (path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert finding().endswith("; no token ends an answer (export --also-end TOKEN)")
