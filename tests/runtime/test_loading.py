"""Which engine is opened, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.errors import EngineError, UsageError
from starsd_edge.runtime.loading import open_engine


@pytest.mark.parametrize("device", ["cuda", "jetson"])
def test_devices_of_a_later_version_say_so(tiny_bundles: dict[str, Bundle], device: str) -> None:
    with pytest.raises(UsageError, match=f"--device {device} comes with a later version"):
        open_engine(tiny_bundles["fp32"], device)


def test_an_unknown_device_is_refused(tiny_bundles: dict[str, Bundle]) -> None:
    with pytest.raises(UsageError, match="no device 'abacus'"):
        open_engine(tiny_bundles["fp32"], "abacus")


def test_a_damaged_graph_is_one_line(tiny_bundles: dict[str, Bundle], empty_directory: Path) -> None:
    copy = empty_directory / "bundle"
    shutil.copytree(tiny_bundles["fp32"].path, copy)
    (copy / "model.onnx").write_bytes(b"nonsense")
    with pytest.raises(EngineError, match="export the bundle again") as caught:
        open_engine(Bundle(copy, tiny_bundles["fp32"].manifest))
    assert "\n" not in str(caught.value)


def test_coarse_weights_ask_for_chains_unless_told_otherwise(tiny_bundles: dict[str, Bundle]) -> None:
    assert open_engine(tiny_bundles["fp32"]).spec.exact_trees
    assert not open_engine(tiny_bundles["int8"]).spec.exact_trees
    assert open_engine(tiny_bundles["int8"], allow_inexact=True).spec.exact_trees
