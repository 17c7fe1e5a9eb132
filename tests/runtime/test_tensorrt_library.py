"""What is asked of TensorRT's Python module before anything relies on it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from starsd_edge.device.tensorrt_library import import_library
from starsd_edge.errors import UsageError
from tests.support.boards import host_of, orin_nano


def module(version: str) -> SimpleNamespace:
    return SimpleNamespace(Runtime=object, __version__=version)


def test_the_module_of_jetpack_6_tells_three_parts_of_its_version_and_the_package_the_fourth(tmp_path: Path) -> None:
    board = orin_nano(tmp_path).host
    _, version = import_library("tensorrt", "this engine", "Runtime", lambda name: module("10.3.0"), board)
    assert version == "10.3.0.30"


def test_a_version_that_nobody_completes_is_refused(tmp_path: Path) -> None:
    for name, host in (("tensorrt", host_of(tmp_path / "none", {})), ("tensorrt_rtx", orin_nano(tmp_path).host)):
        with pytest.raises(UsageError, match="bound to all four parts"):
            import_library(name, "this engine", "Runtime", lambda name: module("10.3.0"), host)
