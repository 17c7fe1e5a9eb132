"""Bundles that the tests keep: when they are made again, by whom, and what they take of the disk."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from starsd_edge.errors import BundleError
from tests.support import bundle_store
from tests.support.bundle_store import EXPORTERS, ROOT, SOURCES, file_of, made_once, sources, tiny_copy, what_runs


def written(place: Path, **files: str) -> Path:
    place.mkdir(parents=True)
    for name, text in files.items():
        (place / name).write_text(text)
    return place


def load(place: Path) -> Path:
    if not place.is_dir():
        raise BundleError("none")
    return place


def test_comments_docstrings_and_layout_make_no_other_state() -> None:
    plain = "def f(a):\n    return a + 1\n"
    assert what_runs(plain) == what_runs('"""M."""\n# why\ndef f( a ):\n    """D."""\n    return (a + 1)  # b\n')
    assert what_runs(plain) != what_runs(plain.replace("1", "2"))
    assert what_runs('def f():\n    return "text"\n') != what_runs('def f():\n    return "other"\n')


def test_the_state_is_of_what_exports_and_of_no_other_module() -> None:
    names = {str(file.relative_to(ROOT)) for file in sources()}
    assert {f"export/starsd_export/{name}.py" for name in ("graph", "pipeline", "quantising/search")} <= names
    assert "starsd_edge/runtime/onnx_engine.py" in names, "imported in a function, to judge a graph"
    assert not [name for name in names if "/engines/" in name or "/training/loop" in name or "tensorrt/" in name]


@pytest.mark.export
def test_the_state_is_of_all_that_exporters_load() -> None:
    script = f"import {', '.join(EXPORTERS)}, sys; print(*(each for each in sys.modules if each.startswith('starsd_')))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True).stdout
    loaded = {file for module in printed.decode().split() if (file := file_of(module))}
    ours = {file for place in SOURCES for file in loaded if file.is_relative_to(ROOT / place)}
    assert len(ours) > 40
    assert {file for file in ours if file.name != "__init__.py"} <= set(sources())


def test_a_new_state_takes_room_for_what_changed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_store, "STORE", tmp_path)
    old = written(tmp_path / "old" / "tiny", weights="w" * 100, graph="of the old state")
    new = tmp_path / "new" / "tiny"
    assert made_once(new, load, lambda: written(new, weights="w" * 100, graph="of the new state")) == new
    assert (new / "weights").samefile(old / "weights")
    assert (old / "graph").read_text() == "of the old state"
    assert (new / "graph").read_text() == "of the new state"
    assert sorted(file.name for file in new.iterdir()) == ["graph", "weights"]


def test_of_earlier_states_the_last_one_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_store, "STORE", tmp_path)
    for age, name in enumerate(["first", "second", "third"]):
        os.utime(written(tmp_path / name), (age, age))
    bundle_store.place_of("tiny")
    assert [state.name for state in tmp_path.iterdir()] == ["third"]


def test_who_comes_while_a_bundle_is_made_waits_and_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_store, "STORE", tmp_path)
    place, begun, go_on, makers = tmp_path / "state" / "tiny", threading.Event(), threading.Event(), []

    def make() -> Path:
        makers.append(threading.current_thread())
        begun.set()
        assert go_on.wait(60)
        return written(place)

    workers = [threading.Thread(target=made_once, args=(place, load, make)) for _ in range(3)]
    for worker in workers:
        worker.start()
    assert begun.wait(60)
    go_on.set()
    for worker in workers:
        worker.join(60)
    assert len(makers) == 1


def test_each_user_of_a_tiny_bundle_has_a_copy_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_store, "STORE", tmp_path / "store")
    makers: list[Path] = []

    def loaded(place: Path) -> Path:
        return load(place / "whole").parent

    def make(place: Path) -> None:
        makers.append(place)
        written(place, graph="whole")
        if len(makers) == 1:
            raise OSError("the disk is full")
        (place / "whole").mkdir()

    with pytest.raises(OSError, match="full"):
        tiny_copy(tmp_path / "none", "tiny", loaded, make)
    one, other = (tiny_copy(tmp_path / name, "tiny", loaded, make) for name in ("one", "other"))
    (one / "graph").write_text("altered")
    assert (other / "graph").read_text() == "whole"
    assert (tiny_copy(tmp_path / "third", "tiny", loaded, make) / "graph").read_text() == "whole"
    assert len(makers) == 2
