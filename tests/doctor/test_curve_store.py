"""Kept verify curves: found again for the same bundle, machine and threads, and for nothing else."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from starsd_edge.doctor.curve_store import CurveStore, StoredCurve, curve_key
from tests.support.small_bundle import small_manifest

STORED = StoredCurve("2026-11-29 20:11", 128, 7, {"1": 0.02, "5": 0.024})
KEY = curve_key(small_manifest({"model.onnx": "aa"}), {"cpu": "x", "cores": 2}, 2)


def test_what_was_kept_is_found_again(tmp_path: Path) -> None:
    store = CurveStore(tmp_path / "curves")
    assert store.load(KEY) is None
    store.save(KEY, STORED)
    kept = CurveStore(tmp_path / "curves").load(KEY)
    assert kept is not None
    assert (kept.stored, kept.is_new) == (STORED, False)
    assert kept.curve.ratio(5) == pytest.approx(1.2)


def test_a_newer_one_takes_its_place(tmp_path: Path) -> None:
    store = CurveStore(tmp_path)
    store.save(KEY, STORED)
    store.save(KEY, msgspec.structs.replace(STORED, seconds={"1": 0.5}))
    kept = store.load(KEY)
    assert kept is not None
    assert kept.curve.at(1) == 0.5
    assert [path.name for path in tmp_path.iterdir()] == [f"{KEY}.json"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"measured_at":"x","committed":1,"passes":1,"seconds":{"1":-1}}',
        b'{"measured_at":"x","committed":1,"passes":1,"seconds":{"2":1}}',
        b'{"measured_at":"x","committed":1,"passes":1,"seconds":{"one":1}}',
        b'{"measured_at":"x","committed":1,"passes":1,"seconds":{"1":1e400}}',
    ],
)
def test_what_cannot_be_read_is_as_good_as_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / f"{KEY}.json").write_bytes(data)
    assert CurveStore(tmp_path).load(KEY) is None


def test_another_bundle_machine_or_number_of_threads_is_another_key() -> None:
    manifest, machine = small_manifest({"model.onnx": "aa"}), {"cpu": "x", "cores": 2}
    keys = {
        curve_key(manifest, machine, 2),
        curve_key(small_manifest({"model.onnx": "bb"}), machine, 2),
        curve_key(manifest, {**machine, "cpu": "y"}, 2),
        curve_key(manifest, machine, 1),
    }
    assert len(keys) == 4
    assert curve_key(manifest, {"cores": 2, "cpu": "x"}, 2) in keys
