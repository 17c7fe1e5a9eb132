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


def test_the_target_is_one_with_a_hub_that_serves_from_the_boards_gpu_on_loopback() -> None:
    options = read_command(command_of(TARGET.with_name("starsd-target.service"), TARGET))
    assert (options.http.host, options.http.port, options.http.api_keys) == ("127.0.0.1", 8318, None)
    assert (options.device, options.bundle) == ("jetson", "smollm2-135m-tensorrt-fp16")
    assert options.hub.name == "", "every board is called by its host's name"
    assert (options.hub.hub, options.hub.token_file) == ("ws://desk:8317", TARGET.with_name("hub.token"))
    assert options.context == 2048


def test_the_lines_for_other_machines_name_keys(tmp_path: Path) -> None:
    opened = tmp_path / "target.toml"
    opened.write_text(TARGET.read_text().replace('# host = "0.0', 'host = "0.0').replace("# api-keys", "api-keys"))
    options = read_command(command_of(TARGET.with_name("starsd-target.service"), opened))
    assert (options.http.host, options.http.api_keys) == ("0.0.0.0", tmp_path / "api.keys")  # noqa: S104


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
    wrong.write_text(TARGET.read_text().replace("context", "contest"))
    with pytest.raises(UsageError, match="no key 'contest'"):
        read_command(["--config", str(wrong), "serve"])
