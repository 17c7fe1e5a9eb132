"""jetson/deploy/install.sh on boards as far as it looks at one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_board import DEVICES_CSV, JETPACK_6, JETPACK_7, SCRIPT, FakeBoard
from tests.support.unit_files import read_unit

UNITS = "etc/systemd/system"
DEVICES = f"{UNITS}/starsd-target.service.d/devices.conf"


@pytest.mark.parametrize(
    ("release", "python", "says"),
    [
        (JETPACK_6, "3.10", "Jetson Linux 36.4.3: JetPack 6"),
        (JETPACK_6.replace("4.3", "5.1"), "3.10", "Jetson Linux 36.5.1: JetPack 6"),
        (JETPACK_7, "3.12", "Jetson Linux 39.2.0: JetPack 7"),
        (JETPACK_7.replace("R39", "R38").replace("2.0", "4.0"), "3.12", "Jetson Linux 38.4.0: JetPack 7"),
    ],
)
def test_a_dry_run_says_what_it_would_do_and_changes_nothing(
    tmp_path: Path, release: str, python: str, says: str
) -> None:
    board = FakeBoard(tmp_path, release, {"PYTHON_VERSION": python, "USER_ID": "1000"})
    before = board.files()
    ended = board.install("--dry-run")
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines[:3] == [says, f"Python {python}", "TensorRT 10.3.0"]
    venv = f"{board.root}/opt/starsd-edge/venv"
    assert f"would run: {board.root}/usr/bin/python3 -m venv --clear --system-site-packages {venv}" in lines
    (pip,) = (line for line in lines if "-m pip" in line)
    constraints = SCRIPT.with_name(f"constraints-jetpack{says[-1]}.txt")
    assert pip.endswith(f"--constraint {constraints}")
    assert f"{SCRIPT.parents[2]}\\[jetson\\,serve\\,json\\]" in pip
    assert "would run: systemctl daemon-reload" in lines
    assert lines[-1] == "Nothing was changed."
    assert board.files() == before
    assert all(call.startswith("python -c") for call in board.calls())


def test_the_page_shows_what_a_dry_run_prints(tmp_path: Path) -> None:
    board, checkout = FakeBoard(tmp_path), SCRIPT.parents[2]
    printed = board.install("--dry-run").stdout.replace(str(board.root), "").splitlines()
    page = (checkout / "docs" / "jetson.md").read_text(encoding="utf-8")
    block = page.partition("```text\nJetson Linux")[2].partition("\n...\n")[0]
    shown = f"Jetson Linux{block.replace('/home/me/starsd-edge', str(checkout))}".splitlines()
    assert len(shown) > 5
    assert shown == printed[: len(shown)]


def test_it_installs_the_program_and_the_service(tmp_path: Path) -> None:
    board = FakeBoard(tmp_path)
    ended = board.install()
    assert (ended.returncode, ended.stderr) == (0, "")
    files = board.files()
    assert files[f"{UNITS}/starsd-target.service"] == SCRIPT.with_name("starsd-target.service").read_text()
    assert files["etc/starsd-edge/target.toml"] == SCRIPT.with_name("target.toml").read_text()
    assert (board.root / "usr/local/bin/starsd-edge").readlink() == Path("/opt/starsd-edge/venv/bin/starsd-edge")
    assert (board.root / "etc/starsd-edge").stat().st_mode & 0o777 == 0o755
    assert (board.root / "var/lib/starsd-edge").stat().st_mode & 0o777 == 0o750
    calls = board.calls()
    assert [call.split()[0] for call in calls if call.startswith("user")] == ["useradd", "usermod", "usermod"]
    assert calls[-2:] == ["systemctl daemon-reload", "systemctl try-restart starsd-target.service"]


def test_running_it_again_keeps_the_account_the_environment_and_the_configuration(tmp_path: Path) -> None:
    board = FakeBoard(tmp_path)
    board.install()
    (board.root / "etc/starsd-edge/target.toml").write_text("[serve]\n")
    board.calls()
    before = board.files()
    ended = board.install()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "/etc/starsd-edge/target.toml is kept as it is." in ended.stdout.splitlines()
    assert board.files() == before
    calls = board.calls()
    assert not [call for call in calls if call.startswith(("user", "python -m venv"))]
    assert [call for call in calls if call.startswith("python -m pip install")]


def test_what_a_version_with_a_fifo_left_is_removed_and_its_configuration_named(tmp_path: Path) -> None:
    board = FakeBoard(tmp_path)
    old = [board.root / UNITS / "starsd-target.socket", board.root / "etc/tmpfiles.d/starsd-target.conf"]
    configuration = board.root / "etc/starsd-edge/target.toml"
    for file in (*old, configuration):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("[run-target]\n")
    ended = board.install()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not [file for file in old if file.exists()]
    assert "systemctl disable --now starsd-target.socket" in board.calls()
    assert any("no table [serve]" in line for line in ended.stdout.splitlines())
    assert configuration.read_text() == "[run-target]\n"


def test_the_service_gets_the_nodes_that_containers_get_and_no_others(tmp_path: Path) -> None:
    board = FakeBoard(tmp_path)
    listed = board.root / DEVICES_CSV
    listed.parent.mkdir(parents=True)
    listed.write_text("dev, /dev/nvmap\ndev, /dev/fb0\n dev, /dev/nvsched-fence\nsym, /dev/video0\n")
    (board.root / "dev/nvsched-fence").write_text("")
    board.install()
    service = read_unit(board.root / DEVICES)["Service"]
    assert service["DevicePolicy"] == ["closed"]
    assert sorted(service["DeviceAllow"]) == [
        f"/dev/{node} rw"
        for node in (
            "dri/renderD128",
            "nvgpu/igpu0/ctrl",
            "nvhost-gpu",
            "nvidia0",
            "nvidiactl",
            "nvmap",
            "nvsched-fence",
        )
    ]


def test_devices_can_be_left_open(tmp_path: Path) -> None:
    board = FakeBoard(tmp_path)
    board.install()
    assert DEVICES in board.files()
    assert board.install("--open-devices").returncode == 0
    assert DEVICES not in board.files()


def test_the_program_alone(tmp_path: Path) -> None:
    board = FakeBoard(tmp_path)
    ended = board.install("--no-service")
    assert ended.returncode == 0
    assert not [file for file in board.files() if file.startswith("etc/systemd")]
    assert not [call for call in board.calls() if call.startswith(("user", "systemctl"))]


def test_without_a_network_it_takes_wheels_from_a_directory(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    board = FakeBoard(tmp_path)
    assert board.install("--wheels", tmp_path / "wheels").returncode == 0
    (pip,) = (call for call in board.calls() if call.startswith("python -m pip"))
    assert f"--no-index --find-links {tmp_path / 'wheels'} starsd-edge[jetson,serve,json]" in pip


def test_the_release_can_be_that_of_the_package(tmp_path: Path) -> None:
    board = FakeBoard(tmp_path, "", {"PACKAGE": "36.4.7-20250918154033"})
    assert board.install("--dry-run").stdout.splitlines()[0] == "Jetson Linux 36.4.7: JetPack 6"


@pytest.mark.parametrize(
    ("release", "environment", "options", "says"),
    [
        (JETPACK_6, {"MACHINE": "x86_64"}, [], "this is no Jetson: its processor is x86_64"),
        ("", {}, [], "no Jetson Linux found"),
        (JETPACK_6.replace("R36", "R35"), {}, [], "Jetson Linux 35.4.3 is older than JetPack 6.1"),
        (JETPACK_6.replace("4.3", "3.0"), {}, [], "Jetson Linux 36.3.0 is JetPack 6.0"),
        (JETPACK_7.replace("R39", "R40"), {}, [], "newer than this script: if it is a JetPack 7, say --jetpack 7"),
        (JETPACK_7, {}, [], "/usr/bin/python3 is Python 3.10, and JetPack 7 comes with 3.12"),
        (JETPACK_6, {"NO_VENV": "1"}, [], "sudo apt-get install python3-venv"),
        (JETPACK_6, {"TENSORRT": ""}, [], "no TensorRT: sudo apt-get install nvidia-jetpack"),
        (JETPACK_6, {"TENSORRT": "8.6.2"}, [], "TensorRT 8.6.2 is older than 10.3"),
        (JETPACK_6, {"USER_ID": "1000"}, [], "this needs root"),
        (JETPACK_6, {"GROUPS_THERE": "video"}, [], "there is no group render"),
        (JETPACK_6, {}, ["--wheels", "/nowhere"], "--wheels takes a directory"),
        (JETPACK_6, {}, ["--jetpack", "5"], "--jetpack is 6 or 7"),
        (JETPACK_6, {}, ["--now"], "no option --now"),
    ],
)
def test_what_cannot_work_is_one_line_that_says_what_helps(
    tmp_path: Path, release: str, environment: dict[str, str], options: list[str], says: str
) -> None:
    board = FakeBoard(tmp_path, release, environment)
    ended = board.install(*options)
    assert ended.returncode == 1
    (error,) = (line for line in ended.stderr.splitlines() if line.startswith("error: "))
    assert says in error
    assert not [call for call in board.calls() if call.startswith("systemctl")]


def test_a_board_without_the_gpus_nodes_is_not_shut_in(tmp_path: Path) -> None:
    board = FakeBoard(tmp_path)
    for node in (board.root / "dev").rglob("*"):
        node.unlink() if node.is_file() else None
    ended = board.install()
    assert ended.returncode == 1
    assert "none of the GPU's device nodes is there" in ended.stderr
    assert "--open-devices" in ended.stderr


def test_a_newer_tensorrt_is_no_older_one(tmp_path: Path) -> None:
    board = FakeBoard(tmp_path, JETPACK_7, {"PYTHON_VERSION": "3.12", "TENSORRT": "10.16.2.10"})
    assert "TensorRT 10.16.2.10" in board.install("--dry-run").stdout.splitlines()
