"""Recorded texts as a file: what is written is read, and nothing else is."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from starsd_edge.bench.trace import read_traces, write_traces
from starsd_edge.errors import UsageError
from starsd_jetson import target as target_module
from tests.support.command_line import CommandLine, Ended
from tests.support.letter_bundle import write_bundle
from tests.support.prefix_engine import PrefixEngine
from tests.support.traces import letter_source, letter_traces


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "trace.npz"
    write_traces(file, letter_traces())
    return file


def test_what_was_written_is_read(path: Path) -> None:
    written, found = letter_traces(), read_traces(path)
    assert found.source == written.source
    assert len(found.texts) == 3
    for one, other in zip(found.texts, written.texts, strict=True):
        assert (one.prompt, one.answer) == (other.prompt, other.answer)
        assert np.array_equal(one.features, other.features)


def rewritten(path: Path, change: Callable[[dict[str, Any]], None], compressed: bool = False) -> Path:
    """The file with its arrays changed."""
    with np.load(path) as archive:
        arrays = dict(archive)
    change(arrays)
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


def set_item(name: str, index: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda arrays: arrays[name].__setitem__(index, value)


def replace(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    return lambda arrays: arrays.update({name: change(arrays[name])})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda arrays: arrays.pop("features"), "features"),
        (replace("ids", lambda ids: ids.astype(np.float32)), "ids is an array of float32"),
        (replace("ids", lambda ids: ids[:-1]), "ids and"),
        (replace("features", lambda rows: rows[:-1]), "features for texts of"),
        (replace("features", lambda rows: rows[None]), "3 dimensions"),
        (set_item("ids", 3, 24), "outside the vocabulary of 24"),
        (set_item("ids", 3, -1), "outside the vocabulary"),
        (set_item("features", (5, 2), np.nan), "no finite numbers"),
        (set_item("lengths", (0, 1), 0), "without prompt or answer"),
        (set_item("lengths", (0, 1), 10**6), "without prompt or answer"),
        (set_item("lengths", (0, 0), 10**6), "longer than the context"),
        (replace("lengths", lambda lengths: lengths[:0]), "lengths of the shape (0, 2)"),
        (replace("about", lambda about: about[:-1]), "truncated"),
        (replace("about", lambda about: np.frombuffer(b"{}", np.uint8)), "missing"),
        (replace("ids", lambda ids: np.array([{"a": 1}] * len(ids))), "ids is an array of object"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(path: Path, change: Callable[[dict[str, Any]], None], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_traces(rewritten(path, change))
    assert says in str(refused.value)
    assert "bench trace" in str(refused.value)


def test_a_compressed_file_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="is compressed"):
        read_traces(rewritten(path, lambda arrays: None, compressed=True))


def test_a_header_that_promises_more_than_there_is_takes_no_memory(path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f2", "fortran_order": False, "shape": (1 << 40, 1 << 10)})
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (members | {"features.npy": header.getvalue()}).items():
            archive.writestr(name, data)
    with pytest.raises(UsageError, match="features is cut short"):
        read_traces(path)


@pytest.mark.parametrize("content", [b"", b"PK", b"words"])
def test_what_is_no_archive_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is no trace"):
        read_traces(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.npz.*bench trace"):
        read_traces(tmp_path / "nowhere.npz")


def test_the_source_is_read_strictly() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"other": 1}', type=type(letter_source()))


@pytest.fixture
def record(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """`bench trace` on the numpy engine; without other options it writes `tmp_path / "new.npz"`."""
    engine = PrefixEngine(1, max_context=128, feature_width=8, prefix_weight=4.0)
    monkeypatch.setattr(target_module, "open_engine", lambda *given, **named: engine)
    bundle, prompts = write_bundle(tmp_path / "letters"), tmp_path / "prompts"
    prompts.write_text("\n".join(["abacabad", "cabcab", "hijk", "bade", "face", "cafe", "lamp", "gnu"]))
    cli = CommandLine(capfd)
    usual = ("bench", "trace", bundle, "--prompts", prompts, "--output", tmp_path / "new.npz", "--new-tokens", 40)
    return lambda *more: cli(*usual, *more)


def test_the_command_records_texts_that_replay(record: Callable[..., Ended], tmp_path: Path) -> None:
    ended = record("--texts", 2)
    assert ended.code == 0, ended
    assert "2 texts with" in ended.out
    traces = read_traces(tmp_path / "new.npz")
    engine = PrefixEngine(1, max_context=128, feature_width=8, prefix_weight=4.0)
    for text in traces.texts:
        ids = text.ids.tolist()
        for at in range(text.prompt_tokens, len(ids)):
            assert int(engine.prefix_logits(ids[:at]).argmax()) == ids[at]
        for at in range(len(ids)):
            assert np.array_equal(engine.prefix_features(ids[: at + 1]), text.features[at])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--texts", 9), "8 prompts gave"),
        (("--output", "/nowhere/trace.npz"), "/nowhere/trace.npz cannot be written"),
        (("--new-tokens", 3), "--new-tokens"),
    ],
)
def test_what_cannot_be_recorded_is_told_in_one_line(
    record: Callable[..., Ended], options: tuple[object, ...], says: str
) -> None:
    ended = record(*options)
    assert ended.code != 0
    errors = [line for line in ended.err.splitlines() if not line.startswith("bench: ")]
    assert len(errors) == 1, ended
    assert says in errors[0]
