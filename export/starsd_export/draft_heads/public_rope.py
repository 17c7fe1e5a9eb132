"""RoPE settings of a published head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from starsd_edge.errors import UsageError

_BASE = 10000.0
_KINDS = ("default", "linear")
_Above0 = Annotated[float, Meta(gt=0, lt=1e12)]


class _Scaling(msgspec.Struct, frozen=True):
    rope_type: str | None = None
    type: str | None = None
    rope_theta: _Above0 | None = None
    factor: _Above0 | None = None
    partial_rotary_factor: float | None = None


def read_rope(config: Mapping[str, Any], path: Any) -> tuple[float, float]:
    """Base of the frequencies, and the factor by which positions are divided.

    Args:
        config: flattened; the scaling stands in `rope_scaling`, or with the base in `rope_parameters`.

    Raises:
        UsageError: names a kind of scaling that is not run.
    """
    stated = config.get("rope_parameters") or config.get("rope_scaling") or {}
    try:
        scaling = msgspec.convert(stated, _Scaling)
        theta = msgspec.convert(scaling.rope_theta or config.get("rope_theta", _BASE), _Above0)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} has RoPE settings that cannot be read: {error}") from None
    kind = scaling.rope_type or scaling.type or "default"
    if any(isinstance(value, dict) for value in stated.values()):
        kind = "different for each kind of layer"
    if kind not in _KINDS:
        raise UsageError(
            f"{path} has the RoPE scaling {kind!r}, which this version does not run for heads "
            f"(supported: {', '.join(_KINDS)})"
        )
    if scaling.partial_rotary_factor not in (None, 1.0):
        raise UsageError(f"{path} rotates {scaling.partial_rotary_factor} of each head: only whole heads are run")
    if kind == "linear" and scaling.factor is None:
        raise UsageError(f"{path} has linear RoPE scaling without a factor: fetch the head again")
    return theta, scaling.factor if kind == "linear" and scaling.factor else 1.0
