"""Which layers of the target an EAGLE-3 head reads, whatever numbering its configuration uses.

Here id j means the input of layer j, which is the output of layer j - 1 (0 is the embedding), as in EAGLE and vLLM.
SGLang, SpecForge and Model Optimizer mean the output of layer j and write their ids inside "eagle_config". A head that
is fed by the wrong numbering guesses badly and says nothing, so whoever shows a head should show `TapLayers.origin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starsd_edge.errors import UsageError
from starsd_edge.runtime.torch_features import TAPS

_FIELD = "eagle_aux_hidden_state_layer_ids"
_GROUP = "eagle_config"


@dataclass(frozen=True)
class TapLayers:
    """Layers of one target.

    Attributes:
        ids: rising; the head reads what goes into these layers.
        origin: in words, with where they come from.
    """

    ids: tuple[int, ...]
    origin: str


@dataclass(frozen=True)
class StatedTaps:
    """What a configuration says.

    Attributes:
        ids: as they stand there; empty where it says nothing.
        outputs: they mean outputs of layers.
    """

    ids: tuple[int, ...]
    outputs: bool

    def resolve(self, layers: int) -> TapLayers:
        """For a target of so many layers.

        Raises:
            UsageError: the target has no such layers.
        """
        default = (2, layers // 2, layers - 3)
        if not self.ids:
            taps = TapLayers(default, f"the inputs of layers {_listed(default)} (EAGLE's default)")
        elif self.outputs or self.ids == tuple(tap - 1 for tap in default):
            # Ids outside of "eagle_config" mean inputs, but a list that is exactly the default of those who mean
            # outputs was copied from there.
            ids = tuple(tap + 1 for tap in self.ids)
            taps = TapLayers(ids, f"the inputs of layers {_listed(ids)} (outputs of {_listed(self.ids)}, as stated)")
        else:
            taps = TapLayers(self.ids, f"the inputs of layers {_listed(self.ids)} (as stated)")
        if not all(low < high for low, high in zip((-1, *taps.ids), (*taps.ids, layers + 1), strict=True)):
            raise UsageError(
                f"the head reads {taps.origin}, and the target has {layers} layers: it fits another target"
            )
        return taps


def read_taps(config: Mapping[str, Any], path: Any) -> StatedTaps:
    """What the contents of a config.json state.

    Raises:
        UsageError: something else than three layers.
    """
    group = config.get(_GROUP)
    inner = group.get(_FIELD) if isinstance(group, Mapping) else None
    ids = inner or config.get(_FIELD) or []
    if not isinstance(ids, list) or not all(type(layer) is int for layer in ids) or len(ids) not in (0, TAPS):
        raise UsageError(f"{path} sets {_FIELD} = {ids}, which this version does not run (supported: {TAPS} layers)")
    return StatedTaps(tuple(ids), outputs=bool(inner))


def _listed(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids))
