"""The file of a token: one token, for its owner alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from starsd_edge.errors import UsageError
from starsd_edge.key_file import make_token, read_token


def token_in(directory: Path, mode: int) -> Path:
    file = directory / "hub.token"
    file.write_text("secret\n")
    file.chmod(mode)
    return file


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_for_its_owner_is_read(tmp_path: Path, mode: int) -> None:
    assert read_token(token_in(tmp_path, mode)) == "secret"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_for_others_is_refused_with_the_command_that_closes_it(tmp_path: Path, mode: int) -> None:
    with pytest.raises(UsageError, match=r"open to other users of this machine: chmod 600 .*hub\.token"):
        read_token(token_in(tmp_path, mode))


def test_a_credential_of_systemd_may_show_its_access_list_as_bits_of_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    assert read_token(token_in(tmp_path / "credentials", 0o440)) == "secret"
    with pytest.raises(UsageError, match="open to other users"):
        read_token(token_in(tmp_path, 0o440))  # it lies elsewhere
    with pytest.raises(UsageError, match="open to other users"):
        read_token(token_in(tmp_path / "credentials", 0o444))


def test_a_new_token_is_written_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert make_token(path)
    token = read_token(path)
    assert len(bytes.fromhex(token)) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert not make_token(path), "one that is there stays"
    assert read_token(path) == token
    with pytest.raises(UsageError, match="cannot be written: No such file or directory"):
        make_token(tmp_path / "none" / "token")
