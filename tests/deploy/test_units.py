"""The systemd units: what systemd says of them, and their commands as they stand there."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from starsd_edge.children import end_with_parent
from tests.support.decoding import EOS, letters, plain_answer, request
from tests.support.letter_bundle import write_bundle
from tests.support.letter_program import start
from tests.support.prefix_engine import PrefixEngine
from tests.support.unit_files import complaints, read_unit

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "jetson" / "deploy" / "starsd-target.service"
HUB = ROOT / "server" / "deploy" / "starsd-hub.service"
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}a"
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="not run: there is no systemd-analyze on this machine"
)


@needs_systemd
def test_systemd_has_nothing_to_say_of_the_units(tmp_path: Path) -> None:
    assert complaints([TARGET, HUB], tmp_path) == []


@needs_systemd
def test_systemd_would_say_of_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "units").mkdir()
    wrong = tmp_path / "wrong.service"
    wrong.write_text(HUB.read_text().replace("ProtectHome=yes", "ProtectHome=perhaps"))
    assert any("perhaps" in line for line in complaints([wrong], tmp_path / "units"))


@needs_systemd
@pytest.mark.parametrize("file", [TARGET, HUB], ids=["target", "hub"])
def test_systemd_counts_little_that_a_service_could_do_beyond_its_work(file: Path) -> None:
    """On its scale of 0 (shut in) to 100; a service that says nothing has 96."""
    command = ["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=25", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("file", [TARGET, HUB], ids=["target", "hub"])
def test_a_service_has_a_user_of_its_own_and_no_more_rights_than_it_needs(file: Path) -> None:
    service = read_unit(file)["Service"]
    assert (service["User"], service["Group"]) == (["starsd"], ["starsd"])
    assert service["CapabilityBoundingSet"] == []
    for setting in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "RestrictNamespaces", "RestrictSUIDSGID"):
        assert service[setting] == ["yes"], setting
    assert service["ProtectSystem"] == ["strict"]


@pytest.mark.parametrize("file", [TARGET, HUB], ids=["target", "hub"])
def test_a_service_can_use_the_gpu(file: Path) -> None:
    service = read_unit(file)["Service"]
    # The first hides device nodes, the second closes them, the third stops CUDA's compiler, the last hides meminfo.
    assert not {"PrivateDevices", "ProtectClock", "MemoryDenyWriteExecute", "ProcSubset"} & service.keys()
    assert service["SupplementaryGroups"] == ["video render"]


@pytest.mark.parametrize("file", [TARGET, HUB], ids=["target", "hub"])
def test_a_service_comes_back_ever_more_slowly_but_not_with_a_wrong_configuration(file: Path) -> None:
    service = read_unit(file)["Service"]
    assert service["Restart"] in (["always"], ["on-failure"])
    assert float(service["RestartSec"][0]) < float(service["RestartMaxDelaySec"][0])
    assert service["RestartPreventExitStatus"] == ["2"]


def test_the_hubs_secrets_are_credentials_and_the_drop_in_changes_nothing_else() -> None:
    service = read_unit(HUB)["Service"]
    with_keys = read_unit(HUB.with_name("keys.conf"))["Service"]
    assert len(with_keys["ExecStart"]) == 1
    assert with_keys["ExecStart"][0].startswith(f"{service['ExecStart'][0]} --keys ")
    handed = {value.partition(":")[0] for each in (service, with_keys) for value in each["LoadCredential"]}
    named = set(re.findall(r"\{CREDENTIALS_DIRECTORY\}/(\S+)", with_keys["ExecStart"][0]))
    tokens = set(re.findall(r'^token-file = "(.*)"', HUB.with_name("keys.toml").read_text(), flags=re.MULTILINE))
    assert handed == named | tokens


def test_the_command_of_the_target_answers_over_http_until_it_is_told_to_end(tmp_path: Path) -> None:
    config = tmp_path / "target.toml"
    lines = TARGET.with_name("target.toml").read_text().splitlines()
    changed = {"bundle": str(write_bundle(tmp_path / "bundle", TEMPLATE)), "device": "cpu"}
    kept = [line for line in lines if line.partition(" ")[0] not in {"hub", "token-file", *changed}]
    config.write_text("\n".join([*kept, *(f'{key} = "{value}"' for key, value in changed.items())]))
    command = shlex.split(read_unit(TARGET)["Service"]["ExecStart"][0])[1:]
    command[command.index("/etc/starsd-edge/target.toml")] = str(config)
    target = start(*command, "--port", 0)
    try:
        assert target.stdout is not None
        port = urlsplit(target.stdout.readline().split()[2]).port
        messages, said = [], ""
        for asked, prompt in (("abc", "uabca"), ("de", f"uabca{answer('uabca')}udea")):
            messages.append({"role": "user", "content": asked})
            said = say(port, {"model": "small", "temperature": 0, "max_tokens": 8, "messages": messages})
            assert said == answer(prompt)
            messages.append({"role": "assistant", "content": said})
        target.terminate()
        assert str(target.wait()) in read_unit(TARGET)["Service"]["SuccessExitStatus"]
    finally:
        target.kill()


def say(port: int | None, body: dict[str, object]) -> str:
    """What a target answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps({**body, "logit_bias": {EOS: -100}}))
    said: str = json.load(connection.getresponse())["choices"][0]["message"]["content"]
    connection.close()
    return said


def test_the_command_of_the_hub_lets_in_who_has_a_credential_of_its_unit_and_ends_in_peace(tmp_path: Path) -> None:
    config, secrets = tmp_path / "hub.toml", tmp_path / "credentials"
    config.write_text(
        "\n".join(line for line in HUB.with_name("hub.toml").read_text().splitlines() if not is_fixed(line))
    )
    secrets.mkdir()
    (secrets / "keys.toml").write_text(HUB.with_name("keys.toml").read_text())
    for name in ("hub", "kitchen", "prometheus"):
        (secrets / f"{name}.token").write_text(f"{name}-secret\n")
        (secrets / f"{name}.token").chmod(0o440)  # with an access list, as newer systems hand them over
    (line,) = read_unit(HUB.with_name("keys.conf"))["Service"]["ExecStart"]
    command = shlex.split(line.replace("${CREDENTIALS_DIRECTORY}", str(secrets)))[1:]
    command[command.index("--config") + 1] = str(config)
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "CREDENTIALS_DIRECTORY": str(secrets)}
    hub = subprocess.Popen(
        [sys.executable, "-m", "starsd_edge.cli", *command, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        preexec_fn=end_with_parent,
    )
    try:
        assert hub.stdout is not None
        port = int(re.findall(r"ws://127\.0\.0\.1:(\d+)", hub.stdout.readline())[0])
        codes = {secret: metrics_code(port, secret) for secret in ("hub-secret", "prometheus-secret", "another")}
        assert codes == {"hub-secret": 200, "prometheus-secret": 200, "another": 401}
        hub.terminate()
        assert hub.wait() == 0
    finally:
        hub.kill()


def is_fixed(line: str) -> bool:
    """What a test cannot use: a bundle that is not here, and a port that somebody may have."""
    return line.startswith(("bundle =", "port ="))


def metrics_code(port: int, token: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics", headers={"Host": "hub:8317", "Authorization": f"Bearer {token}"})
    return connection.getresponse().status


def answer(text: str) -> str:
    prompt = tuple(letters().encode(text))
    return plain_answer(PrefixEngine(1), letters([]), request(prompt=prompt, max_tokens=8)).text
