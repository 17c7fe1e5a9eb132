"""What a hub that lets this machine in offers a bundle."""

from __future__ import annotations

from starsd_edge.bundles.manifest import Fingerprints
from starsd_edge.doctor.findings import Level
from starsd_edge.doctor.machine import check_welcome
from tests.support.wire import a_welcome

URL = "ws://desk:8317"
PRINTS = Fingerprints("0123456789abcdef" * 4, "s", "f")


def test_a_drafter_that_fits() -> None:
    findings = [*check_welcome(URL, "small", PRINTS, a_welcome(drafter="causal-lm", drafter_fp="fedcba" * 8))]
    assert [each.level for each in findings] == [Level.OK] * 3
    assert "causal-lm" in findings[1].finding
    assert findings[2].finding == "small: tokenizer 0123456789ab, drafter fedcbafedcba"


def test_a_drafter_that_only_stands_in_is_a_warning_with_the_hubs_own_words() -> None:
    welcome = a_welcome(notice="causal-lm: another tokenizer. Drafting by n-gram instead")
    drafter = [*check_welcome(URL, "small", PRINTS, welcome)][1]
    assert drafter.level is Level.WARNING
    assert "another tokenizer" in drafter.finding


def test_without_a_bundle_only_the_door_is_tried() -> None:
    assert [each.level for each in check_welcome(URL, None, None, a_welcome())] == [Level.OK, Level.NOT_RUN]
