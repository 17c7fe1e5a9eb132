"""Every engine that the contract suite is run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from starsd_edge.bench.replay_engine import ReplayEngine
from starsd_edge.runtime.engine import Engine
from starsd_edge.runtime.loading import open_engine
from tests.support.prefix_engine import PrefixEngine
from tests.support.tiny_bundles import KINDS
from tests.support.traces import letter_source, letter_trace

CONTEXT = 512
ENGINES = [*KINDS, pytest.param("torch", marks=pytest.mark.export), "prefix", "replay"]


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn."""
    name = request.param
    if name == "prefix":
        return PrefixEngine(max_context=CONTEXT, feature_width=4)
    if name == "replay":
        return ReplayEngine(letter_trace(), letter_source(CONTEXT))
    bundles = request.getfixturevalue("tiny_bundles")
    if name == "torch":
        return _torch_engine(open_engine(bundles["fp32"]))
    return open_engine(bundles[name], threads=1)


def _torch_engine(like: Engine) -> Engine:
    """The tiny model under torch."""
    from starsd_edge.runtime.torch_engine import TorchEngine
    from starsd_edge.runtime.torch_model import TargetGraph
    from tests.support.tiny_llama import tiny_model

    return TorchEngine(TargetGraph(tiny_model()), like.spec)


@pytest.fixture
def is_exact(request: pytest.FixtureRequest, engine: Engine) -> bool:
    """torch is the yardstick of values, not of bits: its kernels depend on the number of rows."""
    return bool(request.node.callspec.params["engine"] != "torch")


@pytest.fixture
def empty_directory(tmp_path: Path) -> Path:
    """A place for what a test writes."""
    return tmp_path
