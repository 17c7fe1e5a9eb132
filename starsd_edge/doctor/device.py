"""Checks of the board and its system, of power, clocks, heat and GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starsd_edge.device.facts import DeviceFacts
from starsd_edge.device.gpus import POWER_LIMIT, Gpu, Gpus
from starsd_edge.device.host import HostMemory
from starsd_edge.device.jetson import Board, JetsonSystem
from starsd_edge.device.power import Clock, PowerMode, Throttling, Zone
from starsd_edge.doctor.findings import Finding, note, ok, warning
from starsd_edge.doctor.machine import gigabytes
from starsd_edge.doctor.software import check_jetson_tensorrt

HOT_C = 85.0
"""Degrees Celsius not far above which most machines slow down; used where the kernel does not say from when on."""
WARM_K = 5.0
"""Degrees below the temperature at which the kernel slows a machine down that are too few for measuring."""
_DYNAMIC_DRIVERS = ("intel_pstate", "amd-pstate-epp", "amd-pstate")
"""Under these drivers the governor "powersave" also rises to full speed."""
_MHZ = 1_000_000


def check_device(facts: DeviceFacts) -> Iterator[Finding]:
    """All of them that can be run."""
    if facts.board is not None:
        yield from _board(facts.board, facts.memory)
        yield from _jetpack(facts.system)
        if facts.power_mode is not None:
            yield _power(facts.power_mode)
    if facts.governor is not None:
        yield _governor(facts.governor, facts.driver)
    if facts.clocks:
        yield _clocks(facts.clocks, is_board=facts.board is not None)
    if facts.throttling.events is not None or facts.throttling.now:
        yield _throttling(facts.throttling)
    if facts.zones:
        yield _heat(facts.zones)
    yield from _gpus(facts.gpus, is_board=facts.board is not None)


def _board(board: Board, memory: HostMemory | None) -> Iterator[Finding]:
    shared = "" if memory is None else f", {gigabytes(memory.total)} for CPU and GPU together"
    if board.soc and not board.family:
        yield warning("board", f"{board}: a board that this version does not know{shared}", "update starsd-edge")
    elif board.family == "Xavier":
        yield warning(
            "board",
            f"{board}{shared}: no JetPack for it brings the TensorRT 10.3 that engines need",
            "run the bundle with --device cpu, or use an Orin or a Thor",
        )
    else:
        yield ok("board", f"{board}{shared}")


def _jetpack(system: JetsonSystem | None) -> Iterator[Finding]:
    if system is None or not system.l4t:
        yield note(
            "jetpack",
            "its release cannot be read, as in a container that was given none of the board's files",
            "docker run --runtime nvidia, with -v /etc/nv_tegra_release:/etc/nv_tegra_release:ro",
        )
        return
    yield ok("jetpack", str(system))
    yield check_jetson_tensorrt(system)


def _power(mode: PowerMode) -> Finding:
    text = f"{mode.number}{f' ({mode.name})' if mode.name else ''}"
    if mode.highest is None or mode.number == mode.highest:
        return ok("power mode", text)
    return note("power mode", f"{text}, not the fastest", f"sudo nvpmodel -m {mode.highest}")


def _governor(governor: str, driver: str | None) -> Finding:
    if governor == "powersave" and driver not in _DYNAMIC_DRIVERS:
        remedy = "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
        return warning("governor", "powersave keeps the cores at their lowest frequency", remedy)
    return ok("governor", governor)


def _clocks(clocks: Sequence[Clock], *, is_board: bool) -> Finding:
    text = ", ".join(map(_clock, clocks))
    if is_board and any(clock.follows_load for clock in clocks):
        remedy = "for measuring, `sudo jetson_clocks` holds them at their highest until the next start"
        return note("clocks", f"{text}; they follow the load", remedy)
    return ok("clocks", text)


def _clock(clock: Clock) -> str:
    text = f"{clock.name} {clock.hz // _MHZ}"
    if clock.most_hz:
        text += f" of {clock.most_hz // _MHZ}"
    text += " MHz"
    if clock.built_hz > clock.most_hz:
        text += f" (built for {clock.built_hz // _MHZ})"
    return text


def _throttling(throttling: Throttling) -> Finding:
    remedy = "look after cooling and power supply"
    if throttling.now:
        return warning("throttling", f"held back now: {', '.join(throttling.now)}", remedy)
    if throttling.events:
        text = f"slowed down by heat or current {throttling.events} times since it started"
        return note("throttling", text, f"{remedy} if it grows while you measure")
    return ok("throttling", "none since the machine started")


def _heat(zones: Sequence[Zone]) -> Finding:
    """Of the hottest zone, or of one that is nearer to where the kernel slows the machine down."""
    zone = min(zones, key=lambda each: (each.slows_at or HOT_C) - each.celsius)
    text = f"{zone.celsius:.0f} °C at {zone.name}"
    if zone.slows_at is not None:
        text += f", which slows down from {zone.slows_at:.0f} °C on"
    left = (zone.slows_at or HOT_C) - zone.celsius
    if left <= 0:
        return warning("temperature", text, "let it cool down, or look after its cooling")
    if zone.slows_at is not None and left < WARM_K:
        return note("temperature", text, "let it cool down before you measure")
    return ok("temperature", text)


def _gpus(gpus: Gpus, *, is_board: bool) -> Iterator[Finding]:
    for gpu in gpus.found:
        yield _held_back(gpu) if gpu.held_back else ok("gpu", _gpu(gpu))
    if gpus.problem:
        remedy = "sudo apt-get install nvidia-jetpack" if is_board else "install NVIDIA's driver, and start anew"
        yield warning("gpu", f"one shows itself ({gpus.device}), but {gpus.problem}", remedy)


def _held_back(gpu: Gpu) -> Finding:
    """At its power limit a GPU is whenever it has much to do."""
    text = f"{_gpu(gpu)}; held back by {', '.join(gpu.held_back)}"
    if gpu.held_back == (POWER_LIMIT,):
        return note("gpu", text, "let no other work run on it while you measure")
    return warning("gpu", text, "look after its cooling and its power supply")


def _gpu(gpu: Gpu) -> str:
    parts = [gpu.name, gpu.compute_capability, f"driver {gpu.driver}" if gpu.driver else ""]
    if gpu.memory_bytes:
        free = f"{gigabytes(gpu.free_bytes)} of " if gpu.free_bytes else ""
        parts.append(f"{free}{gigabytes(gpu.memory_bytes)}{' free' if free else ''}")
    parts.append(f"{gpu.celsius:.0f} °C" if gpu.celsius is not None else "")
    if gpu.hz:
        parts.append(_clock(Clock("at", gpu.hz, most_hz=gpu.most_hz)))
    parts.append(f"limit {gpu.watts:.0f} W" if gpu.watts is not None else "")
    return ", ".join(part for part in parts if part)
