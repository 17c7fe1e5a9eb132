"""Which engine a hub runs its head with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from starsd_edge.errors import UsageError
from starsd_edge.heads import loading
from starsd_edge.heads.loading import choose, cuda_is_likely, open_head

torch = pytest.importorskip("torch")

from starsd_edge.heads.draft_bundle import DraftBundle  # noqa: E402
from starsd_edge.speculation.tree import DraftShape  # noqa: E402
from starsd_server.drafters.eagle import EagleDrafter  # noqa: E402
from tests.support.random_heads import draft_ids, feed, require_all_on_meta, tree_of  # noqa: E402
from tests.support.small_head import small_draft_bundle  # noqa: E402

pytestmark = pytest.mark.export

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> DraftBundle:
    return small_draft_bundle(tmp_path_factory.mktemp("small"), "int8")


@pytest.mark.parametrize(
    ("weights", "device", "precision", "gpu", "chosen"),
    [
        ("int8", "auto", "auto", False, ("cpu", None)),
        ("int8", "auto", "auto", True, ("cuda", "float16")),
        ("int8", "cpu", "auto", True, ("cpu", None)),
        ("int8", "cpu", "float32", False, ("cpu", "float32")),
        ("fp32", "cpu", "float32", False, ("cpu", None)),
        ("fp32", "cpu", "bfloat16", False, ("cpu", "bfloat16")),
        ("int8", "cuda", "bfloat16", False, ("cuda", "bfloat16")),
    ],
)
def test_the_cpu_runs_the_bundles_weights_and_torch_what_is_asked_for(
    weights: str, device: str, precision: str, gpu: bool, chosen: tuple[str, str | None]
) -> None:
    assert choose(weights, device, precision, lambda: gpu) == chosen


def one_line(error: pytest.ExceptionInfo[UsageError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="not run: there is a GPU")
def test_a_gpu_that_is_not_there_is_one_line_and_auto_does_without(bundle: DraftBundle) -> None:
    with pytest.raises(UsageError, match="--device cuda finds no GPU") as error:
        open_head(bundle, device="cuda")
    assert "--device cpu" in one_line(error)
    assert open_head(bundle, 1, "auto").kv_bytes == 4
    assert not cuda_is_likely()


def test_all_of_a_head_moves_to_its_device(bundle: DraftBundle) -> None:
    require_all_on_meta(bundle)


def test_torch_that_is_not_there_is_one_line(bundle: DraftBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="--device cuda needs torch and safetensors: pip install") as error:
        open_head(bundle, device="cuda")
    one_line(error)
    with pytest.raises(UsageError, match="--draft-precision bfloat16 on a CPU needs torch"):
        open_head(bundle, device="cpu", precision="bfloat16")
    assert not cuda_is_likely()


def test_auto_takes_the_cpu_where_nothing_reads_weights_for_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    is_here = {"torch": True, "safetensors": None}
    monkeypatch.setattr(loading.importlib.util, "find_spec", is_here.__getitem__)
    monkeypatch.setattr(loading.ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not cuda_is_likely()


def test_torch_runs_a_head_without_transformers(bundle: DraftBundle) -> None:
    """Which a hub does not install: it is for exporting."""
    program = (
        "import sys; sys.modules['transformers'] = None\n"
        "from pathlib import Path; from starsd_edge.heads.draft_bundle import load_draft_bundle\n"
        "from starsd_edge.heads.loading import open_head\n"
        "print(open_head(load_draft_bundle(Path(sys.argv[1])), 1, 'cpu', 'bfloat16').kv_bytes)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(bundle.path)], capture_output=True, text=True, cwd=REPO)
    assert (done.stdout, done.stderr) == ("2\n", "")


@pytest.mark.parametrize(("precision", "width"), [("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_every_precision_drafts(bundle: DraftBundle, precision: str, width: int) -> None:
    engine = open_head(bundle, 1, "cpu", precision)
    assert engine.kv_bytes == width
    assert len(draft_of(engine)) == 8


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["auto", "float32", "float16", "bfloat16"])
def test_a_gpu_drafts_and_in_float32_the_trees_of_the_cpu(bundle: DraftBundle, precision: str) -> None:
    tree = draft_of(open_head(bundle, device="cuda", precision=precision))
    assert len(tree) == 8
    if precision == "float32":
        assert tree == draft_of(open_head(bundle, 1, "cpu", "float32"))


def draft_of(engine: loading.HeadEngine):
    drafter = EagleDrafter(engine, draft_ids(engine), "head", [], 1)
    drafter.open(1, 0, 0)
    width, ids = engine.spec.hidden_size, list(range(9))
    features = np.random.default_rng(2).standard_normal((9, width)).astype(np.float16)
    feed(drafter, 1, 0, ids, features)
    return tree_of(drafter, 1, DraftShape(8, 5, 3))
