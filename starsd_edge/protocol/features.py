"""Features on the wire: two codecs, how a target writes them, and what a hub checks before it uses them.

"f2" is float16 as the target's model gave it. "i1" is int8 with one float16 scale per row, half the bytes: no value is
off by more than half a scale, which is the row's largest magnitude over 127. Features only decide which tokens are
drafted: a coarse feature lowers the acceptance rate and never changes a text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from starsd_edge.protocol.codec import ProtocolError
from starsd_edge.protocol.codes import MALFORMED
from starsd_edge.protocol.messages import MAX_TENSOR_BYTES, Tensor

NO_FEATURES = "none"
"""In WELCOME: ids are enough."""
FLOAT16: Final = "f2"
INT8: Final = "i1"
CODECS = frozenset({FLOAT16, INT8})

_MOST_STEPS = 127
_LARGEST_SCALE = np.float16(515.5)
"""The largest float16 of which 127 are still a finite float16."""


def choose_codec(offered: Sequence[str], accepted: Collection[str]) -> str | None:
    """The codec between a target and a drafter.

    Args:
        offered: what the target can send, the preferred one first.
        accepted: what the drafter can use; empty when ids are enough.

    Returns:
        The first one offered that is accepted, `NO_FEATURES` when none is needed, None when none fits.
    """
    if not accepted:
        return NO_FEATURES
    return next((codec for codec in offered if codec in accepted), None)


def row_bytes(codec: str, width: int) -> int:
    """Tensor bytes of one row of features, its scale not counted."""
    return {NO_FEATURES: 0, FLOAT16: 2 * width, INT8: width}[codec]


def write_features(rows: npt.NDArray[np.float16], codec: str) -> Tensor:
    """Rows of features as they travel.

    Args:
        rows: little-endian float16 [R, F], contiguous and finite. "f2" is a view of them.
    """
    if codec == FLOAT16:
        return Tensor(FLOAT16, list(rows.shape), rows.view(np.uint8).data.cast("B"))
    values = rows.astype(np.float32)
    scales = _scales(np.abs(values).max(axis=1))
    wide = scales.astype(np.float32)[:, None]
    steps = np.divide(values, wide, out=np.zeros_like(values), where=wide > 0)
    codes = np.rint(steps).clip(-_MOST_STEPS, _MOST_STEPS).astype(np.int8)
    return Tensor(INT8, list(rows.shape), codes.data.cast("B"), scales.view(np.uint8).data)


def _scales(peaks: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """The smallest float16 scales that reach the peaks of rows, 0 for rows of zeros."""
    scales = (peaks / _MOST_STEPS).astype("<f2")
    short = scales.astype(np.float32) * _MOST_STEPS < peaks
    scales[short] = np.nextafter(scales[short], np.float16(np.inf))
    return scales.clip(max=_LARGEST_SCALE)


def read_features(tensor: Tensor | None, rows: int, width: int, codec: str) -> npt.NDArray[np.float16] | None:
    """The features that came with `rows` rows.

    Args:
        tensor: as decoded, or None where the message had none.
        width: features per row, agreed in HELLO.
        codec: agreed in WELCOME.

    Returns:
        float16 [rows, width]; for "f2" a read-only and perhaps unaligned view into the frame. None when none are wanted
        or there are no rows.

    Raises:
        ProtocolError: there are none where they are wanted, some where they are not, in another form than agreed, or
            not finite; scope "session".
    """
    if tensor is None:
        if codec != NO_FEATURES and rows:
            raise _fault(f"the drafter wants {codec} features with every row and got none")
        return None
    if codec == NO_FEATURES:
        raise _fault("features came that WELCOME did not ask for")
    if tensor.dtype != codec:
        raise _fault(f"features came as {tensor.dtype}, agreed was {codec}")
    if tensor.shape != [rows, width]:
        raise _fault(f"features of shape {tensor.shape} came with {rows} rows of width {width}")
    size = tensor.data.nbytes
    if size != rows * row_bytes(codec, width) or size > MAX_TENSOR_BYTES:
        raise _fault(f"{size} tensor bytes do not hold shape {tensor.shape} within {MAX_TENSOR_BYTES} bytes")
    if rows == 0:
        return None
    values = _from_int8(tensor, rows, width) if codec == INT8 else _as_float16(tensor, rows, width)
    if not all_finite(values):
        raise _fault("features are not finite")
    return values


def all_finite(values: npt.NDArray[np.float16]) -> bool:
    """Whether no value is infinite or not a number: those have all five exponent bits set. On the bits, because numpy
    widens float16 value by value, which takes eight times as long on the hub's event loop.
    """
    return bool(((values.view(np.uint16) & 0x7C00) != 0x7C00).all())


def _as_float16(tensor: Tensor, rows: int, width: int) -> npt.NDArray[np.float16]:
    if tensor.scales is not None:
        raise _fault("float16 features carry no scales")
    return np.frombuffer(tensor.data, dtype="<f2").reshape(rows, width)


def _from_int8(tensor: Tensor, rows: int, width: int) -> npt.NDArray[np.float16]:
    if tensor.scales is None or tensor.scales.nbytes != rows * 2:
        raise _fault(f"int8 features of {rows} rows need {rows} float16 scales")
    scales = np.frombuffer(tensor.scales, dtype="<f2")
    if not all_finite(scales):
        raise _fault("scales of features are not finite")
    codes = np.frombuffer(tensor.data, dtype=np.int8).reshape(rows, width)
    with np.errstate(over="ignore"):
        return (codes * scales.astype(np.float32)[:, None]).astype(np.float16)


def _fault(message: str) -> ProtocolError:
    return ProtocolError(MALFORMED, message, "session")
