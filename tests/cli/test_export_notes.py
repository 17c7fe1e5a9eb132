"""`starsd-edge export` says what a user who knows the checkpoint would not expect."""

from __future__ import annotations

from pathlib import Path

import pytest

from starsd_edge.bundles.bundle import load_bundle
from tests.support.command_line import CommandLine


@pytest.mark.export
def test_a_shorter_context_is_said_once_and_kept_in_the_manifest(cli: CommandLine, cache: Path, tmp_path: Path) -> None:
    from tests.support.tiny_families import write_family

    checkpoint = write_family(tmp_path / "windowed", model_type="mistral", sliding_window=512)
    ended = cli("export", checkpoint)
    assert ended.code == 0
    notes = [line for line in ended.err.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1
    assert "the context ends at 512 tokens and not at 1024" in notes[0]
    manifest = load_bundle(cache / "bundles" / "windowed-fp32").manifest
    assert manifest.model.max_context == 512
    assert notes == [f"note: {note}" for note in manifest.notes]
