"""Checkpoints that cannot be used are refused in one line, before any weight is loaded."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from starsd_edge.errors import UsageError
from starsd_export.checkpoint import open_checkpoint
from tests.support.tiny_llama import write_gguf, write_safetensors


class Bomb:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('unpickled')",)


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".pkl", ".ckpt"])
def test_a_pickle_is_never_opened(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"pytorch_model{suffix}"
    path.write_bytes(pickle.dumps(Bomb()))
    assert "convert it to safetensors first" in refusal(path)


def test_a_pickle_under_another_name_is_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(pickle.dumps(Bomb()))
    assert "is no GGUF file" in refusal(path)


def test_a_directory_of_pickles_is_refused(tmp_path: Path) -> None:
    write_safetensors(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert "holds no safetensors file" in refusal(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_a_gguf_that_was_cut_short_is_refused(tmp_path: Path, share: float) -> None:
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: int(share * len(whole))])
    assert ("no whole GGUF file" if share else "is no GGUF file") in refusal(path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_safetensors_file_that_was_cut_short_is_refused(tmp_path: Path, share: float) -> None:
    write_safetensors(tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    assert "no whole safetensors file" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("contents", [None, b"", b"{", b"[]", b"\xff\xfe"])
def test_a_missing_or_damaged_file_is_named(tmp_path: Path, name: str, contents: bytes | None) -> None:
    write_safetensors(tmp_path)
    (tmp_path / name).unlink()
    if contents is not None:
        (tmp_path / name).write_bytes(contents)
    assert name in refusal(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"])
def test_a_hostile_file_is_named_in_one_line(tmp_path: Path, name: str) -> None:
    write_safetensors(tmp_path)
    for contents in (b"[" * 500_000, b'{"a":' * 500_000, b'{"a":' + b"9" * 100_000 + b"}", b"null"):
        (tmp_path / name).write_bytes(contents)
        message = refusal(tmp_path)
        assert name in message
        assert len(message) < 400
    with (tmp_path / name).open("wb") as stream:
        stream.truncate(1 << 30)
    assert "MiB, which no such file is" in refusal(tmp_path)


def test_a_splitting_that_is_not_spelled_out_is_refused_by_name(tmp_path: Path) -> None:
    message = refusal(write_gguf(tmp_path / "tiny.gguf", splitting="viking"))
    assert "splitting 'viking'" in message
    assert "safetensors directory" in message


def test_the_splitting_decides_ids(tmp_path: Path) -> None:
    prints = {
        name: open_checkpoint(write_gguf(tmp_path / f"{name}.gguf", splitting=name)) for name in ("gpt-2", "smollm")
    }
    assert prints["gpt-2"].tokenizer != prints["smollm"].tokenizer
