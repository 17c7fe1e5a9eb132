"""Keys with terms of their own: a table each, and no secret among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from starsd_edge.cli.run_draft.setup import read_keys
from starsd_edge.errors import UsageError
from starsd_edge.scheduling.policies import KeyTerms
from starsd_server.gate import HubKey


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write(tmp_path / "kitchen.token", "kitchen-secret\n")
    write(tmp_path / "hall.token", "hall-secret\n")
    return tmp_path


def test_each_table_is_a_key_and_its_token_lies_beside_it(place: Path) -> None:
    tables = '[kitchen]\ntoken-file = "kitchen.token"\nweight = 3\n[hall]\ntoken-file = "hall.token"\npriority = -1\n'
    assert read_keys(write(place / "keys.toml", tables)) == (
        HubKey("kitchen-secret", KeyTerms(weight=3.0)),
        HubKey("hall-secret", KeyTerms(priority=-1)),
    )


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ("", "no key"),
        ("[kitchen", "not TOML"),
        ("[kitchen]\nweight = 2", "token-file"),
        ('[kitchen]\ntoken = "kitchen-secret"\ntoken-file = "kitchen.token"', "unknown field `token`"),
        ('[kitchen]\ntoken-file = "kitchen.token"\nweight = 0', "0.01"),
        ('[kitchen]\ntoken-file = "kitchen.token"\nweight = nan', "weight"),
        ('[kitchen]\ntoken-file = "kitchen.token"\npriority = 1.5', "int"),
        ('[kitchen]\ntoken-file = "none.token"', "none.token cannot be read"),
        ('[a]\ntoken-file = "hall.token"\n[b]\ntoken-file = "hall.token"', r"\[b\] .* has the token of a key before"),
    ],
)
def test_what_is_no_file_of_keys_is_one_line_without_a_secret(place: Path, tables: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as told:
        read_keys(write(place / "keys.toml", tables))
    assert "\n" not in str(told.value)
    assert "secret" not in str(told.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_keys(tmp_path / "none.toml")
