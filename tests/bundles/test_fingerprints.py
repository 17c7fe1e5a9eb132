"""Fingerprints change with what changes ids or features, and with nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from starsd_edge.bundles.fingerprints import feature_fingerprint, source_fingerprint, tokenizer_fingerprint
from tests.support.small_tokenizers import byte_fallback, byte_level

TOKENIZER = json.loads(byte_level().to_str())


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    contents = copy.deepcopy(TOKENIZER)
    change(contents)
    return tokenizer_fingerprint(contents)


def old_merges(contents: dict[str, Any]) -> None:
    contents["model"]["merges"] = [" ".join(merge) for merge in contents["model"]["merges"]]


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.update(padding={"strategy": "BatchLongest"}),
        lambda t: t.update(truncation={"max_length": 9}),
        lambda t: t.update(decoder=None),
        lambda t: t.update(post_processor=None),
        lambda t: t["pre_tokenizer"].update(trim_offsets=False),
        old_merges,
    ],
)
def test_what_changes_no_id_changes_no_fingerprint(change: Callable[[dict[str, Any]], object]) -> None:
    assert changed(change) == tokenizer_fingerprint(TOKENIZER)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t["model"]["merges"].pop(),
        lambda t: t["model"]["vocab"].update(extra=9999),
        lambda t: t["pre_tokenizer"].update(add_prefix_space=True),
        lambda t: t["pre_tokenizer"].update(use_regex=False),
        lambda t: t.update(normalizer={"type": "NFC"}),
        lambda t: t["added_tokens"][0].update(special=False),
        lambda t: t["added_tokens"][0].update(content="<other>"),
        lambda t: t["model"].update(byte_fallback=True),
    ],
)
def test_what_changes_ids_changes_the_fingerprint(change: Callable[[dict[str, Any]], object]) -> None:
    assert changed(change) != tokenizer_fingerprint(TOKENIZER)


def test_two_tokenizers_differ() -> None:
    assert tokenizer_fingerprint(json.loads(byte_fallback().to_str())) != tokenizer_fingerprint(TOKENIZER)


def test_a_source_is_its_numbers_and_its_tensors_in_any_order() -> None:
    prints = source_fingerprint({"layers": 2, "width": 8}, {"a": "1", "b": "2"})
    assert prints == source_fingerprint({"width": 8, "layers": 2}, {"b": "2", "a": "1"})
    assert prints != source_fingerprint({"layers": 3, "width": 8}, {"a": "1", "b": "2"})
    assert prints != source_fingerprint({"layers": 2, "width": 8}, {"a": "1", "b": "3"})


def test_features_differ_by_source_kind_taps_and_width() -> None:
    variants = [
        ("s", "last_hidden", 8, ()),
        ("t", "last_hidden", 8, ()),
        ("s", "fused", 8, ()),
        ("s", "fused", 8, (2,)),
    ]
    variants.append(("s", "last_hidden", 16, ()))
    assert len({feature_fingerprint(*variant) for variant in variants}) == len(variants)
