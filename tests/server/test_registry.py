"""Which drafter a target is offered."""

from __future__ import annotations

import msgspec
import pytest

from starsd_edge.protocol.codes import FINGERPRINT
from starsd_edge.protocol.hub_side import Offer, Refusal
from starsd_edge.protocol.messages import Hello
from starsd_server.drafters.causal_lm import CausalLmDrafter
from starsd_server.drafters.contract import DrafterRegistry
from starsd_server.drafters.ngram import NgramDrafter
from tests.support.hub_client import TOKENIZER_FP, hello
from tests.support.prefix_engine import PrefixEngine

OTHER_FP = "0" * 64


def registry(*tokenizer_fps: str, required: bool = False) -> DrafterRegistry:
    models = [CausalLmDrafter(PrefixEngine(seed), fp, 24, 8) for seed, fp in enumerate(tokenizer_fps)]
    return DrafterRegistry(models, NgramDrafter(8), required)


def test_the_first_drafter_that_fits_is_offered() -> None:
    offer = registry(OTHER_FP, TOKENIZER_FP, TOKENIZER_FP).offer(hello())
    assert offer == Offer("causal-lm", PrefixEngine(1).spec.source_fp, "none", "")


def eagle(*, required: bool = False) -> DrafterRegistry:
    heads = pytest.importorskip("tests.support.random_heads", reason="needs torch")
    return DrafterRegistry([heads.drafter_on(heads.random_engine())], NgramDrafter(8), required)


def featured(codecs: list[str]) -> Hello:
    return hello(feature_fp="f" * 64, feature_kind="last_hidden", feature_width=32, codecs=codecs)


@pytest.mark.parametrize(
    ("codecs", "codec"), [(["f2", "i1"], "f2"), (["i1", "f2"], "i1"), (["i1"], "i1"), (["later", "f2"], "f2")]
)
def test_a_head_takes_features_as_the_target_likes_best(codecs: list[str], codec: str) -> None:
    assert eagle().offer(featured(codecs)) == Offer("eagle", "head", codec)


@pytest.mark.parametrize("codecs", [[], ["later"]])
def test_a_target_that_cannot_send_what_the_head_reads_is_offered_ngram_and_told_why(codecs: list[str]) -> None:
    offer = eagle().offer(featured(codecs))
    assert isinstance(offer, Offer)
    assert (offer.drafter, offer.feature_codec) == ("ngram", "none")
    for part in ("eagle", "f2 or i1", ", ".join(codecs) or "none"):
        assert part in offer.notice
    refusal = eagle(required=True).offer(featured(codecs))
    assert isinstance(refusal, Refusal)
    assert "f2 or i1" in refusal.message


def test_a_target_with_other_features_is_told_both_and_the_command_that_makes_a_bundle_with_them() -> None:
    offer = eagle().offer(hello(feature_fp="e" * 64, feature_width=32, codecs=["f2"]))
    assert isinstance(offer, Offer)
    assert offer.drafter == "ngram"
    for part in ("e" * 64, "f" * 64, "`starsd-edge export MODEL --features-for HEAD`"):
        assert part in offer.notice


@pytest.mark.parametrize("named", ["tokenizer", "features"])
def test_a_refusal_shows_what_differs_however_late_it_does(named: str) -> None:
    """Two that begin alike must not be printed alike."""
    if named == "tokenizer":
        ours, theirs, drafters = TOKENIZER_FP, TOKENIZER_FP[:-1] + "b", registry(TOKENIZER_FP, required=True)
    else:
        ours, theirs, drafters = "f" * 64, "f" * 63 + "e", eagle(required=True)
    field = {"tokenizer": "tokenizer_fp", "features": "feature_fp"}[named]
    refusal = drafters.offer(hello(**{field: theirs}))
    assert isinstance(refusal, Refusal)
    assert f" {ours}" in refusal.message or f"({ours}" in refusal.message
    assert f" {theirs} " in refusal.message


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"feature_width": 31}, ("31", "32")),
        ({"feature_width": 0}, ("0 values", "32")),
        ({"feature_kind": "fused_states"}, ("'fused_states'", "'last_hidden'")),
        ({"feature_kind": "none"}, ("'none'", "'last_hidden'")),
        ({"feature_kind": "Last_Hidden"}, ("'Last_Hidden'", "'last_hidden'")),
        ({"vocab_size": 51}, ("51", "50")),
    ],
)
def test_what_a_head_could_not_go_on_from_is_refused_in_the_handshake(
    changed: dict[str, object], named: tuple[str, str]
) -> None:
    said = msgspec.structs.replace(featured(["f2"]), **changed)
    refusal = eagle(required=True).offer(said)
    assert isinstance(refusal, Refusal)
    assert refusal.code == FINGERPRINT
    for part in named:
        assert part in refusal.message
    offer = eagle().offer(said)
    assert isinstance(offer, Offer)
    assert (offer.drafter, offer.feature_codec) == ("ngram", "none")
    assert named[0] in offer.notice


def test_another_padding_of_the_same_vocabulary_fits() -> None:
    offer = registry(TOKENIZER_FP).offer(hello(vocab_size=64, feature_fp="other", source_fp="other"))
    assert isinstance(offer, Offer)
    assert (offer.drafter, offer.notice) == ("causal-lm", "")


def test_nothing_fits_means_ngram_and_a_line_that_names_both_fingerprints_and_the_remedy() -> None:
    offer = registry(OTHER_FP).offer(hello())
    assert isinstance(offer, Offer)
    assert offer.drafter == "ngram"
    for part in (OTHER_FP, TOKENIZER_FP, "starsd-edge run-draft"):
        assert part in offer.notice


def test_a_required_drafter_that_does_not_fit_is_a_refusal_that_names_both_fingerprints() -> None:
    refusal = registry(OTHER_FP, required=True).offer(hello())
    assert isinstance(refusal, Refusal)
    assert refusal.code == FINGERPRINT
    for part in (OTHER_FP, TOKENIZER_FP, "starsd-edge run-draft"):
        assert part in refusal.message


def test_a_hub_of_ngrams_fits_everybody_without_a_notice() -> None:
    ngram = NgramDrafter(8)
    drafters = DrafterRegistry([ngram], ngram, required=True)
    assert drafters.offer(hello()) == Offer("ngram", "ngram", "none", "")
    assert drafters.drafters == [ngram]


def test_the_notice_fits_the_wire_whatever_the_target_calls_its_tokenizer() -> None:
    offer = registry(OTHER_FP, OTHER_FP).offer(hello(tokenizer_fp="x" * 256))
    assert isinstance(offer, Offer)
    assert len(offer.notice) <= 1024


@pytest.mark.parametrize("second", [False, True])
def test_a_drafter_that_works_for_nobody_is_not_offered(second: bool) -> None:
    """The next that fits is; else n-grams with a line that says why, or a refusal with the same reason."""
    why = "it could not be warmed up (OSError)"
    first = CausalLmDrafter(PrefixEngine(1), TOKENIZER_FP, 24, 8, name="first")
    models = registry(TOKENIZER_FP).drafters[:1] if second else []
    offer = DrafterRegistry([first, *models], NgramDrafter(8), False).offer(hello(), {"first": why}.get)
    assert isinstance(offer, Offer)
    if second:
        assert (offer.drafter, offer.notice) == ("causal-lm", "")
        return
    assert offer.drafter == "ngram"
    assert f"first: {why}. Drafting by n-gram instead" in offer.notice
    assert "own bundle" not in offer.notice
    refusal = DrafterRegistry([first], NgramDrafter(8), True).offer(hello(), {"first": why}.get)
    assert isinstance(refusal, Refusal)
    assert f"first: {why}" in refusal.message
    assert "see the hub's log" in refusal.message
