"""What a bundle keeps of its graph: small, read back as it was, and refused where it is not sound."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from starsd_edge.errors import BundleError
from starsd_edge.parity import golden as golden_module
from starsd_edge.parity.compare import differences, largest
from starsd_edge.parity.golden import GOLDEN_NAME, GreedyText, read_golden, sampled, write_golden
from starsd_edge.parity.passes import Observation, Values, random_ids

VOCAB = 3000
LAYERS = 4
IDS = random_ids(VOCAB)
TEXT = GreedyText([1, 2, 3], [4, 5], [0.5, 0.25], 2.0)


def observation(case: str = "prefill", rows: int = 24, seed: int = 0) -> Observation:
    draw = np.random.default_rng(seed)
    keys, values = (
        [draw.standard_normal((rows, 8, 128)).astype(np.float16) for _ in range(LAYERS)] for _ in ("k", "v")
    )
    logits = draw.standard_normal((rows, VOCAB)).astype(np.float32)
    features = draw.standard_normal((rows, 1024)).astype(np.float16)
    paths = tuple(tuple(range(row + 1)) for row in range(rows))
    return Observation(case, paths, tuple(range(rows)), Values(logits, features, keys, values))


def written(directory: Path, *passes: Observation) -> Path:
    write_golden(directory, IDS, [(each, 0.125) for each in passes], {"a text": [7, 8]}, TEXT)
    return directory / GOLDEN_NAME


def test_what_is_kept_is_found_by_kind_and_length_and_is_little(tmp_path: Path) -> None:
    first, second = observation(), observation("chunked prefill", 7, seed=1)
    file = written(tmp_path, first, second)
    assert file.stat().st_size < 16_000
    found = read_golden(tmp_path, VOCAB)
    assert (found.facts.prompts, found.facts.prompt_ids, found.facts.text) == (["a text"], [[7, 8]], TEXT)
    for each in (first, second):
        known = found.find(each)
        assert known is not None
        kept, from_checkpoint = known
        assert largest(differences(sampled(each.values), kept, 0.1)) == 0
        assert from_checkpoint == 0.125
    assert found.find(observation("prefill", 23)) is None


def test_a_change_anywhere_in_a_layer_is_seen_in_what_is_kept(tmp_path: Path) -> None:
    written(tmp_path, observation())
    changed = observation()
    changed.values.keys[2][5:, :, :] *= 1.2  # type: ignore[index]
    known = read_golden(tmp_path, VOCAB).find(changed)
    assert known is not None
    expected = known[0]
    seen = {each.name: each.relative for each in differences(sampled(changed.values), expected, 0.01)}
    assert seen.pop("layer 2 keys") == pytest.approx(0.2, rel=0.3)
    assert set(seen.values()) == {0.0}


def test_an_engine_without_kv_or_features_is_kept_without(tmp_path: Path) -> None:
    whole = observation()
    bare = Observation(whole.case, whole.paths, whole.rows, Values(whole.values.logits, None, None, None))
    written(tmp_path, bare)
    assert read_golden(tmp_path, VOCAB).values[0].keys is None


def test_what_is_damaged_is_refused_by_name(tmp_path: Path) -> None:
    file = written(tmp_path, observation())
    whole = file.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"{}"):
        file.write_bytes(content)
        with pytest.raises(BundleError, match=r"golden\.npz cannot be read \(.*export the bundle again"):
            read_golden(tmp_path, VOCAB)
    file.unlink()
    with pytest.raises(BundleError, match="cannot be read"):
        read_golden(tmp_path, VOCAB)


def test_no_object_is_ever_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / GOLDEN_NAME, facts=np.array([{"revision": 1}], dtype=object))
    with pytest.raises(BundleError, match="cannot be read"):
        read_golden(tmp_path, VOCAB)


def test_nothing_far_too_large_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / GOLDEN_NAME, facts=np.zeros(100_000, np.uint8))
    assert (tmp_path / GOLDEN_NAME).stat().st_size < 10_000
    monkeypatch.setattr(golden_module, "_MOST_BYTES", 50_000)
    with pytest.raises(BundleError, match="larger than 50000 bytes when it is unpacked"):
        read_golden(tmp_path, VOCAB)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"revision": 99}, r"recorded in another way \(99; this version reads 1\)"),
        ({"ids": [1, 2]}, "does not fit the manifest"),
        ({"ids": [*IDS[:-1], VOCAB]}, "does not fit the manifest"),
        ({"text": {"prompt": [1], "ids": [1, 2], "gaps": [0.5], "spread": 1.0}}, "does not fit the manifest"),
        ({"text": {"prompt": [1], "ids": [-1], "gaps": [0.5], "spread": 1.0}}, "does not fit the manifest"),
        ({"prompt_ids": []}, "does not fit the manifest"),
        ({"more": 1}, "cannot be read"),
    ],
)
def test_facts_that_cannot_be_are_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    file = written(tmp_path, observation())
    with np.load(file) as arrays:
        content = {name: arrays[name] for name in arrays.files}
    facts = json.loads(content["facts"].tobytes()) | change
    content["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    np.savez(file, **content)
    with pytest.raises(BundleError, match=said):
        read_golden(tmp_path, VOCAB)
