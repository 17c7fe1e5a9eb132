"""What a target tells the hub of itself."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from starsd_edge.bundles.bundle import load_bundle
from starsd_edge.protocol.features import FLOAT16, INT8, choose_codec
from starsd_edge.protocol.hub_handshake import HubLimits, Offer, shake_hands
from starsd_edge.protocol.messages import DraftRequest, Hello, Open, Opened, Welcome
from starsd_edge.protocol.target_side import TargetProtocol
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.target import CODECS_OF, FeatureForm, Target
from tests.support.letter_bundle import write_bundle
from tests.support.prefix_engine import PrefixEngine
from tests.support.wire import TargetUnderTest, only, some_features

SHAPE = DraftShape(8, 4, 2)


def target_of(directory: Path, feature_width: int) -> Target:
    bundle = load_bundle(write_bundle(directory / "bundle"))
    return Target(bundle, PrefixEngine(feature_width=feature_width), Tokenizer.load(bundle.path, bundle.manifest.text))


@pytest.mark.parametrize(("features", "codecs"), [("auto", ["i1", "f2"]), ("fp16", ["f2"]), ("int8", ["i1"])])
def test_features_are_offered_as_they_are_wanted(tmp_path: Path, features: FeatureForm, codecs: list[str]) -> None:
    hello = target_of(tmp_path, 8).hello("orin", SHAPE, 64, features)
    assert (hello.codecs, hello.feature_width) == (codecs, 8)
    TargetProtocol(hello, lambda: 0.0)
    assert set(CODECS_OF) == set(get_args(FeatureForm))


def test_an_engine_without_features_offers_none(tmp_path: Path) -> None:
    hello = target_of(tmp_path, 0).hello("orin", SHAPE, 64)
    assert (hello.codecs, hello.feature_width) == ([], 0)


def welcome_of(hello: Hello) -> Welcome:
    """What a hub answers whose head takes either codec."""

    def choose(asked: Hello) -> Offer:
        codec = choose_codec(asked.codecs, {FLOAT16, INT8})
        assert codec is not None
        return Offer("eagle", "fp", codec)

    met = shake_hands(hello, "hub", choose, HubLimits())
    assert isinstance(met, tuple)
    return met[1]


def bytes_of_a_round(hello: Hello, accepted: int) -> int:
    """What goes up when so many guesses were accepted."""
    side = TargetUnderTest(feature_width=hello.feature_width, codecs=hello.codecs)
    side.connect(welcome_of(hello))
    session = side.protocol.open_session([7], "greedy")
    side.hear(Opened(only(Open, side.sent()).ref, b"t" * 16, 0))
    rows = accepted + 1
    session.append(range(rows), some_features(rows, width=hello.feature_width))
    session.request(SHAPE)
    only(DraftRequest, side.sent())
    return side.protocol.counters.bytes_up["DraftRequest"]


def test_left_to_us_features_take_half_the_bytes_of_a_round(tmp_path: Path) -> None:
    target = target_of(tmp_path, 576)
    auto, fp16 = (target.hello("orin", SHAPE, 64, features) for features in ("auto", "fp16"))
    for accepted in range(5):
        assert bytes_of_a_round(auto, accepted) <= 0.54 * bytes_of_a_round(fp16, accepted)
