"""A target that was written from the page and its vectors alone works with this hub, and finds no contradiction."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from starsd_edge.speculation.tree import DraftShape
from starsd_server.drafters.contract import Drafter
from starsd_server.drafters.eagle import FEATURES_OF
from starsd_server.settings import DraftingSettings, HubSettings
from tests.support.hub_client import RunningHub, running_hub
from tests.support.wire_vectors import VECTORS

CLIENT = Path(__file__).with_name("client_from_the_page")
ROUNDS = 200
FIXED = HubSettings(drafting=DraftingSettings(shape=DraftShape(6, 3, 3)))
"""Two sessions of one text are to be asked for trees of one shape."""


async def run(hub: RunningHub, do: list[str], rounds: int = ROUNDS, **hello: Any) -> dict[str, Any]:
    """What the client saw; its traceback where it ended with one."""
    task = {"port": hub.port, "vectors": str(VECTORS), "rounds": rounds, "do": do, "hello": {"vocab_size": 50, **hello}}
    # Isolated and without site-packages: it cannot use the project if it wanted to.
    command = (sys.executable, "-I", "-S", str(CLIENT), json.dumps(task))
    pipe = asyncio.subprocess.PIPE
    client = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, errors = await asyncio.wait_for(client.communicate(), 300)
    assert client.returncode == 0, errors.decode()
    return json.loads(out)  # type: ignore[no-any-return]


def head(kind: str, **changes: Any) -> Drafter:
    heads = pytest.importorskip("tests.support.random_heads", reason="needs torch")
    return heads.drafter_on(heads.random_engine(kind, max_positions=2048, **changes))  # type: ignore[no-any-return]


async def test_it_reads_and_writes_the_vectors_and_is_answered_as_they_say() -> None:
    async with running_hub(settings=FIXED) as hub:
        seen = await run(hub, ["offline", "faults", "conversations", "decode"])
    vectors = json.loads(VECTORS.read_text())
    assert seen["faults"] == sum(entry["state"] != "opened, with features" for entry in vectors["bad"])
    assert seen["conversations"] == len(vectors["conversations"])
    check_rounds(seen["decode"])


async def test_faulty_features_are_answered_as_the_vectors_say() -> None:
    pytest.importorskip("torch")
    width = {"hidden_size": 2, "intermediate_size": 4, "n_heads": 1, "n_kv_heads": 1, "head_dim": 2}
    async with running_hub([head("eagle", vocab_size=1000, **width)]) as hub:
        seen = await run(hub, ["faults"])
    assert seen["faults"] == len(json.loads(VECTORS.read_text())["bad"])


@pytest.mark.parametrize(("kind", "codec", "rounds"), [("eagle", "f2", ROUNDS), ("eagle3", "i1", 60)])
async def test_it_drafts_with_a_head(kind: str, codec: str, rounds: int) -> None:
    said = {"feature_fp": "f" * 64, "feature_kind": FEATURES_OF[kind], "feature_width": 32, "codecs": [codec]}
    async with running_hub([head(kind)], FIXED, required=True) as hub:
        seen = await run(hub, ["decode"], rounds, **said)
    check_rounds(seen["decode"], rounds)


def check_rounds(seen: dict[str, int], rounds: int = ROUNDS) -> None:
    assert seen["rounds"] == rounds
    assert seen["nodes"] > rounds
    assert seen["resumed"] == len(range(25, rounds, 40))
    assert seen["resyncs"] == len(range(17, rounds, 30))
    assert seen["probes"] == len(range(10, rounds, 50))
    assert seen["bursts"] > rounds / 2
