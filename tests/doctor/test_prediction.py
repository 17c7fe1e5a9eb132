"""From a short decode, a curve and a link to what a hub is worth, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from starsd_edge.bench.runs import Run
from starsd_edge.doctor.curve_store import StoredCurves, stored_passes
from starsd_edge.doctor.findings import Finding, Level
from starsd_edge.doctor.link import LinkFacts
from starsd_edge.doctor.prediction import (
    Prediction,
    Trial,
    check_curve,
    check_prediction,
    check_trial,
    predict,
    prediction_figures,
    summarise,
)
from starsd_edge.planning.pass_times import VerifyCurve
from starsd_edge.telemetry.rounds import HUB, NONE, Round
from starsd_edge.telemetry.rtt import TcpRtt

PLAIN = Round(NONE, emitted=1, round_s=0.026, verify_s=0.025)
DRAFTED = Round(HUB, drafted=4, accepted=3, levels_offered=4, emitted=4, bytes_up=30, bytes_down=50, round_s=0.05, verify_s=0.03, draft_s=0.012)  # fmt: skip  # noqa: E501
MISSED = Round(NONE, emitted=1, bytes_up=30, round_s=0.03, verify_s=0.025)
FIRST = replace(DRAFTED, round_s=9.0)
CURVE = VerifyCurve({1: 1.0, 5: 1.4})
LINK = LinkFacts(TcpRtt(0.002, 0.001, 10, 0), [0.0045], of_drafts=False, up_bytes_per_s=3e4, down_bytes_per_s=5e4)


def a_run(*rounds: Round, ids: tuple[int, ...] = (1, 2, 3)) -> Run:
    return Run(ids, 0.1, 1.0, rounds)


def a_trial(**changes: object) -> Trial:
    hub = a_run(FIRST, DRAFTED, DRAFTED, DRAFTED, MISSED, FIRST)
    trial = summarise([a_run(*[PLAIN] * 9)], [hub])
    assert trial is not None
    return replace(trial, **changes)  # type: ignore[arg-type]


def test_first_and_last_rounds_do_not_count() -> None:
    trial = a_trial()
    assert (trial.rounds, trial.depth) == (4, 3.0)
    assert trial.tokens_per_round == pytest.approx(13 / 4)
    assert (trial.draft_s, trial.plain_verify_s) == (0.012, 0.025)
    assert trial.own_s == pytest.approx(0.001)
    assert trial.plain_per_s == pytest.approx(1 / 0.026)
    assert trial.hub_per_s == pytest.approx(13 / 0.18)
    assert trial.gain == pytest.approx(13 / 0.18 * 0.026)


def test_rounds_before_the_hub_has_the_session_do_not_count() -> None:
    alone = replace(MISSED, bytes_up=0)
    late = summarise([a_run(*[PLAIN] * 9)], [a_run(*[alone] * 7, FIRST, DRAFTED, DRAFTED, DRAFTED, MISSED, FIRST)])
    assert late == a_trial()
    assert summarise([a_run(*[PLAIN] * 9)], [a_run(*[alone] * 7)]) is None


def test_a_hub_that_drafted_nothing_gives_nothing_to_predict_from() -> None:
    assert summarise([a_run(*[PLAIN] * 5)], [a_run(*[MISSED] * 5)]) is None
    assert summarise([a_run(PLAIN)], [a_run(DRAFTED, DRAFTED)]) is None


def test_the_parts_of_a_round() -> None:
    prediction = predict(a_trial(), CURVE, LINK)
    cost = prediction.cost
    assert cost.draft_s == 0.012
    assert cost.rtt_s == 0.002
    stats = a_trial()
    assert cost.transfer_s == pytest.approx(stats.bytes_up / 3e4 + stats.bytes_down / 5e4)
    assert cost.overhead_s == pytest.approx(0.0045 - 0.002 - cost.transfer_s)
    assert cost.verify_s == pytest.approx(0.025 * (3 * 1.4 + 1.0) / 4), "three drafts of 4 nodes, one of none"
    assert cost.own_s == pytest.approx(0.001)
    total = 0.012 + 0.0045 + 0.0325 + 0.001
    assert cost.total_s == pytest.approx(total)
    assert prediction.gain == pytest.approx(3.25 * 0.026 / total)
    assert prediction.break_even_rtt_s == pytest.approx(3.25 * 0.026 - (total - 0.002))
    assert prediction.limit[0] == "drafter"


def test_an_assumed_acceptance_takes_the_place_of_the_measured_tokens() -> None:
    prediction = predict(a_trial(), CURVE, LINK, acceptance=0.5)
    assert prediction.tokens == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert prediction.is_assumed
    assert "assumed 1.88 tokens in a round" in findings(prediction, a_trial())["gain"].finding


def test_a_kernel_that_smooths_slowly_does_not_make_the_link_longer_than_it_is() -> None:
    slow = replace(LINK, tcp=TcpRtt(0.5, 0.001))
    cost = predict(a_trial(), CURVE, slow).cost
    assert cost.rtt_s == 0.0045
    assert cost.overhead_s == 0


def findings(prediction: Prediction, trial: Trial) -> dict[str, Finding]:
    return {each.name: each for each in check_prediction(prediction, trial)}


def test_a_hub_that_is_worth_it() -> None:
    trial = a_trial()
    found = findings(predict(trial, CURVE, LINK), trial)
    assert found["gain"].level is Level.OK
    assert found["gain"].finding.startswith("predicted: 1.69 times plain decoding at this RTT, 65.0 tokens/s")
    assert "1.88 times plain: 72.2 tokens/s with the hub, 38.5 without" in found["measured"].finding
    assert found["break-even"].finding == "up to an RTT of 37 ms the hub is a gain; now it is 2.00 ms"
    assert found["limit"].finding.startswith("the drafter: 12 ms of a round, 24% of it")
    assert "5 like this one keep the hub always busy" in found["targets"].finding
    assert "up to 7 are no slower" in found["targets"].finding


@pytest.mark.parametrize(
    ("link", "level", "words"),
    [
        (replace(LINK, tcp=TcpRtt(0.2, 0.2), small_s=[0.2]), Level.WARNING, "not worth it"),
        (replace(LINK, tcp=TcpRtt(0.035, 0.035), small_s=[0.037]), Level.NOTE, "hardly worth it"),
    ],
)
def test_a_hub_too_far_away(link: LinkFacts, level: Level, words: str) -> None:
    gain = findings(predict(a_trial(), CURVE, link), a_trial())["gain"]
    assert gain.level is level
    assert words in gain.finding
    assert "nearer" in gain.remedy


def test_a_drafter_too_slow_for_any_link() -> None:
    trial = a_trial(draft_s=0.4)
    found = findings(predict(trial, CURVE, LINK), trial)
    assert found["gain"].level is Level.WARNING
    assert found["break-even"].finding.startswith("at no RTT")
    assert "draft model" in found["gain"].remedy


def test_where_all_else_is_small_the_guesses_limit() -> None:
    flat = VerifyCurve({1: 1.0, 5: 1.01})
    near = LinkFacts(TcpRtt(0.0001, 0.0001), [0.0002], of_drafts=False)
    trial = a_trial(draft_s=0.0001, tokens_per_round=1.02)
    found = findings(predict(trial, flat, near), trial)
    assert found["limit"].finding.startswith("the acceptance: 1.02 tokens in a round")
    assert "run-draft with a bundle" in found["gain"].remedy
    assert "more than 256 like this one" in found["targets"].finding


def test_a_measured_gain_far_from_the_predicted_one_is_told() -> None:
    trial = a_trial(hub_per_s=20.0)
    assert findings(predict(trial, CURVE, LINK), trial)["measured"].level is Level.WARNING
    assumed = predict(trial, CURVE, LINK, acceptance=0.9)
    assert findings(assumed, trial)["measured"].level is Level.OK, "an assumption is not borne out by anything"


def test_a_draft_too_short_to_be_timed_is_no_division_by_nothing() -> None:
    at_once = replace(DRAFTED, draft_s=0.0)
    trial = summarise([a_run(*[PLAIN] * 5)], [a_run(FIRST, *[at_once] * 4)])
    assert trial is not None
    assert findings(predict(trial, CURVE, LINK), trial)["gain"].level is Level.OK


def test_another_text_is_a_failure() -> None:
    other = summarise([a_run(*[PLAIN] * 5)], [a_run(*[DRAFTED] * 5, ids=(1, 2, 4))])
    assert other is not None
    found = {each.name: each for each in check_trial(other)}
    assert found["text"].level is Level.FAILURE
    assert "text" not in {each.name for each in check_trial(a_trial())}


def test_a_curve_says_from_when_it_is() -> None:
    curve = VerifyCurve({1: 0.02, 5: 0.024})
    stored = StoredCurves("b" * 64, "2026-11-29 20:11", "a board", "", 1, [stored_passes(128, {1: [0.02], 5: [0.024]})])
    new = check_curve(curve, stored, is_new=True)
    assert new.finding == "20 ms for one token, times 1.20 at 5 tokens; measured now"
    old = check_curve(curve, stored, is_new=False)
    assert old.finding.endswith("measured at 2026-11-29 20:11 UTC")
    assert "--remeasure" in old.remedy


def test_figures_hold_every_part() -> None:
    trial = a_trial()
    prediction = predict(trial, CURVE, LINK)
    figures = {each.name: each.value for each in prediction_figures(prediction, trial, CURVE, "CPU")}
    parts = sum(figures[f"round_{name}_ms"] for name in ("draft", "rtt", "transfer", "overhead", "verify", "own"))
    assert parts == pytest.approx(figures["round_ms"])
    assert figures["predicted_gain"] == pytest.approx(prediction.gain)
    assert figures["break_even_rtt_ms"] == pytest.approx(1e3 * prediction.break_even_rtt_s)
