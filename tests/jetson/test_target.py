"""What a target tells the hub of itself."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from starsd_edge.bundles.bundle import load_bundle
from starsd_edge.protocol.target_side import TargetProtocol
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.target import CODECS_OF, FeatureForm, Target
from tests.support.letter_bundle import write_bundle
from tests.support.prefix_engine import PrefixEngine

SHAPE = DraftShape(8, 4, 2)


def target_of(directory: Path, feature_width: int) -> Target:
    bundle = load_bundle(write_bundle(directory / "bundle"))
    return Target(bundle, PrefixEngine(feature_width=feature_width), Tokenizer.load(bundle.path, bundle.manifest.text))


@pytest.mark.parametrize(("features", "codecs"), [("auto", ["f2", "i1"]), ("fp16", ["f2"]), ("int8", ["i1"])])
def test_features_are_offered_as_they_are_wanted(tmp_path: Path, features: FeatureForm, codecs: list[str]) -> None:
    hello = target_of(tmp_path, 8).hello("orin", SHAPE, 64, features)
    assert (hello.codecs, hello.feature_width) == (codecs, 8)
    TargetProtocol(hello, lambda: 0.0)
    assert set(CODECS_OF) == set(get_args(FeatureForm))


def test_an_engine_without_features_offers_none(tmp_path: Path) -> None:
    hello = target_of(tmp_path, 0).hello("orin", SHAPE, 64)
    assert (hello.codecs, hello.feature_width) == ([], 0)
