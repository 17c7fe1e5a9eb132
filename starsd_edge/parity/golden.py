"""What a bundle's graph gave when it left the exporter, kept in the bundle: a reference where there is no checkpoint.

golden.npz    "facts": a `GoldenFacts` as JSON; for pass i "i.logits", "i.features", "i.keys", "i.values": numbers of
              what it gave, taken at fixed places all over each tensor

A few hundred KiB for any model: places do not get more with its width.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from starsd_edge.errors import BundleError
from starsd_edge.parity.passes import IDS, Observation, Values
from starsd_edge.runtime.engine import Engine, commit_tokens, run_chain

TOKENS = 16
MOST_PROMPT_TOKENS = 24
_TIE = 6.0
"""A near tie: two logits whose difference is no more than so many times the allowed one. Each may move by it, and some
places by several times the mean.
"""


class GreedyText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a model says to a prompt.

    Attributes:
        prompt: its tokens.
        ids: the likeliest token at each place, given those before it.
        gaps: by how much its logit was above the second.
        spread: root mean square of all logits.
    """

    prompt: list[int]
    ids: list[int]
    gaps: list[float]
    spread: float


def greedy_text(
    engine: Engine, prompt: Sequence[int], vocab_size: int, tokens: int = TOKENS, follow: Sequence[int] = ()
) -> GreedyText:
    """Say something, token by token.

    Args:
        vocab_size: ids from here on are padding and never chosen.
        follow: go on with these tokens, whichever are chosen, so that two engines are asked the same.

    Raises:
        EngineError: the engine's context is too short.
    """
    seq = engine.open(len(prompt) + tokens)
    commit_tokens(engine, seq, prompt[:-1])
    last, ids, gaps, squares = prompt[-1], [], [], 0.0
    for place in range(tokens):
        logits = run_chain(engine, seq, [last]).logits[0, :vocab_size].astype(np.float64)
        engine.commit(seq, [0])
        chosen = int(logits.argmax())
        ids.append(chosen)
        gaps.append(float(logits[chosen] - np.partition(logits, -2)[-2]))
        squares += float(np.mean(logits**2))
        last = follow[place] if place < len(follow) else chosen
    return GreedyText(list(prompt), ids, gaps, float(np.sqrt(squares / tokens)))


def wrong_tokens(found: GreedyText, expected: GreedyText, bound: float) -> tuple[list[int], list[int]]:
    """Places where another token was chosen: those where both were nearly as likely, and those where they were not.

    Args:
        bound: the allowed difference between logits, relative.
    """
    places = [place for place, (ours, theirs) in enumerate(zip(found.ids, expected.ids, strict=True)) if ours != theirs]
    close = [place for place in places if expected.gaps[place] <= _TIE * bound * expected.spread]
    return close, [place for place in places if place not in close]


GOLDEN_NAME = "golden.npz"
REVISION = 1
"""Raised when a pass, or the places that are kept of it, change. A new pass needs none: of an older recording it is
said that the pass is not in it.
"""
_PLACES = {"logits": 512, "features": 256, "layer": 96}
_STRIDE = 2_654_435_761  # a prime: its multiples visit the places of any smaller tensor once each, in no pattern
_MOST_BYTES = 16 << 20
_FACTS = "facts"


class GoldenPass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One pass; see `Observation`."""

    case: str
    longest: int
    from_checkpoint: float
    """How far it was from the checkpoint, whose weights may be finer; relative, the largest of all tensors."""


class GoldenFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is not an array."""

    revision: int
    ids: list[int]
    """Tokens of the passes."""
    passes: list[GoldenPass]
    prompts: list[str]
    prompt_ids: list[list[int]]
    """What the tokenizer made of them."""
    text: GreedyText


@dataclass(frozen=True)
class Golden:
    """What was recorded.

    Attributes:
        values: of each of `facts.passes`, as `sampled` gives them.
    """

    facts: GoldenFacts
    values: Sequence[Values]

    def find(self, observation: Observation) -> tuple[Values, float] | None:
        """What was recorded of a pass, and how far that was from the checkpoint; None where it was not run then."""
        for values, each in zip(self.values, self.facts.passes, strict=True):
            if (each.case, each.longest) == (observation.case, observation.longest):
                return values, each.from_checkpoint
        return None


def sampled(values: Values) -> Values:
    """The numbers of a pass that are kept; keys and values as one row per layer, [L, n]."""
    features = None if values.features is None else _sample(values.features, _PLACES["features"])
    keys, rows = (
        None if layers is None else [_sample(layer, _PLACES["layer"]) for layer in layers]
        for layers in (values.keys, values.values)
    )
    return Values(_sample(values.logits, _PLACES["logits"]), features, keys, rows, values.is_top_right)


def write_golden(
    directory: Path,
    ids: Sequence[int],
    passes: Sequence[tuple[Observation, float]],
    prompts: Mapping[str, Sequence[int]],
    text: GreedyText,
) -> None:
    """Record a graph.

    Args:
        directory: of the bundle.
        ids: tokens of the passes.
        passes: what it gave, and how far that is from the checkpoint.
        prompts: some texts, and the ids that the tokenizer makes of them.
    """
    facts = GoldenFacts(
        revision=REVISION,
        ids=list(ids),
        passes=[GoldenPass(each.case, each.longest, far) for each, far in passes],
        prompts=list(prompts),
        prompt_ids=[list(each) for each in prompts.values()],
        text=text,
    )
    arrays: dict[str, npt.NDArray[Any]] = {_FACTS: np.frombuffer(msgspec.json.encode(facts), np.uint8)}
    for index, (each, _) in enumerate(passes):
        values = sampled(each.values)
        for name in ("logits", "features", "keys", "values"):
            part = getattr(values, name)
            if part is not None:
                arrays[f"{index}.{name}"] = np.stack(part) if isinstance(part, list) else part
    np.savez(directory / GOLDEN_NAME, **arrays)  # type: ignore[arg-type]


def read_golden(path: Path, vocab_size: int) -> Golden:
    """What was recorded in the bundle at this path.

    Raises:
        BundleError: it cannot be read, or another version wrote it.
    """
    file = path / GOLDEN_NAME
    try:
        arrays = _load(file)
        facts = msgspec.json.decode(arrays.pop(_FACTS).tobytes(), type=GoldenFacts)
        golden = Golden(facts, [_values(arrays, index) for index in range(len(facts.passes))])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, msgspec.MsgspecError) as error:
        raise BundleError(f"{file} cannot be read ({error}): export the bundle again") from None
    if facts.revision != REVISION:
        raise BundleError(
            f"{file} was recorded in another way ({facts.revision}; this version reads {REVISION}): export the bundle "
            "again, or check it with the version that made it"
        )
    _require_sound(file, facts, vocab_size)
    return golden


def _load(file: Path) -> dict[str, npt.NDArray[Any]]:
    """Its arrays; nothing larger than a recording is unpacked."""
    if file.stat().st_size > _MOST_BYTES:
        raise ValueError(f"larger than {_MOST_BYTES} bytes")
    data = io.BytesIO(file.read_bytes())
    with zipfile.ZipFile(data) as archive:
        if sum(member.file_size for member in archive.infolist()) > _MOST_BYTES:
            raise ValueError(f"larger than {_MOST_BYTES} bytes when it is unpacked")
    data.seek(0)
    with np.load(data, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _values(arrays: Mapping[str, npt.NDArray[Any]], index: int) -> Values:
    keys, values = arrays.get(f"{index}.keys"), arrays.get(f"{index}.values")
    return Values(
        arrays[f"{index}.logits"],
        arrays.get(f"{index}.features"),
        None if keys is None else list(keys),
        None if values is None else list(values),
    )


def _require_sound(file: Path, facts: GoldenFacts, vocab_size: int) -> None:
    ids = [*facts.ids, *facts.text.prompt, *facts.text.ids]
    texts = (
        len(facts.text.ids) == len(facts.text.gaps) > 0
        and len(facts.text.prompt) > 0
        and len(facts.prompts) == len(facts.prompt_ids)
    )
    if len(facts.ids) != IDS or not texts or not all(0 <= token < vocab_size for token in ids):
        raise BundleError(f"{file} does not fit the manifest: export the bundle again")


def _sample(array: npt.NDArray[Any], places: int) -> npt.NDArray[Any]:
    flat = array.reshape(-1)
    if flat.size <= places:
        return flat
    return np.asarray(flat[np.arange(places, dtype=np.int64) * _STRIDE % flat.size])
