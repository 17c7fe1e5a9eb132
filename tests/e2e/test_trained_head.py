"""A head from its training to a star that drafts with it, through the commands that users run, on a tiny model."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from starsd_edge.bundles.bundle import Bundle
from tests.support.processes import Process, answers, ask, running, start_hub, target

pytestmark = pytest.mark.export

ASKED = (
    "--prompt",
    "The hub drafts what the target checks",
    "--max-tokens",
    40,
    "--json",
    "--temperature",
    1,
    "--seed",
    3,
)


def done(*arguments: object) -> str:
    """Run a command to its end; what it says on standard error."""
    with running(Process(arguments)) as process:
        assert process.wait() == 0, process.errors
        return process.errors


@pytest.fixture(scope="module")
def tiny(tiny_bundles: dict[str, Bundle]) -> Bundle:
    return tiny_bundles["fp32"]


@pytest.fixture(scope="module")
def trained(tiny: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a head, its public form and its bundle lie."""
    place = tmp_path_factory.mktemp("head")
    (place / "data.txt").write_text("the hub drafts and the target checks what it drafts; " * 60)
    checkpoint = tiny.path.parent / "checkpoint"
    options = ("--data", place / "data.txt", "--epochs", 2, "--unroll", 2, "--draft-vocabulary", 64)
    options += ("--batch-tokens", 256, "--precision", "float32", "--threads", 1, "--export-public", place / "public")
    said = done("train-draft", checkpoint, "--output", place / "head", *options)
    assert "held out: tokens_per_round" in said
    done("export", checkpoint, "--draft-head", place / "head", "--output", place / "bundle")
    done("export", checkpoint, "--draft-head", place / "public", "--output", place / "public-bundle")
    return place


@pytest.mark.parametrize("bundle", ["bundle", "public-bundle"])
@pytest.mark.parametrize("features", ["fp16", "int8"])
def test_a_target_with_a_trained_head_answers_as_alone(tiny: Bundle, trained: Path, bundle: str, features: str) -> None:
    with running(target(tiny.path, *ASKED, "--no-speculation")) as process:
        (alone,) = answers(process)
    with ExitStack() as stack:
        hub = start_hub(stack, trained / bundle)
        tree = ("--draft-nodes", 8, "--draft-depth", 4, "--draft-branching", 3, "--draft-wait", 20)
        with_hub = ("--hub", hub.url, "--require-hub", "--features", features)
        (answer,) = answers(ask(stack, tiny, *ASKED, *tree, *with_hub))
        assert answer["token_ids"] == alone["token_ids"]
        assert answer["text"] == alone["text"]
        (drafter, _fallback) = hub.status()["drafters"]
        assert drafter["kind"] == "eagle"
        assert drafter["drafts"] > 0


def test_a_window_and_a_second_shorter_answer_on_the_same_connection(tiny: Bundle, trained: Path) -> None:
    prompts = ("--prompt", "The hub drafts what the target checks, again and again", "--prompt", "The hub")
    asked = (*prompts, "--max-tokens", 24, "--json")
    with running(target(tiny.path, *asked, "--no-speculation")) as process:
        alone = answers(process)
    with ExitStack() as stack:
        hub = start_hub(stack, trained / "bundle")
        with_hub = ("--hub", hub.url, "--require-hub", "--draft-wait", 20, "--draft-window", 8)
        for one, other in zip(answers(ask(stack, tiny, *asked, *with_hub)), alone, strict=True):
            assert one["token_ids"] == other["token_ids"]
        assert hub.status()["drafters"][0]["sessions"] == 0


def test_a_head_is_no_target_and_says_where_it_belongs(trained: Path) -> None:
    with running(Process(["run-target", trained / "bundle", "--prompt", "x"])) as process:
        assert process.wait() == 1
        assert "is a bundle for run-draft alone" in process.errors
