"""Which drafter a target is offered."""

from __future__ import annotations

from starsd_edge.protocol.codes import FINGERPRINT
from starsd_edge.protocol.hub_side import Offer, Refusal
from starsd_server.drafters.causal_lm import CausalLmDrafter
from starsd_server.drafters.ngram import NgramDrafter
from starsd_server.drafters.registry import DrafterRegistry
from tests.support.hub_client import TOKENIZER_FP, hello
from tests.support.prefix_engine import PrefixEngine

OTHER_FP = "0" * 64


def registry(*tokenizer_fps: str, required: bool = False) -> DrafterRegistry:
    models = [CausalLmDrafter(PrefixEngine(seed), fp, 24, 8) for seed, fp in enumerate(tokenizer_fps)]
    return DrafterRegistry(models, NgramDrafter(8), required)


def test_the_first_drafter_that_fits_is_offered() -> None:
    offer = registry(OTHER_FP, TOKENIZER_FP, TOKENIZER_FP).offer(hello())
    assert offer == Offer("causal-lm", PrefixEngine(1).spec.source_fp, "none", "")


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
