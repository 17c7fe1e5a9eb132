"""The default model's graphs for TensorRT, as `starsd-edge export --engine` builds them: every kind of graph, for three
kinds of GPU at once, with both generations of TensorRT-RTX.

What builds on a small model may not on a larger one: which kernels a compiler chooses depends on widths and lengths. It
does not depend on the number of layers, so one build has all of them and the others have a few.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx_ir
import pytest

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.engine_manifest import (
    EngineHost,
    graph_digest,
    platform_name,
    read_engine_manifest,
    require_fit,
    require_plan,
)
from starsd_edge.children import end_with_parent
from starsd_edge.errors import BundleError
from starsd_export.engines.profiles import PROFILES
from starsd_export.tensorrt_graph import PARITY_BOUND, require_operators
from tests.support.bundle_store import ROOT, digest_of, imported_by, key_of, made_once, used_now
from tests.support.default_graphs import KINDS, LAYERS, WHOLE, Kind, default_graphs, graph_options
from tests.support.rtx_generations import GENERATIONS, Generation

pytestmark = [
    pytest.mark.model,
    pytest.mark.export,
    pytest.mark.slow,
    pytest.mark.timeout(1800),  # a build takes half a minute of a core, and there may be little of one
]
GPUS = ("sm86", "sm89", "sm120")
OPSETS = {"append-fp16": 18, "append-fp16-whole": 18, "append-int8": 21, "append-int4": 21}


BUILDERS = imported_by("starsd_export.engines.engine_export") | set((ROOT / "starsd_edge/cli/export").glob("*.py"))
TOLD = "told"


def built(bundle: Bundle, generation: Generation) -> Path:
    """The directory of an engine without its plan, and with what the command told.

    A build takes most of a minute of a core. It is made once for each graph, library and state of what builds, this
    file among it. The plan is checked when it was built; half a gigabyte each, none is kept.
    """
    state = digest_of((*BUILDERS, Path(__file__), ROOT / "tests/support/rtx_generations.py"))
    store = used_now(ROOT / ".cache" / "test-engines" / state)
    place = store / key_of(graph_digest(bundle.manifest), generation.version)

    def load(place: Path) -> Path:
        if not (place / TOLD).is_file():
            raise BundleError("not built yet")
        return place

    return made_once(place, load, lambda: _build(bundle, generation, place))


def _build(bundle: Bundle, generation: Generation, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    wanted = [part for gpu in GPUS for part in ("--compute-capability", gpu)]
    command = [sys.executable, "-m", "starsd_edge.cli", "export", bundle.path, "--engine", "tensorrt-rtx", *wanted]
    result = subprocess.run(
        [*command, "--output", place],
        env=generation.environment(),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=end_with_parent,
    )
    assert result.returncode == 0, result.stderr
    require_plan(place, read_engine_manifest(place)).unlink()
    (place / TOLD).write_text(result.stdout)
    return place


def _builds() -> Iterator[object]:
    newer, older = GENERATIONS
    for kind in (WHOLE, *KINDS):
        yield pytest.param(kind, newer, id=f"{kind}-{newer.version}")
    for kind in KINDS:
        # 1.4 asks for a GPU to build weights in blocks (see test_engine_builds.py).
        marks = () if kind.weights == "fp16" else (pytest.mark.gpu,)
        yield pytest.param(kind, older, id=f"{kind}-{older.version}", marks=marks)


@pytest.fixture(scope="module")
def bundles(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Bundle]:
    return default_graphs(model_file, tmp_path_factory.mktemp("first-layers"))


@pytest.mark.parametrize("kind", [WHOLE, *KINDS], ids=str)
def test_a_graph_keeps_to_its_operators_and_passed_its_parity_gate(bundles: dict[Kind, Bundle], kind: Kind) -> None:
    bundle = bundles[kind]
    graph = onnx_ir.load(bundle.path / bundle.manifest.graph.file)
    require_operators(graph, graph_options(kind).operators(kind.weights))
    assert graph.opset_imports == {"": OPSETS.get(str(kind), 24)}
    assert bundle.manifest.model.n_layers == (30 if kind.whole else LAYERS)
    assert set(bundle.manifest.parity) >= {"prefill", "chunked prefill", "one token", "one token on nothing", "tree"}
    parity = dict(bundle.manifest.parity)
    assert 0 < parity.pop("far positions") < 4 * PARITY_BOUND, "see Observation.leeway"
    assert 0 < max(parity.values()) < PARITY_BOUND


@pytest.mark.parametrize(("kind", "generation"), list(_builds()))
def test_one_engine_is_built_for_three_kinds_of_gpu(
    bundles: dict[Kind, Bundle], kind: Kind, generation: Generation
) -> None:
    generation.require()
    bundle = bundles[kind]
    place = built(bundle, generation)
    told = (place / TOLD).read_text()
    assert f"for sm86, sm89, sm120, tensorrt_rtx {generation.version}, built in" in told
    engine = read_engine_manifest(place)
    for gpu in GPUS:
        require_fit(
            place, engine, EngineHost("tensorrt_rtx", generation.version, gpu, platform_name()), bundle.manifest
        )
    assert engine.profiles == list(PROFILES)
    assert (engine.kv_strategy, engine.weights) == (kind.strategy, kind.weights)
    assert len(engine.aliases) == (2 * bundle.manifest.model.n_layers if engine.kv_strategy == "inplace" else 0)
    weights = bundle.path / bundle.manifest.graph.weights_file
    assert engine.plan_bytes > weights.stat().st_size / 2
