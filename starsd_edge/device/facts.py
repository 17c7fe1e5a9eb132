"""All facts about a device at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starsd_edge.device.gpus import CudaDevice, Gpus, cuda_devices, read_gpus
from starsd_edge.device.host import Host, HostMemory, read_memory
from starsd_edge.device.jetson import Board, JetsonSystem, read_board, read_jetson_system
from starsd_edge.device.power import (
    Clock,
    PowerMode,
    Throttling,
    Zone,
    read_clocks,
    read_governor,
    read_jtop,
    read_power_mode,
    read_throttling,
    read_zones,
)


@dataclass(frozen=True)
class DeviceFacts:
    """A device and how it is set. None for what is not there or cannot be read.

    Attributes:
        board, system: of a Jetson.
        power_mode: of it.
        governor, driver: of the first core's frequency.
        clocks: that can be read.
        memory: of the machine; on a Jetson the GPU's, too.
        zones: the hottest first.
        throttling: what slowed it down.
        gpus: of NVIDIA.
    """

    board: Board | None = None
    system: JetsonSystem | None = None
    power_mode: PowerMode | None = None
    governor: str | None = None
    driver: str | None = None
    clocks: Sequence[Clock] = ()
    memory: HostMemory | None = None
    zones: Sequence[Zone] = ()
    throttling: Throttling = field(default_factory=Throttling)
    gpus: Gpus = field(default_factory=Gpus)

    @property
    def compute_capability(self) -> str:
        """Of the GPU that would run an engine, like "sm87"; "" where none is known."""
        told = next((gpu.compute_capability for gpu in self.gpus.found), "")
        return told or ("" if self.board is None else self.board.compute_capability)


def read_device(host: Host, devices: Callable[[], list[CudaDevice]] = cuda_devices) -> DeviceFacts:
    """Look at a machine.

    Args:
        devices: asks the NVIDIA driver.
    """
    board = read_board(host)
    jtop = None if board is None else read_jtop(host)
    governor, driver = read_governor(host)
    return DeviceFacts(
        board=board,
        system=None if board is None else read_jetson_system(host),
        power_mode=None if board is None else read_power_mode(host, jtop),
        governor=governor,
        driver=driver,
        clocks=read_clocks(host, jtop),
        memory=read_memory(host),
        zones=read_zones(host),
        throttling=read_throttling(host),
        gpus=read_gpus(host, devices),
    )


def power_mode_name(host: Host) -> str:
    """Of a board; "" elsewhere and where it is not told. What was measured under one says nothing of another."""
    mode = None if read_board(host) is None else read_power_mode(host, read_jtop(host))
    return "" if mode is None else str(mode)
