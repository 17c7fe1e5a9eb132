"""The drafters of a hub, and which of them a target is offered."""

from __future__ import annotations

from collections.abc import Sequence

from starsd_edge.protocol.codes import FINGERPRINT
from starsd_edge.protocol.features import NO_FEATURES, choose_codec
from starsd_edge.protocol.hub_side import Offer, Refusal
from starsd_edge.protocol.messages import Hello
from starsd_server.drafters.contract import Drafter

_REMEDY = "start the hub with the target's own bundle: starsd-edge run-draft BUNDLE"


class DrafterRegistry:
    """The configured drafters in order of preference, and the one that fits every target.

    Args:
        preferred: the first of them that fits is offered.
        fallback: offered, with a notice, when none fits; ids are enough for it.
        required: refuse a target that no preferred drafter fits, instead of falling back.
    """

    def __init__(self, preferred: Sequence[Drafter], fallback: Drafter, required: bool) -> None:
        self._preferred = list(preferred)
        self._fallback = fallback
        self._required = required

    @property
    def drafters(self) -> list[Drafter]:
        """All of them, each once."""
        fallback = [] if self._fallback in self._preferred else [self._fallback]
        return [*self._preferred, *fallback]

    @property
    def names(self) -> str:
        """Those that targets are offered first, for people."""
        return ",".join(drafter.kind for drafter in self._preferred)

    def offer(self, hello: Hello) -> Offer | Refusal:
        """The first drafter that fits this target; else the fallback with a line that says why and what mends it."""
        reasons: list[str] = []
        for drafter in self._preferred:
            fit = _fit(drafter, hello)
            if isinstance(fit, Offer):
                return fit
            reasons.append(f"{drafter.kind}: {fit}")
        why = "; ".join(reasons)
        if self._required:
            return Refusal(FINGERPRINT, f"no drafter of this hub fits: {why}. To mend it, {_REMEDY}")
        notice = f"{why}. Drafting by n-gram instead; to mend it, {_REMEDY}"
        return Offer(self._fallback.kind, self._fallback.fingerprint, NO_FEATURES, notice)


def _fit(drafter: Drafter, hello: Hello) -> Offer | str:
    """What this drafter offers the target, or why it does not fit."""
    reason = drafter.refuses(hello)
    if reason is not None:
        return reason
    codec = choose_codec(hello.codecs, drafter.feature_codecs)
    if codec is None:
        theirs = ", ".join(hello.codecs) or "none"
        return f"it needs features as {' or '.join(drafter.feature_codecs)}, the target sends {theirs}"
    return Offer(drafter.kind, drafter.fingerprint, codec)
