"""What several parts' tests share: the default model, its bundles, and how tests for absent hardware are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

_GPU_DEVICES = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvgpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """List tests that need a GPU as not run where there is none, and run those with a real model last."""
    if not any(Path(device).exists() for device in _GPU_DEVICES):
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="not run: no GPU on this machine"))
    items.sort(key=lambda item: item.get_closest_marker("model") is not None)


@pytest.fixture(scope="session")
def model_file() -> Path:
    """The default model's GGUF, fetched once into the cache."""
    from starsd_edge.bundles.catalogue import resolve_model

    return resolve_model("smollm2-135m")
