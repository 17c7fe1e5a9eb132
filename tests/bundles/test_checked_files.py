"""Digests that are kept: a file is read once, and again when it may be another."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from starsd_edge.bundles import checked_files
from starsd_edge.bundles.bundle import load_bundle
from starsd_edge.bundles.checked_files import KEPT_FROM, file_digest, reading_watched
from starsd_edge.bundles.integrity import sha256_file
from starsd_edge.errors import BundleError
from tests.support.letter_bundle import write_bundle
from tests.support.small_bundle import FILES, write_small_bundle

LATER_S = 1e4


@dataclass
class Reader:
    """Counts files and bytes that are read, at a time that is set by hand."""

    now: float = field(default_factory=lambda: Path("/proc/self/stat").stat().st_mtime + LATER_S)
    read: int = 0
    bytes: int = 0

    def digest(self, path: Path, *, anew: bool = False) -> str:
        with reading_watched(self.watch):
            return file_digest(path, anew=anew, clock=lambda: self.now)

    def watch(self, path: Path, read: int, size: int) -> None:
        assert read <= size == path.stat().st_size
        if read == size:
            self.read += 1
            self.bytes += size


@pytest.fixture
def file(cache: Path, tmp_path: Path) -> Path:
    """As large as those whose digests are kept."""
    path = tmp_path / "weights"
    path.write_bytes(b"w" * KEPT_FROM)
    return path


def kept(cache: Path) -> list[Path]:
    return list((cache / "checked").glob("*"))


def test_a_file_is_read_once(file: Path, cache: Path) -> None:
    reader = Reader()
    wanted = hashlib.sha256(b"w" * KEPT_FROM).hexdigest()
    assert [reader.digest(file), reader.digest(file)] == [wanted, wanted]
    assert reader.read == 1
    assert reader.digest(file, anew=True) == wanted
    assert reader.read == 2
    (record,) = kept(cache)
    assert record.stat().st_mode & 0o777 == 0o600
    assert record.parent.stat().st_mode & 0o777 == 0o700


def rewritten(file: Path) -> None:
    times = file.stat()
    file.write_bytes(b"v" * KEPT_FROM)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # as `cp --preserve` and archives do


def replaced(file: Path) -> None:
    twin = file.with_name("twin")
    twin.write_bytes(b"v" * KEPT_FROM)
    os.utime(twin, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    twin.replace(file)


def longer(file: Path) -> None:
    with file.open("ab") as stream:
        stream.write(b"v")


@pytest.mark.parametrize("change", [rewritten, replaced, longer])
def test_a_file_that_changed_is_read_again(change: Callable[[Path], None], file: Path) -> None:
    reader = Reader()
    before = reader.digest(file)
    change(file)
    assert reader.digest(file) != before
    assert reader.digest(file) == sha256_file(file)
    assert reader.read == 2


def test_what_was_changed_just_now_is_not_kept(file: Path, cache: Path) -> None:
    reader = Reader(now=file.stat().st_ctime + 1)
    reader.digest(file)
    assert kept(cache) == []
    reader.now += 2
    reader.digest(file)
    reader.digest(file)
    assert reader.read == 2


def test_small_files_are_read_every_time(file: Path, cache: Path) -> None:
    reader = Reader()
    file.write_bytes(b"w" * (KEPT_FROM - 1))
    reader.digest(file)
    reader.digest(file)
    assert reader.read == 2
    assert kept(cache) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: record.write_bytes(b"{"),
        lambda record: record.write_bytes(record.read_bytes().replace(b'"path":"', b'"path":"/other')),
        lambda record: record.chmod(0o622),
        lambda record: (record.rename(record.with_suffix(".moved")), record.symlink_to(record.with_suffix(".moved"))),
        lambda record: (record.unlink(), os.mkfifo(record)),
        lambda record: record.write_bytes(b"\xff" * 10_000),
    ],
    ids=["no JSON", "of another file", "others may write it", "a link", "a pipe", "far too long"],
)
def test_a_record_that_cannot_be_trusted_counts_for_nothing(
    spoil: Callable[[Path], object], file: Path, cache: Path
) -> None:
    reader = Reader()
    reader.digest(file)
    (record,) = kept(cache)
    spoil(record)
    assert reader.digest(file) == sha256_file(file)
    assert reader.read == 2


def test_a_record_in_a_directory_that_others_may_write_counts_for_nothing(file: Path, cache: Path) -> None:
    reader = Reader()
    reader.digest(file)
    (cache / "checked").chmod(0o777)
    reader.digest(file)
    assert reader.read == 2


def test_a_record_of_another_user_counts_for_nothing(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader()
    reader.digest(file)
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    reader.digest(file)
    assert reader.read == 2


def test_a_link_that_leads_elsewhere_meanwhile_is_no_record_of_the_file_it_led_to(file: Path, tmp_path: Path) -> None:
    """The file that is read is the one whose state is kept."""
    good, link, reader = tmp_path / "good", tmp_path / "link", Reader()
    good.write_bytes(b"g" * KEPT_FROM)
    link.symlink_to(file)

    def swap(path: Path, read: int, size: int) -> None:
        link.unlink()
        link.symlink_to(good)

    with reading_watched(swap):
        assert file_digest(link, clock=lambda: reader.now) == sha256_file(file)
    assert reader.digest(link) == sha256_file(good)
    assert reader.read == 1


def test_records_of_files_that_are_gone_go(file: Path, cache: Path, tmp_path: Path) -> None:
    other, reader = tmp_path / "other", Reader()
    other.write_bytes(b"o" * KEPT_FROM)
    reader.digest(file)
    file.unlink()
    reader.digest(other)
    assert [str(other) in record.read_text() for record in kept(cache)] == [True]


def test_a_second_start_reads_the_small_files_of_a_bundle(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write_small_bundle(tmp_path / "small", {"model.onnx.data": bytes(KEPT_FROM)})
    reader = Reader()
    monkeypatch.setattr(checked_files, "_SETTLED_S", -LATER_S)  # as if all had been written long ago

    def hashed(**how: bool) -> int:
        before = reader.bytes
        with reading_watched(reader.watch):
            load_bundle(place, **how)
        return reader.bytes - before

    small = sum(len(content) for name, content in FILES.items() if name != "model.onnx.data")
    assert [hashed(), hashed(), hashed(anew=True), hashed()] == [KEPT_FROM + small, small, KEPT_FROM + small, small]
    shutil.copytree(place, tmp_path / "copy")
    weights = place / "model.onnx.data"
    weights.touch()
    assert hashed() == KEPT_FROM + small
    weights.write_bytes(b"x" * KEPT_FROM)
    with pytest.raises(BundleError, match="is not the file that was exported"):
        hashed()
    with pytest.raises(BundleError, match="is not the file that was exported"):
        hashed()  # what was read is known, and is not what the manifest says
    place = tmp_path / "copy"
    assert hashed() == KEPT_FROM + small


def test_without_a_cache_files_are_read(file: Path, cache: Path) -> None:
    cache.write_text("no directory")
    reader = Reader()
    assert [reader.digest(file), reader.digest(file)] == [sha256_file(file)] * 2
    assert reader.read == 2


def test_a_bundle_that_was_altered_after_a_check_is_refused(cache: Path, tmp_path: Path) -> None:
    place = tmp_path / "letters"
    write_bundle(place)
    load_bundle(place)
    weights = next(path for path in place.iterdir() if path.suffix == ".data")
    weights.write_bytes(b"x" + weights.read_bytes()[1:] if weights.stat().st_size else b"x")
    with pytest.raises(BundleError, match="is not the file that was exported"):
        load_bundle(place)
