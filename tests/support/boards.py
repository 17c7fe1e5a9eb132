"""File trees and commands of machines that this one is not.

They were written after public documentation (NVIDIA's developer guides, the support matrices, reports of owners) and
not recorded from a board: what a board really shows may differ in detail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from starsd_edge.device.gpus import CudaDevice
from starsd_edge.device.host import Host
from starsd_edge.errors import EngineError

GIB = 1 << 30


@dataclass(frozen=True)
class Machine:
    """A machine to look at.

    Attributes:
        host: its files and commands.
        gpus: what its driver says; empty where it has none.
    """

    host: Host
    gpus: Sequence[CudaDevice] = ()

    def devices(self) -> list[CudaDevice]:
        """As `cuda_devices` asks the driver."""
        if not self.gpus:
            raise EngineError("there is no NVIDIA driver on this machine")
        return [*self.gpus]


def write_tree(root: Path, files: Mapping[str, str]) -> None:
    """Files by their paths below the root."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def host_of(root: Path, files: Mapping[str, str], commands: Mapping[str, str] | None = None) -> Host:
    """A machine of these files, on which these commands say this: the first whose name begins like what is run."""
    write_tree(root, files)
    answers = commands or {}

    def run(command: Sequence[str]) -> str | None:
        line = " ".join(command)
        return next((answer for begin, answer in answers.items() if begin in line), None)

    return Host(root, run)


def orin_nano(root: Path) -> Machine:
    """The developer kit under JetPack 6.2, at 25 W and idle."""
    files = {
        "proc/device-tree/model": "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super\0",
        "proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005-super\0nvidia,p3767-0005\0nvidia,tegra234\0",
        "etc/nv_tegra_release": _release(36, "4.3"),
        "var/lib/dpkg/status": _packages(
            {
                "nvidia-jetpack": "6.2+b77",
                "nvidia-l4t-core": "36.4.3-20250107174145",
                "tensorrt": "10.3.0.30-1+cuda12.5",
                "libnvinfer10": "10.3.0.30-1+cuda12.5",
                "python3-libnvinfer": "10.3.0.30-1+cuda12.5",
            }
        ),
        "var/lib/nvpmodel/status": "pmode:0001",
        "etc/nvpmodel.conf": _modes({0: "15W", 1: "25W", 2: "MAXN_SUPER", 3: "7W"}),
        "dev/nvhost-gpu": "",
        "proc/meminfo": _memory(7_802_168, 5_242_880, 3_901_084),
        **_cpu("policy0", 729_600, 729_600, 1_344_000, 1_728_000),
        **_cpu("policy4", 1_190_400, 729_600, 1_344_000, 1_728_000),
        **_frequency("17000000.gpu", 306_000_000, 306_000_000, 918_000_000, "306000000 612000000 918000000 1020000000"),
        **_zone(0, "cpu-thermal", 49_250, 99_000),
        **_zone(1, "gpu-thermal", 50_125, 99_000),
        **_zone(2, "cv0-thermal", -256_000, 99_000),
        **_cooling(0, "gpu-throttle-alert", 0),
        **_cooling(1, "pwm-fan", 2),
        "sys/class/hwmon/hwmon1/oc1_event_cnt": "0\n",
    }
    return Machine(host_of(root, files), [CudaDevice("Orin", "sm87", 7_802_168 << 10)])


def agx_orin(root: Path) -> Machine:
    """The 64 GB developer kit under JetPack 7.2, at its highest power mode, its clocks held, and with jtop."""
    files = {
        "proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\0",
        "proc/device-tree/compatible": "nvidia,p3737-0000+p3701-0005\0nvidia,p3701-0005\0nvidia,tegra234\0",
        "etc/nv_tegra_release": _release(39, "2.0"),
        "var/lib/dpkg/status": _packages(
            {
                "nvidia-l4t-core": "39.2.0-20260601092848",
                "tensorrt": "10.16.2.10-1+cuda13.2",
                "python3-libnvinfer": "10.16.2.10-1+cuda13.2",
            }
        ),
        "var/lib/nvpmodel/status": "pmode:0000",
        "etc/nvpmodel.conf": _modes({0: "MAXN", 1: "MODE_15W", 2: "MODE_30W", 3: "MODE_50W"}),
        "dev/nvhost-gpu": "",
        "run/jtop.sock": "",
        "proc/meminfo": _memory(64_349_204, 58_000_000, 0),
        **_cpu("policy0", 2_201_600, 2_201_600, 2_201_600, 2_201_600),
        **_frequency("17000000.gpu", 1_300_500_000, 1_300_500_000, 1_300_500_000, "306000000 1300500000"),
        **_zone(0, "tj-thermal", 61_000, 99_000),
    }
    commands = {
        "starsd_edge.device.power": '{"mode_id":0,"mode_name":"MAXN","emc_hz":3199000000,"emc_most_hz":3199000000}'
    }
    return Machine(host_of(root, files, commands), [CudaDevice("Orin", "sm87", 64_349_204 << 10)])


def thor(root: Path) -> Machine:
    """The developer kit under JetPack 7.0, whose packages name no JetPack, and whose GPU answers `nvidia-smi`."""
    files = {
        "proc/device-tree/model": "NVIDIA Jetson AGX Thor Developer Kit\0",
        "proc/device-tree/compatible": "nvidia,p4071-0000+p3834-0008\0nvidia,p3834-0008\0nvidia,tegra264\0",
        "etc/nv_tegra_release": _release(38, "2.0"),
        "var/lib/dpkg/status": _packages({"libnvinfer10": "10.13.3.9-1+cuda13.0"}),
        "var/lib/nvpmodel/status": "pmode:0001",
        "etc/nvpmodel.conf": _modes({0: "MAXN", 1: "120W"}),
        "dev/nvidiactl": "",
        "proc/meminfo": _memory(128_878_112, 120_000_000, 0),
        **_cpu("policy0", 972_000, 972_000, 2_601_000, 2_601_000),
        **_frequency("gpu-gpc-0", 315_000_000, 315_000_000, 1_575_000_000, "315000000 1575000000"),
        **_frequency("gpu-nvd-0", 200_000_000, 200_000_000, 1_692_000_000, "200000000 1692000000"),
        **_zone(0, "soc012-thermal", 40_500, None),
    }
    smi = "NVIDIA Thor, 580.00, 11.0, [N/A], [N/A], 41, 315, 1575, [N/A], 0x0000000000000001\n"
    return Machine(host_of(root, files, {"nvidia-smi": smi}), [CudaDevice("NVIDIA Thor", "sm110", 128_878_112 << 10)])


def desktop(root: Path) -> Machine:
    """A PC with one GPU of its own, in the middle of work."""
    files = {
        "dev/nvidiactl": "",
        "proc/meminfo": _memory(65_780_000, 41_000_000, 8_388_604),
        **_cpu("policy0", 3_400_000, 400_000, 5_700_000, 5_700_000),
        **_zone(0, "x86_pkg_temp", 55_000, None),
        "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "3\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "intel_pstate\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    }
    smi = "NVIDIA GeForce RTX 4090, 580.95.05, 8.9, 24564, 20211, 71, 2520, 3105, 450.00, 0x0000000000000004\n"
    return Machine(host_of(root, files, {"nvidia-smi": smi}), [CudaDevice("NVIDIA GeForce RTX 4090", "sm89", 24 * GIB)])


def _release(major: int, revision: str) -> str:
    return f"# R{major} (release), REVISION: {revision}, GCID: 1, BOARD: generic, EABI: aarch64, DATE: today\n"


def _packages(installed: Mapping[str, str]) -> str:
    """dpkg's file: these, one that was removed, and one that does not count."""
    blocks = [("adduser", "install ok installed", "3.1"), ("libnvinfer8", "deinstall ok config-files", "8.5.2-1")]
    blocks += [(name, "install ok installed", version) for name, version in installed.items()]
    return "\n".join(
        f"Package: {name}\nStatus: {status}\nArchitecture: arm64\nVersion: {version}\n"
        "Description: a package\n of several: lines\n"
        for name, status, version in blocks
    )


def _modes(names: Mapping[int, str]) -> str:
    head = "< PM_CONFIG DEFAULT=1 >\n"
    return head + "".join(f"< POWER_MODEL ID={n} NAME={name} >\nCPU_ONLINE CORE_0 1\n" for n, name in names.items())


def _memory(total: int, available: int, swap: int) -> str:
    return f"MemTotal: {total:>12} kB\nMemFree:  {1024:>12} kB\nMemAvailable: {available} kB\nSwapTotal: {swap} kB\n"


def _cpu(policy: str, now: int, least: int, most: int, built: int) -> dict[str, str]:
    names = {"scaling_cur_freq": now, "scaling_min_freq": least, "scaling_max_freq": most, "cpuinfo_max_freq": built}
    return {f"sys/devices/system/cpu/cpufreq/{policy}/{name}": f"{value}\n" for name, value in names.items()}


def _frequency(device: str, now: int, least: int, most: int, table: str) -> dict[str, str]:
    names = {"cur_freq": now, "min_freq": least, "max_freq": most, "available_frequencies": table}
    return {f"sys/class/devfreq/{device}/{name}": f"{value}\n" for name, value in names.items()}


def _zone(number: int, name: str, now: int, passive: int | None) -> dict[str, str]:
    zone = f"sys/class/thermal/thermal_zone{number}"
    files = {f"{zone}/type": f"{name}\n", f"{zone}/temp": f"{now}\n"}
    trips = {0: ("critical", 104_500), 1: ("passive", passive)}
    for trip, (kind, at) in trips.items():
        if at is not None:
            files |= {f"{zone}/trip_point_{trip}_type": f"{kind}\n", f"{zone}/trip_point_{trip}_temp": f"{at}\n"}
    return files


def _cooling(number: int, name: str, state: int) -> dict[str, str]:
    device = f"sys/class/thermal/cooling_device{number}"
    return {f"{device}/type": f"{name}\n", f"{device}/cur_state": f"{state}\n"}
