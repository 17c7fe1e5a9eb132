"""The driver is asked before anything else, and its absence is a line and no crash."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from starsd_edge.device.gpus import CudaDevice, cuda_devices
from starsd_edge.errors import EngineError

NO_DEVICE = 100


class Driver:
    """Two GPUs behind the driver's C functions, which fill in what they are handed."""

    def __init__(self, failing: str = "", count: int = 2) -> None:
        self.failing, self.count, self.calls = failing, count, []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == self.failing:
                return NO_DEVICE
            self._fill(name, arguments)
            return 0

        return call

    def _fill(self, name: str, arguments: tuple[Any, ...]) -> None:
        first = arguments[0]
        if name == "cuDeviceGetCount":
            first._obj.value = self.count
        elif name == "cuDeviceGet":
            first._obj.value = arguments[1]
        elif name == "cuDeviceGetName":
            first.value = b"Orin" if arguments[2].value == 0 else b"Thor"
        elif name == "cuDeviceGetAttribute":
            major, minor = ((8, 7), (11, 0))[arguments[2].value]
            first._obj.value = {75: major, 76: minor}[arguments[1]]
        elif name == "cuDeviceTotalMem_v2":
            first._obj.value = 8 << 30


def test_every_gpu_is_described() -> None:
    driver = Driver()
    assert cuda_devices(lambda name: driver) == [
        CudaDevice("Orin", "sm87", 8 << 30),
        CudaDevice("Thor", "sm110", 8 << 30),
    ]
    assert driver.calls[0] == "cuInit"


def test_no_driver_is_one_line() -> None:
    def missing(name: str) -> Any:
        return ctypes.CDLL(f"{name}.is-not-there")

    with pytest.raises(EngineError, match=r"no NVIDIA driver on this machine \(libcuda\.so\.1 cannot be opened\)"):
        cuda_devices(missing)


def test_a_driver_that_does_not_start_is_asked_nothing_more() -> None:
    driver = Driver(failing="cuInit")
    with pytest.raises(EngineError, match=r"cannot start \(CUDA error 100\)"):
        cuda_devices(lambda name: driver)
    assert driver.calls == ["cuInit"]


def test_no_gpu_and_one_that_does_not_answer_are_said() -> None:
    with pytest.raises(EngineError, match="finds no GPU"):
        cuda_devices(lambda name: Driver(count=0))
    with pytest.raises(EngineError, match="cannot describe GPU 0"):
        cuda_devices(lambda name: Driver(failing="cuDeviceTotalMem_v2"))
