"""`starsd-edge list` and `rm`: what the cache holds, and taking it out of there and of nowhere else."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.letter_bundle import write_bundle


@pytest.fixture
def filled(cache: Path) -> Path:
    """A bundle, one that is damaged, an engine, and a checkpoint of the same name as the bundle."""
    (cache / "bundles").mkdir(parents=True)
    write_bundle(cache / "bundles" / "letters")
    (cache / "bundles" / "broken").mkdir()
    (cache / "bundles" / "broken" / "manifest.json").write_text("{")
    for place in ("engines/letters-sm87", "models/letters", "models/.lock"):
        (cache / place).mkdir(parents=True)
        (cache / place / "file").write_bytes(b"x" * 2_000_000)
    return cache


def test_the_cache_is_listed(cli: CommandLine, filled: Path) -> None:
    ended = cli("list")
    assert (ended.code, ended.err) == (0, "")
    lines = [line.split() for line in ended.out.splitlines()]
    assert [line[0] for line in lines] == ["models/letters", "letters-sm87", "broken", "letters"]
    assert lines[0][1:] == ["checkpoint", "2.0", "MB"]
    assert "damaged: export it again" in ended.out
    assert "graph revision 1, not 2: export it again" in ended.out
    listed = json.loads(cli("list", "--json").out)
    assert listed["cache"] == str(filled)
    assert {item["name"]: item["kind"] for item in listed["items"]} == {
        "models/letters": "checkpoint",
        "letters-sm87": "engine",
        "broken": "target bundle",
        "letters": "target bundle",
    }
    assert [item["bytes"] for item in listed["items"] if item["kind"] == "engine"] == [2_000_000]


def test_an_empty_cache_says_how_to_begin(cli: CommandLine, cache: Path) -> None:
    ended = cli("list")
    assert (ended.code, str(cache) in ended.out, "starsd-edge run MODEL" in ended.out) == (0, True, True)
    assert json.loads(cli("list", "--json").out)["items"] == []


def test_what_is_named_goes_and_nothing_else(cli: CommandLine, filled: Path) -> None:
    ended = cli("rm", "broken", "models/letters", "broken", "--yes")
    assert (ended.code, ended.out) == (0, "removed broken, 0.0 MB\nremoved models/letters, 2.0 MB\n")
    assert not (filled / "bundles" / "broken").exists()
    assert not (filled / "models" / "letters").exists()
    assert (filled / "bundles" / "letters" / "manifest.json").exists()
    assert (filled / "models" / ".lock" / "file").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "name what to remove"),
        (("leters", "--yes"), "nothing in the cache is named 'leters': did you mean letters or letters-sm87?"),
        (("../bundles/letters", "--yes"), "nothing in the cache is named"),
        (("/", "--yes"), "nothing in the cache is named '/'"),
        (("", "--yes"), "nothing in the cache is named ''"),
        (("letters", "nothing", "--yes"), "nothing in the cache is named 'nothing'"),
        (("letters",), "nobody can be asked here: give --yes"),
    ],
)
def test_what_is_not_there_or_not_agreed_to_removes_nothing(
    cli: CommandLine, filled: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    ended = cli("rm", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert (filled / "bundles" / "letters" / "manifest.json").exists()


def test_a_link_out_of_the_cache_is_not_followed(cli: CommandLine, filled: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("kept")
    (filled / "models" / "link").symlink_to(elsewhere)
    assert "link" not in cli("list").out
    assert cli("rm", "link", "--yes").code == 2
    assert (elsewhere / "mine").read_text() == "kept"
