"""The example configurations are ones that the program reads, and say what their services need."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from starsd_edge.cli.run_draft.setup import read_keys
from starsd_edge.errors import UsageError
from starsd_edge.scheduling.policies import KeyTerms
from tests.support.unit_files import read_unit
from tests.support.written_commands import read_command

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "jetson" / "deploy" / "target.toml"
HUB = ROOT / "server" / "deploy" / "hub.toml"


def command_of(unit: Path, config: Path) -> list[str]:
    """The service's, with the example in the place of the installed file."""
    command = shlex.split(read_unit(unit)["Service"]["ExecStart"][0])[1:]
    command[command.index("--config") + 1] = str(config)
    return command


def test_the_target_is_one_with_a_hub_that_chats_on_the_boards_gpu() -> None:
    options = read_command(command_of(TARGET.with_name("starsd-target.service"), TARGET))
    assert options.prompts.chat
    assert (options.device, options.bundle) == ("jetson", "smollm2-135m-tensorrt-fp16")
    assert options.hub.name == "", "every board is called by its host's name"
    assert (options.hub.hub, options.hub.token_file) == ("ws://desk:8317", TARGET.with_name("hub.token"))
    assert options.length.max_tokens < options.length.context


def test_the_hub_listens_on_loopback_with_its_credential_as_token() -> None:
    options = read_command(command_of(HUB.with_name("starsd-hub.service"), HUB))
    assert (options.host, options.port) == ("127.0.0.1", 8317)
    assert options.bundle == ("smollm2-135m-eagle-int8",)
    assert options.token_file == Path("${CREDENTIALS_DIRECTORY}/hub.token")


def test_the_keys_are_two_with_terms_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(HUB.with_name("keys.toml").read_text())
    for name in ("kitchen", "prometheus"):
        (tmp_path / f"{name}.token").write_text(f"{name}-secret")
        (tmp_path / f"{name}.token").chmod(0o600)
    keys = {key.token: key.terms for key in read_keys(tmp_path / "keys.toml")}
    assert keys == {"kitchen-secret": KeyTerms(3.0, 1), "prometheus-secret": KeyTerms()}


def test_a_mistake_in_an_example_would_be_found(tmp_path: Path) -> None:
    wrong = tmp_path / "target.toml"
    wrong.write_text(TARGET.read_text().replace("max-tokens", "max-token"))
    with pytest.raises(UsageError, match="no key 'max-token'"):
        read_command(["--config", str(wrong), "run-target", "--chat"])
