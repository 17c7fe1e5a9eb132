"""The compose file, what it mounts, and the script that makes it: files that belong together."""

from __future__ import annotations

import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from starsd_edge.cli.run_draft.setup import read_keys
from starsd_edge.cli.settings_files import parse_toml
from starsd_edge.heads.loading import TORCH_PARTS
from starsd_edge.key_file import read_token

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "server" / "deploy"
JETSON = ROOT / "jetson" / "deploy"


def load(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def compose() -> Any:
    return load(DEPLOY / "compose.yaml")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A copy of what the script needs, so that it writes nothing into the checkout."""
    (tmp_path / "prepare.sh").write_text((DEPLOY / "prepare.sh").read_text())
    (tmp_path / "bundles").mkdir()
    return tmp_path


def prepare(place: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["/bin/bash", str(place / "prepare.sh"), *map(str, arguments)]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(place)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_every_secret_that_is_used_is_one_that_the_script_makes(compose: Any, place: Path) -> None:
    assert prepare(place, place / "bundles").returncode == 0
    used = {name for service in compose["services"].values() for name in service.get("secrets", [])}
    assert used == set(compose["secrets"])
    for name, secret in compose["secrets"].items():
        assert secret == {"file": f"./secrets/{name}"}
        made = place / secret["file"]
        assert stat.S_IMODE(made.stat().st_mode) == 0o600
    hub = {key.token for key in read_keys(place / "secrets" / "keys.toml")} | {read_token(place / "secrets/hub.token")}
    assert read_token(place / "secrets" / "prometheus.token") in hub
    assert len(hub) == 2
    assert all(len(token) == 64 for token in hub)


def test_running_it_again_changes_no_secret(place: Path) -> None:
    prepare(place, place / "bundles")
    before = {file: file.read_text() for file in (place / "secrets").iterdir()}
    assert prepare(place, place / "bundles").returncode == 0
    assert {file: file.read_text() for file in (place / "secrets").iterdir()} == before


def test_no_bundles_are_one_line(place: Path) -> None:
    ended = prepare(place)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"error: {place}/.cache/starsd-edge/bundles is no directory: export a bundle first")
    assert not (place / "secrets").exists()


def test_what_is_mounted_from_here_is_here_or_is_made(compose: Any, place: Path) -> None:
    prepare(place, place / "bundles")
    mounts = [volume for service in compose["services"].values() for volume in service.get("volumes", [])]
    sources = [volume.partition(":")[0] for volume in mounts if volume.startswith("./")]
    assert len(sources) == 5
    for source in sources:
        assert (DEPLOY / source).exists() != (place / source).is_dir(), source
    variables = set(re.findall(r"\$\{(\w+):\?", (DEPLOY / "compose.yaml").read_text()))
    assert variables == {line.partition("=")[0] for line in (place / ".env").read_text().splitlines()}


def test_nothing_is_open_to_the_network_unless_somebody_says_so(compose: Any) -> None:
    ports = {name: service["ports"] for name, service in compose["services"].items()}
    assert ports == {
        "hub": ["${STARSD_LISTEN:-127.0.0.1}:8317:8317"],
        "prometheus": ["127.0.0.1:9090:9090"],
        "grafana": ["127.0.0.1:3000:3000"],
    }
    for service in compose["services"].values():
        assert service["cap_drop"] == ["ALL"]
        assert service["user"].startswith("${STARSD_UID:?")


def test_no_secret_stands_in_a_file_or_in_the_environment(compose: Any) -> None:
    for service in compose["services"].values():
        secrets = [name for name in service.get("environment", {}) if re.search("TOKEN|PASSWORD|SECRET", name)]
        assert all(name.endswith("__FILE") for name in secrets)
    kept = subprocess.run(
        ["git", "check-ignore", "server/deploy/secrets/hub.token", "server/deploy/.env", "server/deploy/data/x"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert len(kept.stdout.splitlines()) == 3
    assert {"server/deploy/secrets", "server/deploy/.env"} <= set((ROOT / ".dockerignore").read_text().splitlines())


def test_prometheus_asks_the_hub_of_the_compose_file_with_a_key_of_its_own(compose: Any) -> None:
    (job,) = load(DEPLOY / "prometheus.yml")["scrape_configs"]
    (address,) = job["static_configs"][0]["targets"]
    host, _, port = address.partition(":")
    assert port in compose["services"][host]["ports"][0].split(":")
    assert job["metrics_path"] == "/metrics"
    assert job["authorization"]["credentials_file"] == "/run/secrets/prometheus.token"
    assert compose["services"]["prometheus"]["secrets"] == ["prometheus.token"]


def test_grafana_finds_its_source_and_its_dashboard(compose: Any) -> None:
    (source,) = load(DEPLOY / "grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    grafana = compose["services"]["grafana"]
    places = dict(volume.removesuffix(":ro").split(":") for volume in grafana["volumes"])
    (provider,) = load(DEPLOY / "grafana/provisioning/dashboards/starsd.yaml")["providers"]
    assert places["./grafana/dashboards"] == provider["options"]["path"]
    assert (
        grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == f"{provider['options']['path']}/hub.json"
    )


def test_images_install_the_torch_that_the_project_is_tested_with(compose: Any) -> None:
    project = parse_toml((ROOT / "pyproject.toml").read_text())["project"]
    (torch,) = (each for each in project["optional-dependencies"]["export"] if each.startswith("torch"))
    installed = load(DEPLOY / "compose.gpu.yaml")["services"]["hub"]["build"]["args"]["TORCH"]
    assert f'ARG TORCH="{installed}"\n' in (DEPLOY / "Dockerfile").read_text()
    assert torch in installed.split()
    assert [each.partition("==")[0] for each in installed.split()] == list(TORCH_PARTS)
    assert compose["services"]["hub"]["build"]["args"]["TORCH"] == ""


def test_images_are_named_with_their_version(compose: Any) -> None:
    images = [service["image"] for name, service in compose["services"].items() if name != "hub"]
    for file in (DEPLOY / "Dockerfile", JETSON / "Dockerfile.jetpack6", JETSON / "Dockerfile.jetpack7"):
        images += re.findall(r"^ARG BASE_IMAGE=(\S+)", file.read_text(), flags=re.MULTILINE)
    assert len(images) == 5
    assert all(re.search(r":v?r?\d+\.\d+", image) for image in images)


@pytest.mark.parametrize("extra", ["jetson", "server", "cpu"])
def test_extras_that_images_and_scripts_install_exist(extra: str) -> None:
    project = parse_toml((ROOT / "pyproject.toml").read_text())["project"]
    assert extra in project["optional-dependencies"]
    texts = [file.read_text() for file in _installing()]
    assert any(re.search(rf"\[(\w+,)*{extra}(,\w+)*\]", text) for text in texts)


def _installing() -> Iterator[Path]:
    yield from (JETSON / "install.sh", DEPLOY / "Dockerfile", JETSON / "Dockerfile.jetpack6")
