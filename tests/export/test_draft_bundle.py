"""Draft bundles: a head, what it needs of its target, and nothing else; refused where they do not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from starsd_edge.bundles.bundle import load_bundle  # noqa: E402
from starsd_edge.bundles.fingerprints import feature_fingerprint  # noqa: E402
from starsd_edge.errors import BundleError, UsageError  # noqa: E402
from starsd_edge.heads.draft_bundle import DraftBundle, draft_ids, load_draft_bundle  # noqa: E402
from starsd_edge.heads.engine import HeadEngine, HeadStep  # noqa: E402
from starsd_edge.heads.loading import open_head  # noqa: E402
from starsd_edge.heads.torch_engine import (  # noqa: E402
    TorchHeadEngine,
    open_torch_head,
    read_tensors,
)
from starsd_edge.heads.torch_head import TorchHead  # noqa: E402
from starsd_export.checkpoint import open_checkpoint  # noqa: E402
from starsd_export.draft_heads import trained as shipped_heads  # noqa: E402
from starsd_export.draft_heads.bundle import export_draft_bundle, write_public  # noqa: E402
from starsd_export.draft_heads.trained import (  # noqa: E402  # noqa: E402
    HEAD_JSON,
    TrainedHead,
    read_trained,
    why_make_shipped,
    write_trained,
)
from tests.support.random_heads import line_of  # noqa: E402
from tests.support.small_head import DRAFT_VOCABULARY, write_small_head  # noqa: E402
from tests.support.tiny_llama import tiny_model, write_safetensors  # noqa: E402


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_safetensors(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def head(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_head(tmp_path_factory.mktemp("head"), target)


@pytest.fixture(scope="module")
def bundle(target: Path, head: Path, tmp_path_factory: pytest.TempPathFactory) -> DraftBundle:
    return export_draft_bundle(target, str(head), tmp_path_factory.mktemp("bundles") / "fp32", "fp32")


@pytest.fixture(scope="module")
def published(target: Path, head: Path, tmp_path_factory: pytest.TempPathFactory) -> DraftBundle:
    """Made of the head in the public layout."""
    place = tmp_path_factory.mktemp("published")
    write_public(open_checkpoint(target), read_trained(head), place / "public")
    return export_draft_bundle(target, str(place / "public"), place / "made", "fp32")


def step_of(engine: HeadEngine) -> HeadStep:
    """A pass over three rows."""
    features = np.random.default_rng(5).standard_normal((3, engine.spec.hidden_size)).astype(np.float32)
    return engine.forward(line_of(engine, [5, 9, 200], features))


def test_a_shipped_heads_bundle_is_made_again_when_another_head_comes(
    bundle: DraftBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped_heads, "SHIPPED_HEADS", tmp_path)
    (tmp_path / "letters").mkdir()
    record = tmp_path / "letters" / HEAD_JSON
    record.write_text(json.dumps({"trained": bundle.manifest.trained}))
    assert why_make_shipped(bundle.path, "letters") == ""
    assert why_make_shipped(bundle.path / "elsewhere", "letters") == "there is none yet"
    record.write_text(json.dumps({"trained": {"updates": 1}}))
    assert "an older head" in why_make_shipped(bundle.path, "letters")
    shutil.copytree(bundle.path, tmp_path / "copy")
    (tmp_path / "copy" / "manifest.json").write_text("{")
    assert "damaged" in why_make_shipped(tmp_path / "copy", "letters")


@pytest.mark.parametrize(("weights", "bound"), [("fp32", 2e-3), ("int8", 0.1)])
def test_the_bundles_head_is_the_trained_one_with_the_targets_rows(
    target: Path, head: Path, bundle: DraftBundle, tmp_path: Path, weights: str, bound: float
) -> None:
    made = bundle if weights == "fp32" else export_draft_bundle(target, str(head), tmp_path / "made", weights)
    trained, model = read_trained(head), tiny_model()
    rows = model.get_input_embeddings().weight.detach()
    tensors = {**trained.tensors, "embed.weight": rows, "lm_head.weight": rows[trained.draft_ids]}
    wanted = step_of(TorchHeadEngine(TorchHead(trained.record.spec, tensors)))
    given = step_of(open_head(made, threads=1))
    for name in ("predicted", "keys", "values", "scores"):
        one, other = np.asarray(getattr(given, name)), np.asarray(getattr(wanted, name))
        assert one.shape == other.shape
        assert np.abs(one - other).max() <= bound * np.abs(other).max()
    assert draft_ids(made).tolist() == list(range(0, 3 * DRAFT_VOCABULARY, 3))
    assert made.manifest.accepts == [trained.record.feature_fp]


def test_a_head_for_another_target_is_refused(head: Path, tmp_path: Path) -> None:
    other = write_safetensors(tmp_path / "other", seed=7)
    with pytest.raises(UsageError, match="trained for the features of another model"):
        export_draft_bundle(other, str(head), tmp_path / "made")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("name", "weights", "says"),
    [
        ("missing", "int8", "no head at missing"),
        ("shipped", "int8", r"no head for \S+ comes with this program"),
        ("shipped", "fp23", "--weights is fp32 or int8, not 'fp23'"),
    ],
)
def test_what_is_no_head_is_one_line(target: Path, tmp_path: Path, name: str, weights: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        export_draft_bundle(target, name, tmp_path / "made", weights)
    assert not (tmp_path / "made").exists()


def test_a_published_head_drafts_for_the_target_it_fits(published: DraftBundle) -> None:
    whole = published.manifest.spec.vocab_size
    assert draft_ids(published).tolist() == list(range(whole))  # the public layout knows no smaller vocabulary
    assert published.manifest.trained["published"] == "public"
    assert np.isfinite(step_of(open_head(published, threads=1)).scores).all()


def test_a_published_head_of_another_width_is_refused(target: Path, head: Path, tmp_path: Path) -> None:
    write_public(open_checkpoint(target), read_trained(head), tmp_path / "public")
    wide = write_safetensors(tmp_path / "wide", hidden_size=96)
    with pytest.raises(UsageError, match=r"model of width 64 .* this one has 96"):
        export_draft_bundle(wide, str(tmp_path / "public"), tmp_path / "made")


@pytest.mark.parametrize("name", ["head.onnx", "head.onnx.data", "head.safetensors", "embedding.npy", "draft_ids.npy"])
def test_a_missing_or_altered_file_is_named(bundle: DraftBundle, tmp_path: Path, name: str) -> None:
    path = Path(shutil.copytree(bundle.path, tmp_path / "made"))
    whole = (path / name).read_bytes()
    (path / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(BundleError, match=name):
        load_draft_bundle(path)
    (path / name).unlink()
    with pytest.raises(BundleError, match=name):
        load_draft_bundle(path)


def test_each_kind_of_bundle_says_what_the_other_command_is(bundle: DraftBundle, tiny_bundles: dict) -> None:
    with pytest.raises(BundleError, match="is a bundle for run-draft alone"):
        load_bundle(bundle.path)
    with pytest.raises(BundleError, match="is a bundle for run-target"):
        load_draft_bundle(tiny_bundles["fp32"].path)


def test_a_damaged_record_of_a_head_is_one_line(target: Path, head: Path, tmp_path: Path) -> None:
    record = json.loads((head / HEAD_JSON).read_text())
    record["spec"]["n_heads"] = "four"
    (tmp_path / HEAD_JSON).write_text(json.dumps(record))
    with pytest.raises(UsageError, match="holds no head that can be read"):
        export_draft_bundle(target, str(tmp_path), tmp_path / "made")


def test_a_bundle_of_an_older_version_says_how_to_make_it_again(bundle: DraftBundle, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(bundle.path, old)
    manifest = json.loads((old / "manifest.json").read_text())
    del manifest["graph_revision"]
    (old / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=r"graph revision 1 .* runs 2: make the bundle again"):
        load_draft_bundle(old)


@pytest.mark.parametrize("kind", ["bundle", "published"])
def test_torch_runs_the_same_head_from_the_bundle_and_weights_are_stored_once(
    request: pytest.FixtureRequest, kind: str
) -> None:
    bundle = request.getfixturevalue(kind)
    ours, theirs = step_of(open_head(bundle, 1)), step_of(open_torch_head(bundle, "cpu", "float32", None))
    # Both embed with float16 rows; head.onnx has the output matrix in float32, which torch takes from those rows.
    np.testing.assert_allclose(ours.predicted, theirs.predicted, atol=1e-4)
    np.testing.assert_allclose(ours.scores, theirs.scores, rtol=2e-3, atol=5e-3)
    assert not {"embed.weight", "lm_head.weight"} & set(load_file(bundle.path / "head.safetensors"))


def test_an_output_matrix_that_is_not_the_embedding_is_kept(head: Path, tmp_path: Path) -> None:
    model = tiny_model(tie_word_embeddings=False)
    target = write_safetensors(tmp_path / "untied", tie_word_embeddings=False)
    trained = read_trained(head)
    record = msgspec.structs.replace(
        trained.record, feature_fp=feature_fingerprint(open_checkpoint(target).source_fp, "last_hidden", 64)
    )
    (tmp_path / "head").mkdir()
    write_trained(tmp_path / "head", TrainedHead(record, trained.tensors, trained.draft_ids))
    made = export_draft_bundle(target, str(tmp_path / "head"), tmp_path / "made", "fp32")
    output = read_tensors(made)["lm_head.weight"].float()
    wanted = model.get_output_embeddings().weight.detach()[trained.draft_ids]
    assert not torch.equal(wanted, model.get_input_embeddings().weight.detach()[trained.draft_ids])
    torch.testing.assert_close(output, wanted, rtol=0, atol=0)


def test_a_tensor_that_does_not_fit_is_named(bundle: DraftBundle, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(bundle.path, damaged)
    tensors = load_file(damaged / "head.safetensors")
    tensors["q.weight"] = tensors["q.weight"][:-1].contiguous()
    save_file(tensors, damaged / "head.safetensors")
    with pytest.raises(BundleError, match=r"does not fit the manifest: see q\.weight; make the bundle again"):
        read_tensors(DraftBundle(damaged, bundle.manifest))
