"""The star on the real model, through the commands that users run, each a process of its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from starsd_edge.bundles.bundle import Bundle
from tests.support.processes import AHEAD, DEADLINE_S, Hub, answers, ask, start_hub, target

pytestmark = pytest.mark.model

PROMPTS = (
    "Write a short story about a lighthouse keeper and a gull.",
    "Explain to a child why the sea is salty.",
    "List the planets of the solar system and say one thing about each.",
)
PATIENT = ("--draft-wait", 20)
"""Where hub and targets share two cores, a draft may take long; these tests ask what comes, not when."""


def pieces(records: Iterator[dict[str, Any]], count: int) -> str:
    """The text of the next `count` pieces."""
    return "".join(next(records)["piece"] for _ in range(count))


def rest(records: Iterator[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """The text that is still to come, and the answer's record."""
    text = ""
    for record in records:
        if record["type"] == "answer":
            return text, record
        text += record["piece"]
    raise AssertionError("the answer did not end")


def until(hub: Hub, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The hub's status once this holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition(status := hub.status()):
        assert time.monotonic() < deadline, status
        time.sleep(0.05)
    return status


@pytest.fixture(scope="module")
def alone(bundle_fp32: Bundle) -> list[dict[str, Any]]:
    """Each prompt's answer, decoded token by token."""
    asked = [part for prompt in PROMPTS for part in ("--prompt", prompt)]
    process = target(bundle_fp32.path, *asked, "--json", "--no-speculation", "--max-tokens", 64)
    return answers(process)


def test_three_targets_at_once_answer_as_alone(
    bundle_fp32: Bundle, bundle_int8: Bundle, alone: list[dict[str, Any]]
) -> None:
    with ExitStack() as stack:
        hub = start_hub(stack, bundle_int8.path)
        options = ("--json", "--hub", hub.url, "--require-hub", "--max-tokens", 64, *PATIENT)
        together = [
            ask(stack, bundle_fp32, "--prompt", prompt, "--name", f"target-{number}", *options)
            for number, prompt in enumerate(PROMPTS)
        ]
        for process, expected in zip(together, alone, strict=True):
            (answer,) = answers(process)
            assert answer["token_ids"] == expected["token_ids"]
            assert answer["text"] == expected["text"]
            assert answer["figures"]["tokens_per_round"] > 1, "how much more depends on the load of the machine"
        drafters = {drafter["kind"]: drafter for drafter in hub.status()["drafters"]}
        assert drafters["causal-lm"]["drafts"] > 0
        assert drafters["causal-lm"]["sessions"] == 0


def test_hub_killed_in_the_middle_of_an_answer_and_restarted(bundle_fp32: Bundle, bundle_int8: Bundle) -> None:
    options = ("--stream-json", "--prompt", PROMPTS[0], "--max-tokens", 200)
    with ExitStack() as stack:
        expected = rest(ask(stack, bundle_fp32, *options, "--no-speculation").records())[1]
        hub = start_hub(stack, bundle_int8.path)
        # Paced: the answer cannot be over before the second hub has its session.
        process = ask(stack, bundle_fp32, *options, "--hub", hub.url, "--require-hub", *PATIENT, paced=True)
        records = process.records()
        text = pieces(records, 8)
        first = until(hub, lambda status: drafts(status) > 0)
        hub.kill()
        text += pieces(records, 5)
        hub = start_hub(stack, bundle_int8.path, port=hub.port)
        until(hub, lambda status: status["sessions"] == 1)
        remainder, answer = rest(records)
        second = hub.status()
        assert process.wait() == 0
    assert text + remainder == expected["text"] == answer["text"]
    assert answer["token_ids"] == expected["token_ids"]
    assert "back after a restart" in process.errors
    # A draft serves one round at most, so more rounds than one hub made drafts had some of the other's.
    from_hub = answer["figures"]["rounds_by_drafter"]["hub"]
    assert from_hub > drafts(second)
    assert from_hub > drafts(first) + AHEAD


def drafts(status: dict[str, Any]) -> int:
    """How many a hub's causal-lm drafter has made."""
    return next(drafter["drafts"] for drafter in status["drafters"] if drafter["kind"] == "causal-lm")


def test_answer_goes_on_while_the_hub_is_stopped(bundle_fp32: Bundle, bundle_int8: Bundle) -> None:
    options = ("--stream-json", "--prompt", PROMPTS[1], "--max-tokens", 96)
    with ExitStack() as stack:
        expected = rest(ask(stack, bundle_fp32, *options, "--no-speculation").records())[1]
        hub = start_hub(stack, bundle_int8.path)
        process = ask(stack, bundle_fp32, *options, "--hub", hub.url, "--require-hub", paced=True)
        records = process.records()
        text = pieces(records, 2)
        hub.send(signal.SIGSTOP)
        remainder, answer = rest(records)
        assert text + remainder == expected["text"]
        assert answer["token_ids"] == expected["token_ids"]
        assert process.wait() == 0


def test_sampled_answers_are_the_same_with_and_without_a_hub(bundle_fp32: Bundle, bundle_int8: Bundle) -> None:
    options = ("--json", "--prompt", PROMPTS[2], "--max-tokens", 48)
    options += ("--temperature", 0.8, "--top-p", 0.95, "--seed", 20260122)
    with ExitStack() as stack:
        hub = start_hub(stack, bundle_int8.path)
        plain = answers(ask(stack, bundle_fp32, *options, "--no-speculation"))
        for more in (("--hub", hub.url, "--require-hub", *PATIENT), ()):
            (answer,) = answers(ask(stack, bundle_fp32, *options, *more))
            assert answer["token_ids"] == plain[0]["token_ids"]


def test_prompts_on_standard_input_give_the_same_text_with_and_without_speculation(bundle_fp32: Bundle) -> None:
    prompts = f"{PROMPTS[0]}\n\n{PROMPTS[2]}\n"
    said = []
    with ExitStack() as stack:
        for more in ((), ("--no-speculation",)):
            process = ask(stack, bundle_fp32, "--prompts", "-", "--max-tokens", 24, *more, stdin=prompts)
            said.append("\n".join(iter(process.line, None)))
            assert process.wait() == 0, process.errors
    assert said[0] == said[1]
    assert len(said[0]) > 100


def test_target_killed_in_the_middle_frees_its_session(bundle_fp32: Bundle, bundle_int8: Bundle) -> None:
    with ExitStack() as stack:
        hub = start_hub(stack, bundle_int8.path, "--resume-grace", 0.2)
        options = ("--stream-json", "--prompt", PROMPTS[0], "--max-tokens", 400)
        process = ask(stack, bundle_fp32, *options, "--hub", hub.url, "--require-hub", paced=True)
        pieces(process.records(), 3)
        until(hub, lambda status: status["sessions"] == 1)
        process.kill()
        status = until(hub, lambda status: status["sessions"] == 0 and status["targets"] == [])
        assert status["drafters"][0]["sessions"] == 0


@pytest.fixture
def stranger(tiny_bundles: dict[str, Bundle]) -> Bundle:
    """A model with another tokenizer."""
    return tiny_bundles["fp32"]


def test_mismatched_tokenizer_is_refused_with_both_fingerprints(bundle_fp32: Bundle, stranger: Bundle) -> None:
    prints = [bundle.manifest.fingerprints.tokenizer_fp for bundle in (bundle_fp32, stranger)]
    options = ("--prompt", PROMPTS[0], "--max-tokens", 8, "--require-hub", "--json")
    with ExitStack() as stack:
        hub = start_hub(stack, stranger.path, "--require-drafter")
        refused = ask(stack, bundle_fp32, *options, "--hub", hub.url)
        assert list(refused.records()) == []
        assert refused.wait() != 0
        (line,) = refused.errors.splitlines()
        assert all(fingerprint in line for fingerprint in prints)


def test_mismatched_tokenizer_gets_ngram_drafts_and_is_told_why(
    bundle_fp32: Bundle, stranger: Bundle, tmp_path: Path
) -> None:
    prints = [bundle.manifest.fingerprints.tokenizer_fp for bundle in (bundle_fp32, stranger)]
    options = ("--prompt", PROMPTS[0], "--max-tokens", 8, "--require-hub", "--json")
    with ExitStack() as stack:
        hub = start_hub(stack, stranger.path)
        process = ask(stack, bundle_fp32, *options, "--hub", hub.url)
        answers(process)
        assert "drafts with ngram" in process.errors
        assert all(fingerprint in process.errors for fingerprint in prints)
