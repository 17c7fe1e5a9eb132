"""The published table of what accelerators hold (Vicuna-7B with an EAGLE head)."""

from __future__ import annotations

import pytest

from starsd_edge.planning.memory import GIB, KIB, MIB, DraftMemory, TargetMemory, fit

EAGLE = DraftMemory(weights=0.44 * GIB, kv_per_token=16 * KIB, copies=0.49 * GIB)
FP16, INT8, INT4 = 12.55, 6.28, 3.3


def vicuna(weights_gib: float, context: int) -> TargetMemory:
    return TargetMemory(weights_gib * GIB, 0.5 * MIB, context)


@pytest.mark.parametrize(
    ("usable_gib", "weights_gib", "context", "co_located", "star"),
    [
        (22.8, FP16, 1024, 1, 1),
        (22.8, INT8, 1024, 2, 3),
        (22.8, INT4, 1024, 4, 5),
        (22.8, INT4, 4096, 3, 4),
        (38.5, INT8, 1024, 4, 5),
        (38.5, INT8, 2048, 4, 5),
        (77.5, FP16, 4096, 4, 5),
        (77.5, INT4, 2048, 14, 16),
        (6.3, INT4, 4096, 0, 1),
        (28, FP16, 1024, 1, 2),
        (28, FP16, 2048, 1, 2),
    ],
)
def test_the_table(usable_gib: float, weights_gib: float, context: int, co_located: int, star: int) -> None:
    found = fit(usable_gib * GIB, vicuna(weights_gib, context), EAGLE)
    assert (found.co_located, found.star) == (co_located, star)


def test_where_no_further_target_fits_the_context_grows() -> None:
    found = fit(22.8 * GIB, vicuna(FP16, 1024), EAGLE)
    assert found.co_located_context == pytest.approx(18_500, rel=0.01)
    assert found.star_context == pytest.approx(20_300, rel=0.01)
    assert fit(8 * GIB, vicuna(FP16, 1024), EAGLE).star_context == 0


def test_a_hub_holds_the_head_once_and_little_for_each_session() -> None:
    assert EAGLE.hub(0, 2048) == pytest.approx(0.93 * GIB)
    assert EAGLE.hub(1, 2048) - EAGLE.hub(0, 2048) == pytest.approx(32 * MIB)
