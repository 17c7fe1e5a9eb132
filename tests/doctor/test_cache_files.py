"""What is left over in the cache, and what does not belong there."""

from __future__ import annotations

from pathlib import Path

from starsd_edge.bundles.integrity import staged_directory
from starsd_edge.doctor.findings import Level
from starsd_edge.doctor.machine import ENGINES, MEASURED, OWN_TEXT, TRACES, CacheFacts, check_cache, read_cache
from tests.support.small_bundle import write_small_bundle


def test_a_cache_that_is_not_there_is_empty(tmp_path: Path) -> None:
    facts = read_cache(tmp_path / "none")
    assert facts == CacheFacts(str(tmp_path / "none"), 0, (), ())
    assert [each.level for each in check_cache(facts)] == [Level.OK]


def test_what_belongs_there_is_counted_and_no_more(tmp_path: Path) -> None:
    write_small_bundle(tmp_path / "bundles" / "one")
    write_small_bundle(tmp_path / "bundles" / "two")
    (tmp_path / "models" / "m").mkdir(parents=True)
    (tmp_path / "models" / ".m.lock").touch()
    for name in (MEASURED, ENGINES, TRACES, OWN_TEXT):
        (tmp_path / name).mkdir()
    facts = read_cache(tmp_path)
    assert (facts.bundles, [*facts.abandoned], [*facts.foreign]) == (2, [], [])
    assert [each.finding for each in check_cache(facts)] == [f"2 bundles in {tmp_path}"]


def test_what_dead_and_living_makers_build(tmp_path: Path) -> None:
    dead = tmp_path / "bundles" / ".one.staging-abc"
    dead.mkdir(parents=True)
    with staged_directory(tmp_path / "bundles" / "two"):
        facts = read_cache(tmp_path)
    assert facts.abandoned == [str(dead)]
    note = [*check_cache(facts)][1]
    assert (note.level, str(dead) in note.finding) == (Level.NOTE, True)


def test_foreign_files_are_named_the_first_few(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d", "e"):
        (tmp_path / name).touch()
    (tmp_path / "bundles" / "half").mkdir(parents=True)
    facts = read_cache(tmp_path)
    assert len(facts.foreign) == 6
    note = [*check_cache(facts)][1]
    assert note.finding.endswith(f"{tmp_path}/c and 3 more")
