"""The star on a tiny model, through the commands that users run: what needs no real one."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from starsd_edge.bundles.bundle import Bundle
from tests.support.processes import answers, ask, running, start_hub, target

BRIEF = ("--prompt", "The hub drafts", "--max-tokens", 16, "--json")


@pytest.fixture(scope="module")
def tiny(tiny_bundles: dict[str, Bundle]) -> Bundle:
    """The model of every target here."""
    return tiny_bundles["fp32"]


@pytest.fixture(scope="module")
def brief(tiny: Bundle) -> list[int]:
    """The tiny model's answer to `BRIEF`."""
    with running(target(tiny.path, *BRIEF, "--no-speculation")) as process:
        return answers(process)[0]["token_ids"]


def write_token(path: Path, token: str) -> Path:
    path.write_text(f"{token}\n")
    path.chmod(0o600)
    return path


def test_a_target_with_a_hub_answers_as_alone(tiny: Bundle, tiny_bundles: dict[str, Bundle], brief: list[int]) -> None:
    with ExitStack() as stack:
        hub = start_hub(stack, tiny_bundles["int8"].path)
        (answer,) = answers(ask(stack, tiny, *BRIEF, "--hub", hub.url, "--require-hub", "--draft-wait", 20))
        assert answer["token_ids"] == brief
        assert hub.status()["drafters"][0]["drafts"] > 0


def test_wrong_token_is_one_line_and_costs_the_drafts_only(tiny: Bundle, brief: list[int], tmp_path: Path) -> None:
    right, wrong = write_token(tmp_path / "right", "open-sesame"), write_token(tmp_path / "wrong", "open-barley")
    with ExitStack() as stack:
        hub = start_hub(stack, "--token-file", right)
        with_wrong = ("--hub", hub.url, "--token-file", wrong)
        refused = ask(stack, tiny, *BRIEF, *with_wrong, "--require-hub")
        assert list(refused.records()) == []
        assert refused.wait() != 0
        (line,) = refused.errors.splitlines()
        assert "--token-file" in line
        alone = ask(stack, tiny, *BRIEF, *with_wrong)
        assert answers(alone)[0]["token_ids"] == brief
        assert alone.errors.count("does not let this target in") == 1
        let_in = ask(stack, tiny, *BRIEF, "--hub", hub.url, "--token-file", right, "--require-hub")
        assert answers(let_in)[0]["token_ids"] == brief
        assert "open-" not in refused.errors + alone.errors + let_in.errors + hub.errors


def test_unreachable_hub_is_one_line_and_costs_the_drafts_only(tiny: Bundle, brief: list[int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"ws://127.0.0.1:{taken.getsockname()[1]}"
    with ExitStack() as stack:
        refused = ask(stack, tiny, *BRIEF, "--hub", url, "--require-hub")
        assert list(refused.records()) == []
        assert refused.wait() != 0
        (line,) = refused.errors.splitlines()
        assert f"{url} cannot be reached" in line
        alone = ask(stack, tiny, *BRIEF, "--hub", url)
        assert answers(alone)[0]["token_ids"] == brief
        assert alone.errors.count("cannot be reached") == 1
