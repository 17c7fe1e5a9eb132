"""How two passes are compared, and in which words."""

from __future__ import annotations

import numpy as np
import pytest

from starsd_edge.parity.compare import describe, differences, largest, relative
from starsd_edge.parity.passes import Values

BOUND = 1e-3
LAYERS = 3


def values(seed: int = 0, layers: int = LAYERS) -> Values:
    draw = np.random.default_rng(seed)
    keys, rows = ([draw.standard_normal((4, 2, 8)) for _ in range(layers)] for _ in "kv")
    return Values(draw.standard_normal((4, 20)), draw.standard_normal((4, 6)), keys, rows)


def said(found: Values, expected: Values) -> str:
    return describe(differences(found, expected, BOUND), BOUND)


def test_the_same_values_do_not_differ() -> None:
    found = differences(values(), values(), BOUND)
    assert [each.name for each in found[:3]] == ["layer 0 keys", "layer 0 values", "layer 1 keys"]
    assert [each.name for each in found[-2:]] == ["features", "logits"]
    assert largest(found) == 0


def test_the_first_layer_that_differs_is_named_and_what_follows_is_counted() -> None:
    found = values()
    found.values[1][0, 0, 0] += 1.0  # type: ignore[index]
    found.keys[2][:] *= 1.1  # type: ignore[index]
    found.logits[:] *= 1.5
    assert said(found, values()).startswith("layer 1 values differ by ")
    assert said(found, values()).endswith(", 1.0e-03 allowed; so do 2 of 7 other tensors")


def test_the_difference_is_relative_to_what_was_expected() -> None:
    expected = values().logits
    assert relative(expected * 1.01, expected) == pytest.approx(0.01)
    assert relative(np.zeros(3), np.zeros(3)) == 0
    assert relative(np.ones(3), np.zeros(3)) == np.inf


def test_layers_in_another_order_are_told_from_wrong_ones() -> None:
    found = values()
    found.keys[0], found.keys[2] = found.keys[2], found.keys[0]  # type: ignore[index]
    assert said(found, values()) == "layer 0 keys are those of layer 2: the layers are not in their order"


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_beyond_every_bound(number: float) -> None:
    found = values()
    found.features[0, 0] = number  # type: ignore[index]
    seen = differences(found, values(), float("1e30"))
    assert not all(each.relative <= 1e30 for each in seen)
    assert describe(seen, 1e30) == "features are not all numbers"


def test_other_shapes_are_named() -> None:
    found = Values(np.zeros((4, 21)), None, None, None)
    assert said(found, values()) == "logits have the shape [4, 21] and not [4, 20]"
    fewer = values(layers=2)
    assert said(fewer, values()) == "the layers of keys have the shape [2] and not [3]"


def test_what_one_side_does_not_show_is_left_out() -> None:
    whole = values()
    assert [each.name for each in differences(Values(whole.logits, None, None, None), whole, BOUND)] == ["logits"]
