"""Kept verify curves: found again for the same engine, machine, power mode and threads, and for nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from starsd_edge.doctor.curve_store import CurveKey, CurveStore, StoredCurves, files_digest, stored_passes
from tests.support.small_bundle import small_manifest

PASSES = stored_passes(128, {1: [0.03, 0.02, 0.021], 5: [0.024, 0.1]})
STORED = StoredCurves("b" * 64, "2026-11-29 20:11", "a board", "15W", 3, [PASSES])
KEY = CurveKey("e" * 64, "jetson", {"cpu": "x", "cores": 2}, "15W", 2)


def test_what_was_kept_is_found_again(tmp_path: Path) -> None:
    store = CurveStore(tmp_path / "curves")
    assert store.load(KEY) is None
    store.save(KEY, STORED)
    kept = CurveStore(tmp_path / "curves").load(KEY)
    assert kept is not None
    assert (kept.stored, kept.is_new) == (STORED, False)
    assert kept.curves.at(128).ratio(5) == pytest.approx(1.2), "from the least times"
    assert kept.stored.lengths[0].median == {"1": 0.021, "5": 0.024}
    assert kept.stored.lengths[0].most == {"1": 0.03, "5": 0.1}


def test_a_newer_one_takes_its_place(tmp_path: Path) -> None:
    store = CurveStore(tmp_path)
    store.save(KEY, STORED)
    store.save(KEY, msgspec.structs.replace(STORED, lengths=[stored_passes(16, {1: [0.5]})]))
    kept = store.load(KEY)
    assert kept is not None
    assert kept.curves.at(128).at(1) == 0.5
    assert [path.name for path in tmp_path.iterdir()] == [f"{KEY.name}.json"]


def test_the_last_of_a_bundle_whatever_it_ran_on(tmp_path: Path) -> None:
    store = CurveStore(tmp_path / "curves")
    assert store.newest("b" * 64) is None
    later = msgspec.structs.replace(STORED, measured_at="2026-11-30 01:00", device="another board")
    other = msgspec.structs.replace(STORED, measured_at="2026-12-01 01:00", bundle="c" * 64)
    for device, stored in (("cpu", STORED), ("cuda", later), ("jetson", other)):
        store.save(replace(KEY, device=device), stored)
    (tmp_path / "curves/broken.json").write_text("{")
    kept = store.newest("b" * 64)
    assert kept is not None
    assert kept.stored == later


def written(**changes: object) -> bytes:
    passes = {"committed": 1, "least": {"1": 0.1}, "median": {"1": 0.1}, "most": {"1": 0.1}, **changes}
    return msgspec.json.encode(
        {"bundle": "", "measured_at": "x", "device": "", "power_mode": "", "passes": 1, "lengths": [passes]}
    )


def test_what_is_written_by_hand_is_read(tmp_path: Path) -> None:
    (tmp_path / f"{KEY.name}.json").write_bytes(written())
    assert CurveStore(tmp_path).load(KEY) is not None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"bundle":"","measured_at":"x","device":"","power_mode":"","passes":1,"lengths":[]}',
        written(least={"1": -1}),
        written(least={"2": 1}),
        written(least={"one": 1}),
        written(committed=-1),
        b'{"measured_at":"2026-11-29 20:11","committed":128,"passes":7,"seconds":{"1":0.02}}',
    ],
)
def test_what_cannot_be_read_is_as_good_as_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / f"{KEY.name}.json").write_bytes(data)
    assert CurveStore(tmp_path).load(KEY) is None


def test_all_that_times_depend_on_is_in_the_key() -> None:
    others = [
        replace(KEY, engine="f" * 64),
        replace(KEY, device="cpu"),
        replace(KEY, machine={"cpu": "y", "cores": 2}),
        replace(KEY, power_mode="MAXN"),
        replace(KEY, threads=1),
    ]
    assert len({KEY.name, *(each.name for each in others)}) == 6
    assert replace(KEY, machine={"cores": 2, "cpu": "x"}).name == KEY.name


def test_a_bundles_digest_is_that_of_its_files() -> None:
    digests = [
        files_digest(small_manifest(files)) for files in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"}, {"a": "2"})
    ]
    assert digests[0] == digests[1] != digests[2]
