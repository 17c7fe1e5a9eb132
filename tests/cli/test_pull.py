"""`starsd-edge pull`."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from starsd_edge.bundles.bundle import load_bundle
from starsd_edge.bundles.catalogue import CATALOGUE
from tests.support.command_line import CommandLine
from tests.support.hub_fixture import REPOSITORY, published


def test_the_list_names_every_model_with_its_size_and_licence(cli: CommandLine) -> None:
    ended = cli("pull", "--list")
    assert ended.code == 0
    assert "smollm2-135m: SmolLM2-135M-Instruct, 98.4 MB, licence Apache-2.0" in ended.out
    assert len(ended.out.splitlines()) == len(CATALOGUE)


def test_a_path_is_answered_with_itself(cli: CommandLine, cache: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "mine.gguf"
    checkpoint.write_bytes(bytes(1_500_000))
    ended = cli("pull", checkpoint)
    assert ended.code == 0
    assert ended.out.splitlines() == [str(checkpoint), "1.5 MB, licence as its publisher states"]
    assert not cache.exists()


@pytest.mark.parametrize("name", ["no-such-model", "./no-such-file.gguf"])
def test_an_unknown_name_or_path_is_refused(cli: CommandLine, cache: Path, name: str) -> None:
    assert "known: smollm2-135m" in cli.refused("pull", name)
    assert not cache.exists()


def test_nothing_named_is_refused(cli: CommandLine) -> None:
    assert "--list" in cli.refused("pull")


def test_a_full_disk_is_refused_before_anything_is_fetched(
    cli: CommandLine, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 10**6, 10**6))
    assert "needs 284 MB" in cli.refused("pull", "smollm2-135m")
    assert not list(cache.rglob("*.gguf"))


@pytest.mark.skipif(os.geteuid() == 0, reason="not run: root may write everywhere")
def test_a_cache_that_cannot_be_written_is_refused(cli: CommandLine, cache: Path) -> None:
    cache.mkdir(mode=0o500)
    assert "set STARSD_CACHE" in cli.refused("pull", "smollm2-135m")


@pytest.mark.export
def test_a_name_on_the_hub_is_fetched_once_and_exported_under_its_name(
    cli: CommandLine, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with published(tmp_path / "published", monkeypatch) as hub:
        ended = cli("pull", f"hf:{REPOSITORY}")
        assert ended.code == 0
        assert hub.commit in ended.out.splitlines()[0]
        assert ended.out.splitlines()[1] == "0.4 MB, licence as its publisher states"
    assert cli("export", f"hf:{REPOSITORY}").code == 0  # the Hub is gone by now
    bundle = load_bundle(cache / "bundles" / "tiny-qwen-fp32")
    assert bundle.manifest.source == f"{REPOSITORY}@{hub.commit}"
    assert bundle.manifest.model.architecture == "qwen2"


def test_a_name_that_cannot_be_on_the_hub_is_refused(cli: CommandLine, cache: Path) -> None:
    assert "hf:ORG/NAME" in cli.refused("pull", "hf:alone")


@pytest.mark.model
def test_the_default_model_is_fetched_already(cli: CommandLine, model_file: Path) -> None:
    ended = cli("pull", "smollm2-135m")
    assert ended.code == 0
    assert ended.out.splitlines() == [str(model_file), "98.4 MB, licence Apache-2.0"]
    assert ended.err == ""
