"""The star with an EAGLE-3 head, through the commands that users run: the target fuses, the hub goes on from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from starsd_edge.bundles.bundle import Bundle
from tests.support.processes import Hub, answers, ask, start_hub
from tests.support.tiny_eagle3 import PROMPTS, TinyEagle3

pytestmark = pytest.mark.export

LENGTH = 32
ASKED = (*(part for prompt in PROMPTS for part in ("--prompt", prompt)), "--max-tokens", LENGTH, "--json")
TREE = ("--draft-nodes", 8, "--draft-depth", 4, "--draft-branching", 3, "--draft-wait", 20)


@pytest.fixture(scope="module")
def hub(tiny_eagle3: TinyEagle3) -> Iterator[Hub]:
    with ExitStack() as stack:
        yield start_hub(stack, tiny_eagle3.drafts.path)


@pytest.fixture(scope="module")
def alone(tiny_eagle3: TinyEagle3) -> list[list[int]]:
    with ExitStack() as stack:
        return [each["token_ids"] for each in answers(ask(stack, tiny_eagle3.target, *ASKED, "--no-speculation"))]


@pytest.mark.parametrize("features", ["fp16", "int8"])
def test_a_target_with_an_eagle_3_head_answers_as_alone(
    features: str, tiny_eagle3: TinyEagle3, hub: Hub, alone: list[list[int]]
) -> None:
    with ExitStack() as stack:
        with_hub = ("--hub", hub.url, "--require-hub", "--features", features)
        said = answers(ask(stack, tiny_eagle3.target, *ASKED, *TREE, *with_hub))
    assert [each["token_ids"] for each in said] == alone
    drafter = hub.status()["drafters"][0]
    assert drafter["kind"] == "eagle"
    assert drafter["drafts"] > 0
    assert sum(each["figures"]["accepted"] for each in said) > LENGTH


def test_a_target_with_other_features_is_told_both_and_the_command(
    tiny_eagle3: TinyEagle3, tiny_bundles: dict[str, Bundle], hub: Hub
) -> None:
    other = tiny_bundles["fp32"]
    with ExitStack() as stack:
        brief = ("--prompt", "The hub", "--max-tokens", 4, "--json")
        asked = ask(stack, other, *brief, "--hub", hub.url, "--require-hub")
        answers(asked)
    (line,) = asked.errors.splitlines()
    assert other.manifest.fingerprints.feature_fp[:16] in line
    assert tiny_eagle3.drafts.manifest.accepts[0][:16] in line
    assert "`starsd-edge export tiny --features-for tiny-eagle3`" in line
