"""The Hub of the tests, in the place of the real one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub.constants
import pytest

from tests.support.fake_hub import FakeHub, directory_files, serving

REPOSITORY = "someone/tiny-qwen"
_OTHERS = ("pytorch_model.bin", "README.md", "model.gguf", "run.py", "consolidated.safetensors")


@contextmanager
def published(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A tiny Qwen2 with the files that publishers put beside one, for huggingface_hub in this process."""
    from tests.support.tiny_families import write_family

    files = directory_files(write_family(directory, model_type="qwen2"))
    with serving(FakeHub(REPOSITORY, files | dict.fromkeys(_OTHERS, b"x"))) as hub:
        use_endpoint(monkeypatch, hub.url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        # The suite runs with HF_HUB_OFFLINE, which this Hub on loopback need not heed.
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield hub


def use_endpoint(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """What HF_ENDPOINT does for a process that begins with it."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
    template = "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + template)
