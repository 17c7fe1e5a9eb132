"""Features as a target writes them and a hub reads them, and those that it must not use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from starsd_edge.protocol.codec import ProtocolError
from starsd_edge.protocol.features import all_finite, choose_codec, read_features, row_bytes, write_features
from starsd_edge.protocol.messages import MAX_TENSOR_BYTES, Tensor
from tests.support.wire import WIDTH, a_tensor, some_features

LARGEST = float(np.finfo(np.float16).max)


@pytest.mark.parametrize(
    ("offered", "accepted", "chosen"),
    [
        (["f2", "i1"], (), "none"),
        ([], (), "none"),
        (["f2", "i1"], ("f2", "i1"), "f2"),
        (["i1", "f2"], ("f2", "i1"), "i1"),
        (["f8", "i1"], ("f2", "i1"), "i1"),
        (["i1"], ("f2",), None),
        ([], ("f2", "i1"), None),
    ],
)
def test_the_first_codec_of_the_target_that_the_drafter_can_use_is_chosen(
    offered: Sequence[str], accepted: Sequence[str], chosen: str | None
) -> None:
    assert choose_codec(offered, accepted) == chosen


def through(rows: npt.NDArray[np.float16], codec: str) -> npt.NDArray[np.float16]:
    """What the hub gets of these rows."""
    tensor = write_features(rows, codec)
    assert tensor.data.nbytes == len(rows) * row_bytes(codec, rows.shape[1])
    read = read_features(tensor, *rows.shape, codec)
    assert read is not None
    assert read.dtype == np.float16
    return read


finite_rows = arrays.arrays(
    np.float16,
    arrays.array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.floats(-LARGEST, LARGEST, width=16, allow_nan=False) | st.sampled_from([0.0, 6e-8, LARGEST, -LARGEST]),
)


@given(finite_rows)
def test_float16_rows_arrive_bit_for_bit(rows: npt.NDArray[np.float16]) -> None:
    assert through(rows, "f2").tobytes() == rows.tobytes()


@given(finite_rows)
@example(np.array([[1e-6, -5e-7, 6e-8], [3e-6, 0, 1e-7]], dtype=np.float16))
def test_int8_rows_are_off_by_half_a_step_at_most(rows: npt.NDArray[np.float16]) -> None:
    """A step is the row's peak / 127, rounded up to a float16; what comes of it is rounded to a float16 once more."""
    true, read = rows.astype(np.float64), through(rows, "i1").astype(np.float64)
    peaks = np.abs(true).max(axis=1, keepdims=True)
    steps = np.minimum(peaks / 127 * (1 + 2.0**-10) + 2.0**-24, 515.5)
    rounding = peaks * 2.0**-11 + 2.0**-25
    assert (np.abs(true - read) <= steps / 2 + rounding).all()
    assert (read[true == 0] == 0).all()


def test_int8_keeps_rows_apart_and_a_row_of_zeros_zero() -> None:
    rows = np.array([[0, 0, 0], [1, -2, 127], [1000, -40000, 3]], dtype=np.float16)
    read = through(rows, "i1")
    assert read[:2].tolist() == rows[:2].tolist()
    assert read[2].tolist() == pytest.approx([1000, -40000, 0], rel=0.06, abs=0.001)
    assert write_features(rows, "i1").scales is not None


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
        "infinite scale of zeros": (
            Tensor("i1", [2, WIDTH], bytes_of_rows, memoryview(np.array([np.inf, 1], "<f2").tobytes())),
            "i1",
        ),
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
