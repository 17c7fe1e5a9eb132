"""A bundle is used only when every file is the one that was exported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from starsd_edge.bundles.bundle import load_bundle, why_make
from starsd_edge.bundles.manifest import GRAPH_REVISION
from starsd_edge.errors import BundleError
from tests.support.small_bundle import FILES, write_small_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_small_bundle(tmp_path / "bundle")


def edit_manifest(bundle: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = bundle / "manifest.json"
    manifest = json.loads(file.read_text())
    change(manifest)
    file.write_text(json.dumps(manifest))


def test_a_whole_bundle_is_read(bundle: Path) -> None:
    loaded = load_bundle(bundle)
    assert loaded.path == bundle
    assert loaded.manifest.name == "small"
    assert set(loaded.manifest.files) == set(FILES)


@pytest.mark.parametrize("name", sorted(FILES))
def test_an_altered_file_is_named(bundle: Path, name: str) -> None:
    file = bundle / name
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    with pytest.raises(BundleError, match=rf"{name} is not the file that was exported"):
        load_bundle(bundle)
    load_bundle(bundle, check_files=False)


@pytest.mark.parametrize("check_files", [True, False])
def test_a_missing_file_is_named(bundle: Path, check_files: bool) -> None:
    (bundle / "model.onnx.data").unlink()
    with pytest.raises(BundleError, match=r"incomplete: model\.onnx\.data is missing"):
        load_bundle(bundle, check_files=check_files)


def test_a_truncated_file_is_named(bundle: Path) -> None:
    file = bundle / "model.onnx.data"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(BundleError, match=r"model\.onnx\.data .*truncated"):
        load_bundle(bundle)


def test_places_that_hold_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(BundleError, match="is no bundle"):
            load_bundle(place)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b'{"schema_version": 1}', b'{"schema_version": "1"}'])
def test_a_damaged_manifest_is_one_clear_line(bundle: Path, text: bytes) -> None:
    (bundle / "manifest.json").write_bytes(text)
    with pytest.raises(BundleError, match=r"manifest\.json is damaged") as caught:
        load_bundle(bundle)
    assert "\n" not in str(caught.value)


def test_a_manifest_of_another_version_is_told_apart_from_a_damaged_one(bundle: Path) -> None:
    edit_manifest(bundle, lambda manifest: manifest.update(schema_version=2, novelty="unknown to us"))
    with pytest.raises(BundleError, match="schema version 2 and this program reads version 1"):
        load_bundle(bundle)


def test_a_manifest_that_says_no_revision_is_of_the_first(bundle: Path) -> None:
    edit_manifest(bundle, lambda manifest: manifest["graph"].pop("revision"))
    assert load_bundle(bundle).manifest.graph.revision == 1


def test_a_bundle_is_made_again_where_it_is_not_what_this_version_writes(bundle: Path) -> None:
    edit_manifest(bundle, lambda manifest: manifest["graph"].update(revision=GRAPH_REVISION))
    assert why_make(bundle) == ""
    assert why_make(bundle / "elsewhere") == "there is none yet"
    edit_manifest(bundle, lambda manifest: manifest["graph"].pop("revision"))
    assert "graph revision 1, this version writes" in why_make(bundle)
    (bundle / "model.onnx").write_bytes(b"other")
    assert "damaged" in why_make(bundle)


def test_an_unknown_field_is_refused(bundle: Path) -> None:
    edit_manifest(bundle, lambda manifest: manifest["graph"].update(surprise=1))
    with pytest.raises(BundleError, match="surprise"):
        load_bundle(bundle)


def test_a_giant_manifest_is_not_parsed(bundle: Path) -> None:
    (bundle / "manifest.json").write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(BundleError, match="larger than"):
        load_bundle(bundle)


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "sub/../../outside", "", "."])
def test_a_name_that_leaves_the_bundle_is_refused(bundle: Path, name: str) -> None:
    (bundle.parent / "outside").write_text("secret")
    edit_manifest(bundle, lambda manifest: manifest["files"].update({name: "0" * 64}))
    with pytest.raises(BundleError):
        load_bundle(bundle, check_files=False)


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "tokenizer.json"])
def test_what_will_be_opened_must_be_vouched_for(bundle: Path, name: str) -> None:
    edit_manifest(bundle, lambda manifest: manifest["files"].pop(name))
    with pytest.raises(BundleError, match=rf"names {name} without its hash"):
        load_bundle(bundle)


def test_a_chat_template_must_be_vouched_for(bundle: Path) -> None:
    edit_manifest(bundle, lambda manifest: manifest["text"].update(chat_template="chat_template.jinja"))
    with pytest.raises(BundleError, match=r"names chat_template\.jinja without its hash"):
        load_bundle(bundle)
