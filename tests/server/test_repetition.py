"""What a text has said before is found again: the longest place, the last of those, and on past the end of the text."""

from __future__ import annotations

import numpy as np
import pytest

from starsd_server.drafters.eagle_draft import repeated


def following(text: list[int], depth: int = 4) -> list[int]:
    return [token for token, _ in repeated(np.array(text, dtype=np.int32), depth)]


def searched(text: list[int], depth: int) -> list[int]:
    """The same by looking everywhere."""
    for length in (4, 3, 2):
        for after in range(len(text) - 1, length - 1, -1):
            if len(text) > length and text[after - length : after] == text[-length:]:
                return [text[after + place % (len(text) - after)] for place in range(depth)]
    return []


@pytest.mark.parametrize("text", [[], [1], [1, 1], [1, 2], [1, 2, 3, 4, 5], [7, 5, 9, 5]])
def test_a_text_that_is_new_at_its_end_goes_on_nowhere(text: list[int]) -> None:
    assert following(text) == []


def test_the_longest_match_counts_and_of_those_the_last() -> None:
    assert following([1, 2, 3, 10, 0, 9, 2, 3, 11, 0, 1, 2, 3]) == [10, 0, 9, 2]
    assert following([1, 2, 10, 5, 1, 2, 11, 6, 1, 2]) == [11, 6, 1, 2]


def test_a_repetition_goes_on_past_the_end_of_the_text() -> None:
    assert following([8, 1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]
    assert following([8, 8, 8], 3) == [8, 8, 8]


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_a_search_of_the_whole_text_finds(seed: int) -> None:
    draw = np.random.default_rng(seed)
    for _ in range(50):
        text = draw.integers(0, draw.integers(2, 6), draw.integers(1, 60)).tolist()
        depth = int(draw.integers(1, 8))
        assert following(text, depth) == searched(text, depth)


def test_more_of_the_same_text_makes_it_likelier() -> None:
    def first(text: list[int]) -> float:
        return repeated(np.array(text, dtype=np.int32), 1)[0][1]

    two, three, four = [1, 2, 9, 0, 1, 2], [1, 2, 3, 9, 0, 1, 2, 3], [1, 2, 3, 4, 9, 0, 1, 2, 3, 4]
    assert first(two) < first(three) < first(four) < 0
    assert first([5, *four[:5], 5, *four[6:]]) == first(four)


def test_no_depth_no_guess() -> None:
    assert following([1, 2, 1, 2], 0) == []
