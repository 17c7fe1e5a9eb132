"""Where things lie, and how a bundle is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from starsd_edge.bundles.cache import bundle_names, bundles_dir, cache_dir, models_dir
from starsd_edge.bundles.catalogue import find_bundle
from starsd_edge.errors import BundleError
from tests.support.small_bundle import write_small_bundle


@pytest.fixture
def cache(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same where nothing beside it has a bundle's name."""
    monkeypatch.chdir(tmp_path)
    return cache


def test_the_variables_are_asked_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("STARSD_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.delenv("STARSD_CACHE")
    assert cache_dir() == tmp_path / "xdg" / "starsd-edge"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == tmp_path / "home" / ".cache" / "starsd-edge"


def test_models_and_bundles_lie_in_the_cache(cache: Path) -> None:
    assert models_dir() == cache / "models"
    assert bundles_dir() == cache / "bundles"


def test_a_bundle_is_found_by_name_or_path(cache: Path, tmp_path: Path) -> None:
    named = write_small_bundle(cache / "bundles" / "small")
    elsewhere = write_small_bundle(tmp_path / "elsewhere")
    assert find_bundle("small") == named
    assert find_bundle(str(elsewhere)) == elsewhere
    assert find_bundle("./elsewhere").samefile(elsewhere)
    assert find_bundle("elsewhere").samefile(elsewhere)
    assert bundle_names() == ["small"]


def test_a_directory_that_is_no_bundle_does_not_hide_a_name(cache: Path, tmp_path: Path) -> None:
    named = write_small_bundle(cache / "bundles" / "small")
    (tmp_path / "small").mkdir()
    assert find_bundle("small") == named


def test_what_is_not_there_says_what_is_and_how_to_make_it(cache: Path) -> None:
    with pytest.raises(
        BundleError, match=r"no bundle named 'tiny' \(here: none yet\): make one with `starsd-edge export`"
    ):
        find_bundle("tiny")
    write_small_bundle(cache / "bundles" / "small")
    with pytest.raises(BundleError, match=r"here: small"):
        find_bundle("tiny")
    with pytest.raises(BundleError, match="no bundle at nowhere/tiny"):
        find_bundle("nowhere/tiny")


def test_a_home_that_nobody_knows_is_a_directory_that_is_not_there(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BundleError, match="no bundle at ~no-such-user/tiny"):
        find_bundle("~no-such-user/tiny")
    monkeypatch.setenv("STARSD_CACHE", "~no-such-user/cache")
    assert cache_dir() == tmp_path / "~no-such-user" / "cache"


def test_a_bundle_being_written_is_not_listed(cache: Path) -> None:
    write_small_bundle(cache / "bundles" / ".small.staging-abc")
    assert bundle_names() == []
