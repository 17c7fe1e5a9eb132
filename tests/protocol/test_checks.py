"""What decodes but must not be used: features and trees that contradict themselves or what was agreed."""

from __future__ import annotations

import numpy as np
import pytest

from starsd_edge.protocol.checks import ProtocolError, all_finite, check_ids, printable, read_features, read_tree
from starsd_edge.protocol.messages import MAX_TENSOR_BYTES, Draft, Tensor
from starsd_edge.speculation.tree import DraftShape, DraftTree
from tests.support.wire import WIDTH, a_tensor, some_features

TAG = b"t" * 16
ROOMY = DraftShape(64, 16, 64)


def a_draft(ids: list[int], parents: list[int]) -> Draft:
    return Draft(TAG, 1, 0, ids, parents, 0, 0, 0)


def test_ids_of_the_vocabulary_pass_and_others_name_the_first_fault() -> None:
    check_ids([], 10)
    check_ids([0, 9], 10)
    with pytest.raises(ProtocolError, match="token id 12 is not below the vocabulary size 10") as refused:
        check_ids([0, 12, 10], 10)
    assert refused.value.scope == "session"


def test_float16_features_come_back_bit_for_bit() -> None:
    values = some_features(3)
    read = read_features(a_tensor(values), 3, WIDTH, "f2")
    assert read is not None
    assert read.dtype == np.float16
    assert np.array_equal(read, values)


def test_int8_features_are_scaled_row_by_row() -> None:
    tensor = Tensor(
        "i1", [2, 2], memoryview(bytes([1, 127, 128, 255])), memoryview(np.array([1, 0.5], "<f2").tobytes())
    )
    read = read_features(tensor, 2, 2, "i1")
    assert read is not None
    assert read.tolist() == [[1, 127], [-64, -0.5]]


@pytest.mark.parametrize("codec", ["none", "f2"])
def test_no_rows_need_no_features(codec: str) -> None:
    assert read_features(None, 0, WIDTH, codec) is None


def test_empty_features_with_no_rows_are_as_good_as_none() -> None:
    assert read_features(Tensor("f2", [0, WIDTH], memoryview(b"")), 0, WIDTH, "f2") is None


def broken_features() -> dict[str, tuple[Tensor | None, str]]:
    good = some_features(2)
    data = memoryview(good.tobytes())
    scales = memoryview(np.ones(2, "<f2").tobytes())
    bytes_of_rows = memoryview(bytes(2 * WIDTH))
    not_a_number = good.copy()
    not_a_number[1, 3] = np.nan
    infinite = good.copy()
    infinite[0, 0] = -np.inf
    return {
        "missing": (None, "f2"),
        "unwanted": (a_tensor(good), "none"),
        "other codec": (a_tensor(good), "i1"),
        "other dtype": (Tensor("i1", [2, WIDTH], data), "f2"),
        "fewer rows": (a_tensor(good[:1]), "f2"),
        "narrower": (a_tensor(good[:, :4].copy()), "f2"),
        "short data": (Tensor("f2", [2, WIDTH], data[:-1]), "f2"),
        "long data": (Tensor("f2", [2, WIDTH], memoryview(bytes(data) + b"\0")), "f2"),
        "nan": (a_tensor(not_a_number), "f2"),
        "inf": (a_tensor(infinite), "f2"),
        "scales with float16": (Tensor("f2", [2, WIDTH], data, scales), "f2"),
        "no scales with int8": (Tensor("i1", [2, WIDTH], bytes_of_rows), "i1"),
        "too few scales": (Tensor("i1", [2, WIDTH], bytes_of_rows, scales[:2]), "i1"),
        "nan scale": (
            Tensor("i1", [2, WIDTH], bytes_of_rows, memoryview(np.array([1, np.nan], "<f2").tobytes())),
            "i1",
        ),
        "overflowing scale": (
            Tensor("i1", [2, WIDTH], memoryview(b"\x7f" * 2 * WIDTH), memoryview(np.full(2, 6e4, "<f2").tobytes())),
            "i1",
        ),
    }


@pytest.mark.parametrize("fault", broken_features())
def test_features_that_are_not_what_was_agreed_end_the_session(fault: str) -> None:
    tensor, codec = broken_features()[fault]
    with pytest.raises(ProtocolError) as refused:
        read_features(tensor, 2, WIDTH, codec)
    assert refused.value.scope == "session"


def test_every_float16_is_known_for_finite_or_not() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    assert [all_finite(every[at : at + 1]) for at in range(1 << 16)] == np.isfinite(every).tolist()


def test_shape_whose_product_overflows_is_refused() -> None:
    huge = (1 << 31) - 1
    with pytest.raises(ProtocolError):
        read_features(Tensor("f2", [huge, huge], memoryview(b"\0" * 8)), huge, huge, "f2")


def test_more_tensor_bytes_than_allowed_are_refused_even_when_they_fit_the_shape() -> None:
    width = MAX_TENSOR_BYTES // 2 + 1
    with pytest.raises(ProtocolError, match=str(MAX_TENSOR_BYTES)):
        read_features(Tensor("f2", [1, width], memoryview(bytes(2 * width))), 1, width, "f2")


def test_a_tree_comes_back_as_it_was() -> None:
    tree = DraftTree(np.array([5, 6, 7, 8]), np.array([-1, 0, 0, -1]))
    assert read_tree(a_draft(tree.tokens.tolist(), tree.parents.tolist()), ROOMY, 100) == tree
    assert len(read_tree(a_draft([], []), DraftShape(0, 0), 100)) == 0


@pytest.mark.parametrize(
    ("ids", "parents", "asked"),
    [
        ([1, 2], [-1], ROOMY),
        ([1], [-1, 0], ROOMY),
        ([1], [0], ROOMY),
        ([1, 2], [1, 0], ROOMY),
        ([1, 2], [-1, 1], ROOMY),
        ([1, 2, 3, 4], [-1, -1, 0, 1], ROOMY),
        ([1, 1], [-1, -1], ROOMY),
        ([100], [-1], ROOMY),
        ([1, 2, 3], [-1, 0, 1], DraftShape(2, 16, 64)),
        ([1, 2, 3], [-1, 0, 1], DraftShape(64, 2, 64)),
        ([1, 2], [-1, -1], DraftShape(64, 16, 1)),
        ([1, 2, 3, 4], [-1, 0, 0, 0], DraftShape(64, 16, 2)),
        ([1], [-1], DraftShape(0, 0)),
    ],
)
def test_what_is_no_tree_or_larger_than_asked_costs_the_frame(
    ids: list[int], parents: list[int], asked: DraftShape
) -> None:
    with pytest.raises(ProtocolError) as refused:
        read_tree(a_draft(ids, parents), asked, 100)
    assert refused.value.scope == "frame"


def test_text_of_a_peer_cannot_steer_a_terminal() -> None:
    assert printable("fine ünïcode 漢") == "fine ünïcode 漢"
    assert "\x1b" not in printable("\x1b[2Jgone\r\nforged line\u202e")
    assert "\n" not in printable("\x1b[2Jgone\r\nforged line")
