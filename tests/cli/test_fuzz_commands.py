"""A few runs of `scripts/fuzz_commands.py`, which makes any number of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.letter_bundle import write_bundle

ROOT = Path(__file__).parents[2]
RUNS = 12


def test_wrong_inputs_end_in_an_exit_code_and_one_line(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "letters")
    config = tmp_path / "config.toml"
    config.write_text('[plan]\nrtt-ms = 5.0\n[run-target]\nstop = ["x"]\n')
    command = [sys.executable, str(ROOT / "scripts/fuzz_commands.py"), str(bundle), str(config), "--runs", str(RUNS)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, ""), ended
