"""What several parts' tests share: the default model, its bundles, and how tests for absent hardware are reported."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from starsd_edge import CONFIG_VARIABLE, VARIABLE_PREFIX
from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.cache import CACHE_VARIABLE
from starsd_edge.bundles.catalogue import resolve_model
from starsd_edge.runtime.engine import Engine
from starsd_edge.runtime.loading import open_engine
from starsd_edge.text.tokenizer import Tokenizer
from tests.support.bundle_store import exported
from tests.support.gpus import is_gpu_here
from tests.support.tiny_bundles import tiny_bundles_at

if TYPE_CHECKING:
    from tests.support.tiny_eagle3 import TinyEagle3

_ENGINE_THREADS = 2
_MODEL_TIMEOUT_S = 600
# By these, rich and typer choose widths and colours, and colours even where there is no terminal.
_OF_TERMINALS = (
    *("COLUMNS", "LINES", "TERMINAL_WIDTH", "NO_COLOR", "FORCE_COLOR", "PY_COLORS"),
    *("TTY_COMPATIBLE", "TTY_INTERACTIVE", "GITHUB_ACTIONS"),
)
# Their files take seconds. Workers side by side do them last, so that all end at about the same time.
_SHORT = ("protocol", "text", "planning", "monitor", "telemetry", "device", "doctor", "parity")
# One worker does these: they share a real model's engines and what it says in plain steps.
_TOGETHER = {f"tests/exactness/test_{name}.py" for name in ("trees", "chains", "kept_kv", "transformers")}


@pytest.fixture(scope="session", autouse=True)
def no_configuration() -> Iterator[None]:
    """What tests see does not depend on the options that whoever runs them has set."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(VARIABLE_PREFIX) and name != CACHE_VARIABLE:
                patch.delenv(name)
        patch.setenv(CONFIG_VARIABLE, os.devnull)
        yield


def pytest_configure() -> None:
    """What whoever runs the tests has around them is not what they see.

    A shell lets what it runs in the background ignore Ctrl-C, and so would every process that a test starts. Variables
    of the terminal go before any test is imported: typer reads some of them once.
    """
    for name in _OF_TERMINALS:
        os.environ.pop(name, None)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker whole files, as `--dist loadfile` does, but those of `_TOGETHER` at once."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "together" if file in _TOGETHER else file

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """List tests that need a GPU as not run where there is none, and run those with a real model last.

    Where workers share the files, what takes long comes first and what is short comes last.
    """
    if not is_gpu_here():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="not run: no GPU on this machine"))
    for item in items:
        # Who comes second waits until the first has exported the model, and no test hangs because of that.
        if _has_model(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_MODEL_TIMEOUT_S, func_only=True))
    items.sort(key=_has_model)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: (_part(item) in _SHORT, not _has_model(item)))


def _has_model(item: pytest.Item) -> bool:
    return item.get_closest_marker("model") is not None


def _part(item: pytest.Item) -> str:
    """The directory of tests."""
    return item.path.relative_to(Path(__file__).parent).parts[0]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own, not made yet."""
    directory = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(directory))
    return directory


@pytest.fixture(scope="session")
def tiny_bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """Bundles of a tiny model by kind; see `tests.support.tiny_bundles`."""
    return tiny_bundles_at(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_tensorrt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """Bundles of a tiny model for TensorRT by KV strategy; needs torch."""
    support = pytest.importorskip("tests.support.tiny_tensorrt", reason="needs torch")
    return support.export_tiny_tensorrt(tmp_path_factory.mktemp("tensorrt"))  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def tiny_eagle3(tmp_path_factory: pytest.TempPathFactory) -> TinyEagle3:
    """A tiny target and an EAGLE-3 head for it; needs torch."""
    tiny = pytest.importorskip("tests.support.tiny_eagle3", reason="needs torch")
    return tiny.TinyEagle3(tmp_path_factory.mktemp("eagle3"))  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def model_file() -> Path:
    """The default model's GGUF, fetched once into the cache."""
    return resolve_model("smollm2-135m")


@pytest.fixture(scope="session")
def bundle_fp32(model_file: Path) -> Bundle:
    """The default model with fp32 weights and fp16 KV."""
    return exported(model_file, "fp32")


@pytest.fixture(scope="session")
def bundle_fp32_kv32(bundle_fp32: Bundle) -> Bundle:
    """The default model with fp32 weights and fp32 KV."""
    from tests.support.wide_kv import with_float32_kv

    # One for each worker: it is made anew each time, and another worker may be reading its own.
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    return with_float32_kv(bundle_fp32, bundle_fp32.path.with_name(f"{bundle_fp32.path.name}-kv32{worker}"))


@pytest.fixture(scope="session")
def bundle_int8(model_file: Path) -> Bundle:
    """The default model with int8 weights and fp16 KV."""
    return exported(model_file, "int8")


@pytest.fixture(scope="session")
def engine_fp32(bundle_fp32: Bundle) -> Engine:
    """An engine of `bundle_fp32`; sequences are what a test opens on it."""
    return open_engine(bundle_fp32, threads=_ENGINE_THREADS)


@pytest.fixture(scope="session")
def engine_fp32_kv32(bundle_fp32_kv32: Bundle) -> Engine:
    """An engine of `bundle_fp32_kv32`."""
    return open_engine(bundle_fp32_kv32, threads=_ENGINE_THREADS)


@pytest.fixture(scope="session")
def engine_int8(bundle_int8: Bundle) -> Engine:
    """An engine of `bundle_int8`."""
    return open_engine(bundle_int8, threads=_ENGINE_THREADS)


@pytest.fixture(scope="session")
def tokenizer(bundle_fp32: Bundle) -> Tokenizer:
    """The default model's tokenizer, which every one of its bundles holds."""
    return Tokenizer.load(bundle_fp32.path, bundle_fp32.manifest.text)
