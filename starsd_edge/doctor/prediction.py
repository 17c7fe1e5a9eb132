"""What a hub is worth to a target: predicted from the parts of a round, beside what a short decode measured.

The parts are measured apart from each other: the draft by the hub, the link by probes, a plain step and the target's
own work by plain decoding, the verify pass from that by the curve of verify(T) / verify(1). So a prediction that the
decode with the hub bears out is no tautology; only the tokens of a round and its bytes come from there.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from starsd_edge.bench.figures import Figure
from starsd_edge.bench.runs import Run
from starsd_edge.doctor.curve_store import StoredCurves
from starsd_edge.doctor.findings import Finding, failure, note, ok, warning
from starsd_edge.doctor.link import LinkFacts, milliseconds
from starsd_edge.planning import law
from starsd_edge.planning.pass_times import VerifyCurve
from starsd_edge.telemetry.rounds import HUB, Round, RoundStats

WORTH_IT = 1.05
"""Least gain that is worth it: gains and losses nearer to 1 are no more than the noise of such a short decode."""
FAR_OFF = 0.25
"""Difference of the measured gain from the predicted one, as a share, above which something else is at work."""
LEAST_DRAFT_S = 1e-6
"""Least seconds of a draft that a hub can tell: it counts microseconds."""
SMALL_SHARE = 0.1
"""Share of a round: where no part that drafting adds takes more, only a higher acceptance rate helps."""
ACCEPTANCE = "acceptance"
MANY_TARGETS = 256
"""Most targets that a hub takes."""
_REMEDIES = {
    ACCEPTANCE: "a draft model with a higher acceptance rate: run-draft with a bundle of the same tokenizer",
    law.DRAFTER: "a smaller draft model, or a faster machine for the hub",
    law.RTT: "a hub nearer by: a cable instead of a radio link, the same network instead of a distant one",
    law.BANDWIDTH: "a faster link",
    law.VERIFY: "shorter drafts: --draft-depth",
    law.OVERHEAD: "fewer other programs on the machines of target and hub",
}


@dataclass(frozen=True)
class Trial:
    """What a short decode in both ways measured. Of each answer the rounds up to the first that asked the hub are left
    out (they wait for its session and its prefill), and the last, which has room for few draft tokens.

    Attributes:
        answers: how many in each way.
        tokens: of each answer.
        rounds: through the hub.
        drafted: nodes in each of them; 0 where the hub drafted nothing.
        tokens_per_round: with the bonus token.
        draft_s: in the hub's drafter, the median.
        plain_verify_s, own_s: of a plain round, the model's pass and the rest, medians.
        bytes_up, bytes_down: of a round.
        plain_per_s, hub_per_s: tokens per second in each way.
        same_text: both ways gave the same tokens.
    """

    answers: int
    tokens: int
    rounds: int
    drafted: Sequence[int]
    tokens_per_round: float
    draft_s: float
    plain_verify_s: float
    own_s: float
    bytes_up: float
    bytes_down: float
    plain_per_s: float
    hub_per_s: float
    same_text: bool

    @property
    def depth(self) -> float:
        """Nodes of a round, on average."""
        return statistics.mean(self.drafted)

    @property
    def gain(self) -> float:
        """Measured: with the hub over plain."""
        return self.hub_per_s / self.plain_per_s


def summarise(plain: Sequence[Run], hub: Sequence[Run]) -> Trial | None:
    """The figures of both ways' answers to the same prompts; None where the hub drafted for none of the rounds."""
    plain_rounds = [done for run in plain for done in run.rounds[1:-1]]
    hub_rounds = [done for run in hub for done in _after_first_asked(run.rounds)[:-1]]
    drafts = [done.draft_s for done in hub_rounds if done.origin == HUB]
    if not drafts or not plain_rounds:
        return None
    stats = RoundStats()
    for done in hub_rounds:
        stats.add(done)
    return Trial(
        answers=len(hub),
        tokens=len(hub[0].token_ids),
        rounds=len(hub_rounds),
        drafted=[done.drafted for done in hub_rounds],
        tokens_per_round=stats.tokens_per_round,
        draft_s=max(statistics.median(drafts), LEAST_DRAFT_S),
        plain_verify_s=statistics.median(done.verify_s for done in plain_rounds),
        own_s=statistics.median(done.round_s - done.verify_s for done in plain_rounds),
        bytes_up=stats.bytes_up_per_round,
        bytes_down=stats.bytes_down_per_round,
        plain_per_s=_tokens_per_s(plain_rounds),
        hub_per_s=_tokens_per_s(hub_rounds),
        same_text=all(one.token_ids == other.token_ids for one, other in zip(plain, hub, strict=True)),
    )


def _after_first_asked(rounds: Sequence[Round]) -> Sequence[Round]:
    asked = (index for index, done in enumerate(rounds) if done.bytes_up)
    return rounds[next(asked, len(rounds)) + 1 :]


def _tokens_per_s(rounds: Sequence[Round]) -> float:
    return sum(done.emitted for done in rounds) / sum(done.round_s for done in rounds)


@dataclass(frozen=True)
class Prediction:
    """What the law gives.

    Attributes:
        tokens: E.
        is_assumed: E follows from a probability that the user gave.
        plain_s: of a token by plain decoding.
        plain_verify_s: of it, the model's pass.
        cost: of a round.
    """

    tokens: float
    is_assumed: bool
    plain_s: float
    plain_verify_s: float
    cost: law.RoundCost

    @property
    def gain(self) -> float:
        """Over plain decoding, at this RTT."""
        return law.gain(self.tokens, self.plain_s, self.cost.total_s)

    @property
    def tokens_per_s(self) -> float:
        """Of one target."""
        return law.tokens_per_s(self.tokens, self.cost.draft_s, self.cost.return_s)

    @property
    def break_even_rtt_s(self) -> float:
        """Where the gain is 1."""
        return law.break_even_rtt_s(self.tokens, self.plain_s, self.cost)

    @property
    def limit(self) -> tuple[str, float]:
        """What holds the gain back most, and its seconds in each round; `ACCEPTANCE` where all that is small."""
        name, seconds = law.limit(self.cost, self.plain_verify_s)
        return (ACCEPTANCE if seconds < SMALL_SHARE * self.cost.total_s else name), seconds


def predict(trial: Trial, curve: VerifyCurve, link: LinkFacts, acceptance: float | None = None) -> Prediction:
    """From the parts of a round.

    Args:
        curve: of which only the ratios count: how fast the machine is now, the trial tells.
        acceptance: probability that a draft token is accepted, given that those before it were; None takes the
            tokens of a round as they were measured.
    """
    rtt_s = min(link.rtt_s, link.median_s)
    transfer_s = link.transfer_s(trial.bytes_up, trial.bytes_down)
    cost = law.RoundCost(
        draft_s=trial.draft_s,
        rtt_s=rtt_s,
        transfer_s=transfer_s,
        overhead_s=max(0.0, link.median_s - rtt_s - transfer_s),
        verify_s=trial.plain_verify_s * statistics.mean(curve.ratio(nodes + 1) for nodes in trial.drafted),
        own_s=trial.own_s,
    )
    tokens = trial.tokens_per_round if acceptance is None else law.chain_tokens(acceptance, trial.depth)
    plain_s = trial.plain_verify_s + trial.own_s
    return Prediction(tokens, acceptance is not None, plain_s, trial.plain_verify_s, cost)


def check_trial(trial: Trial) -> Iterator[Finding]:
    """What the decode says of the hub's drafts and of the text."""
    tokens, drafted = f"{trial.tokens_per_round:.2f} tokens", f"{trial.depth:.1f} draft tokens"
    yield ok("acceptance", f"{tokens} and {drafted} in a round, over {trial.rounds} rounds")
    yield ok("draft", f"{milliseconds(trial.draft_s)} in the hub's drafter for each (p50)")
    if not trial.same_text:
        yield failure(
            "text",
            "the answers with the hub are not those of plain decoding",
            "use a bundle with fp32 weights, and report the fault with `starsd-edge doctor --json`",
        )


def check_curve(curve: VerifyCurve, stored: StoredCurves, is_new: bool) -> Finding:
    """What verify passes take, and from when that is known."""
    first, *others = sorted(curve.seconds)
    ratios = ", ".join(f"{curve.ratio(rows):.2f} at {rows}" for rows in others)
    when = "now" if is_new else f"at {stored.measured_at} UTC"
    text = f"{milliseconds(curve.at(first))} for one token, times {ratios or 1} tokens; measured {when}"
    return ok("verify", text, "" if is_new else "--remeasure does it again")


def check_prediction(prediction: Prediction, trial: Trial) -> Iterator[Finding]:
    """Gain, break-even, what limits, how many targets, and how the decode compares."""
    cost = prediction.cost
    limiting, seconds = prediction.limit
    source = f"assumed {prediction.tokens:.2f} tokens in a round" if prediction.is_assumed else "predicted"
    text = (
        f"{source}: {prediction.gain:.2f} times plain decoding at this RTT, {prediction.tokens_per_s:.1f} tokens/s "
        f"where plain gives {1 / prediction.plain_s:.1f}"
    )
    yield _judged(prediction.gain, text, _REMEDIES[limiting])
    yield _measured(prediction, trial)
    yield _break_even(prediction)
    yield ok("limit", _limit(prediction, limiting, seconds))
    most = law.most_targets(prediction.tokens, cost.draft_s, prediction.plain_s)
    enough = law.targets_without_idling(cost.draft_s, cost.return_s)
    text = (
        f"{_count(enough)} like this one keep the hub always busy; up to {_count(most)} are no slower than plain ones"
    )
    yield ok("targets", text)


def _limit(prediction: Prediction, limiting: str, seconds: float) -> str:
    if limiting == ACCEPTANCE:
        return f"the acceptance: {prediction.tokens:.2f} tokens in a round are most of what there is to gain"
    share = seconds / prediction.cost.total_s
    return f"the {limiting}: {milliseconds(seconds)} of a round, {share:.0%} of it"


def _count(targets: int) -> str:
    return str(targets) if targets <= MANY_TARGETS else f"more than {MANY_TARGETS}"


def _judged(gain: float, text: str, remedy: str) -> Finding:
    if gain >= WORTH_IT:
        return ok("gain", text)
    if gain > 1 / WORTH_IT:
        return note("gain", f"{text}: hardly worth it", remedy)
    return warning("gain", f"{text}: not worth it", remedy)


def _measured(prediction: Prediction, trial: Trial) -> Finding:
    text = (
        f"{trial.gain:.2f} times plain: {trial.hub_per_s:.1f} tokens/s with the hub, {trial.plain_per_s:.1f} without "
        f"({trial.answers} answers of {trial.tokens} tokens)"
    )
    if not prediction.is_assumed and abs(trial.gain / prediction.gain - 1) > FAR_OFF:
        remedy = "see whether target and hub share their cores, or other work runs on one of them"
        return warning("measured", f"{text}: far from the prediction", remedy)
    return ok("measured", text)


def _break_even(prediction: Prediction) -> Finding:
    even, now = prediction.break_even_rtt_s, milliseconds(prediction.cost.rtt_s)
    if even <= 0:
        return note("break-even", "at no RTT: a round costs more than its tokens even without a network")
    return ok("break-even", f"up to an RTT of {milliseconds(even)} the hub is a gain; now it is {now}")


def prediction_figures(prediction: Prediction, trial: Trial, curve: VerifyCurve, label: str) -> Iterator[Figure]:
    """All of it as figures."""
    cost = prediction.cost
    for rows, seconds in sorted(curve.seconds.items()):
        yield Figure(f"verify_ms_{rows}", 1e3 * seconds, "ms", label)
    for name in ("draft", "rtt", "transfer", "overhead", "verify", "own"):
        yield Figure(f"round_{name}_ms", 1e3 * getattr(cost, f"{name}_s"), "ms", label)
    yield Figure("round_ms", 1e3 * cost.total_s, "ms", label)
    yield Figure("tokens_per_round", prediction.tokens, "tokens", label)
    yield Figure("predicted_gain", prediction.gain, "", label)
    yield Figure("predicted_tokens_per_s", prediction.tokens_per_s, "tokens/s", label)
    yield Figure("break_even_rtt_ms", 1e3 * prediction.break_even_rtt_s, "ms", label)
    yield Figure("measured_gain", trial.gain, "", label)
    yield Figure("measured_tokens_per_s", trial.hub_per_s, "tokens/s", label)
    yield Figure("plain_tokens_per_s", trial.plain_per_s, "tokens/s", label)
