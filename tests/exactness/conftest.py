"""The models whose answers with drafts are compared with their plain ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.runtime.engine import Engine
from tests.support.exactness import Bench


@pytest.fixture(scope="session")
def bench_fp16_kv(bundle_fp32: Bundle, engine_fp32: Engine) -> Bench:
    """fp32 weights, float16 KV."""
    return Bench.of(bundle_fp32, engine_fp32)


@pytest.fixture(scope="session")
def bench_fp32_kv(bundle_fp32_kv32: Bundle, engine_fp32_kv32: Engine) -> Bench:
    """fp32 weights, float32 KV."""
    return Bench.of(bundle_fp32_kv32, engine_fp32_kv32)


@pytest.fixture(scope="session")
def bench_int8(bundle_int8: Bundle, engine_int8: Engine) -> Bench:
    """int8 weights, float16 KV."""
    return Bench.of(bundle_int8, engine_int8)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[str], None]]:
    """Print a line of the report whether or not the test fails."""

    def line(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", end="")

    return line
