"""What is shown while a bundle is checked and loaded: on a terminal, elsewhere, and for programs."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from starsd_edge.bundles.bundle import load_bundle
from starsd_edge.cli.progress import loading_shown, steps
from tests.support.small_bundle import write_small_bundle

SIZE = 72 << 20


class Screen(io.StringIO):
    """A terminal that keeps what is drawn on it."""

    def isatty(self) -> bool:
        return True

    def drawn(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.getvalue())


@pytest.fixture
def bundle(cache: Path, tmp_path: Path) -> Path:
    """One with a file of `SIZE`, which takes no room on the disk."""
    place = write_small_bundle(tmp_path / "large", {"model.onnx.data": bytes(SIZE)})
    (place / "model.onnx.data").open("r+b").truncate(SIZE)
    return place


def put_screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """In the place of standard error."""
    screen = Screen()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def test_a_terminal_shows_what_is_read_how_far_and_what_is_loaded(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = put_screen(monkeypatch)
    lines: list[str] = []
    with loading_shown([bundle], lines.append):
        load_bundle(bundle)
    drawn = screen.drawn()
    assert "checking model.onnx.data, 17 of 75.5 MB" in drawn
    assert "checking model.onnx.data, 67 of 75.5 MB" in drawn
    assert "loading large, 75.5 MB" in drawn
    assert max(map(len, re.split(r"[\r\n]", drawn))) <= 80
    drawn_before = screen.getvalue()
    small = write_small_bundle(bundle.with_name("small"))
    with loading_shown([small], lines.append):
        load_bundle(small)
    assert screen.getvalue() == drawn_before, "it would only flicker"
    assert lines == []


def test_elsewhere_a_line_tells_of_each_large_thing(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    with loading_shown([bundle], lines.append):
        load_bundle(bundle)
    assert lines == ["loading large, 75.5 MB", "checking model.onnx.data, 75.5 MB"]
    small = write_small_bundle(bundle.with_name("small"))
    with loading_shown([small], lines.append):
        load_bundle(small)
    with loading_shown([bundle], lines.append, only_checks=True):
        assert len(lines) == 2
        load_bundle(bundle, anew=True)
    assert lines[2:] == ["checking model.onnx.data, 75.5 MB"]
    assert capsys.readouterr().err == ""


def test_where_standard_error_is_for_programs_nothing_is_drawn(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = put_screen(monkeypatch)
    lines: list[str] = []
    with loading_shown([bundle], lines.append, draws=False):
        load_bundle(bundle)
    assert screen.getvalue() == ""
    assert len(lines) == 2


@pytest.mark.parametrize("spinner", [True, False])
def test_steps_show_the_file_that_is_read(bundle: Path, monkeypatch: pytest.MonkeyPatch, spinner: bool) -> None:
    screen = put_screen(monkeypatch)
    with steps("check", spinner=spinner) as step:
        step("the files")
        load_bundle(bundle, anew=True)
        step("the graph")
    assert "the graph" in screen.drawn()
    if not spinner:  # which draws by its own clock
        assert "the files: checking model.onnx.data, 34 of 75.5 MB" in screen.drawn()
