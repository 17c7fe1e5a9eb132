"""S(b, shape) is learnt from passes as they come, whatever they are and whatever disturbs them."""

from __future__ import annotations

import random

import pytest

from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.service_model import PassSize, ServiceCost, ServiceModel, size_of

TRUTH = ServiceCost(fixed_s=1.5e-3, per_session_s=0.5e-3, per_level_s=2e-3, per_node_s=0.05e-3)
ASKED = [PassSize(1, 4, 4), PassSize(8, 4, 32), PassSize(16, 8, 256), PassSize(1, 1, 1)]


def varied(count: int, seed: int = 0) -> list[PassSize]:
    chance = random.Random(seed)
    sizes = []
    for _ in range(count):
        shapes = [
            DraftShape(chance.choice([4, 8, 16]), chance.choice([2, 4, 8]), 3) for _ in range(chance.randint(1, 8))
        ]
        sizes.append(size_of(shapes))
    return sizes


def test_varied_passes_tell_what_any_pass_takes() -> None:
    model = ServiceModel()
    chance = random.Random(1)
    for size in varied(200):
        model.observe(size, TRUTH.predict(size) * chance.uniform(0.95, 1.05))
    for size in ASKED:
        assert model.cost.predict(size) == pytest.approx(TRUTH.predict(size), rel=0.12)


def test_passes_that_are_all_alike_are_known_at_once_and_others_are_guessed_in_proportion() -> None:
    model = ServiceModel()
    model.observe(PassSize(1, 4, 4), 0.012)
    assert model.cost.predict(PassSize(1, 4, 4)) == pytest.approx(0.012)
    assert 0.004 < model.cost.predict(PassSize(1, 2, 2)) < 0.012 < model.cost.predict(PassSize(1, 8, 8)) < 0.024


def test_a_slower_machine_is_followed_and_no_part_is_ever_negative() -> None:
    model = ServiceModel()
    for factor in (1.0, 3.0):
        for size in varied(400):
            model.observe(size, factor * TRUTH.predict(size))
            cost = model.cost
            assert min(cost.fixed_s, cost.per_session_s, cost.per_level_s, cost.per_node_s) >= 0
    for size in ASKED:
        assert model.cost.predict(size) == pytest.approx(3 * TRUTH.predict(size), rel=0.2)


def test_one_pass_that_was_held_up_changes_little() -> None:
    model = ServiceModel()
    for size in varied(100):
        model.observe(size, TRUTH.predict(size))
    before = [model.cost.predict(size) for size in ASKED]
    model.observe(ASKED[1], 5.0)
    for size, usual in zip(ASKED, before, strict=True):
        assert model.cost.predict(size) == pytest.approx(usual, rel=0.25)


def test_the_line_of_a_shape_is_what_batches_of_it_take() -> None:
    shape = DraftShape(8, 4, 2)
    s0, s1 = TRUTH.line(shape)
    for batch in (1, 5):
        assert s0 + s1 * batch == pytest.approx(TRUTH.predict(size_of([shape] * batch)))


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (DraftShape(8, 4, 1), PassSize(1, 4, 4)),
        (DraftShape(8, 4, 2), PassSize(1, 4, 8)),
        (DraftShape(3, 9, 1), PassSize(1, 3, 3)),
    ],
)
def test_a_chain_has_as_many_nodes_as_levels(shape: DraftShape, size: PassSize) -> None:
    assert size_of([shape]) == size


def test_rows_are_priced_by_themselves() -> None:
    model = ServiceModel()
    for rows in (64, 64, 32, 8):
        model.observe_rows(rows, rows * 0.0005)
    assert model.row_s == pytest.approx(0.0005)
    assert model.passes == 0
