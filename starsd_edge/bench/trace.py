"""Traces: texts of a target with its features along them, as a file.

A target's text does not depend on drafts, so a recorded one can be replayed instead of computed: the timing backend
does. The file is an uncompressed .npz of four arrays, read without pickle and with every size checked before memory is
taken for it.

    about       uint8, JSON: see `TraceSource`
    lengths     int32 [K, 2], of each text its tokens and how many of them are the prompt
    ids         int32 [sum of tokens], the texts one after the other
    features    float16 [sum of tokens, F], at every position of the texts
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from starsd_edge.bundles.cache import cache_dir
from starsd_edge.bundles.integrity import write_whole
from starsd_edge.errors import UsageError

MAX_TEXTS = 4096
"""Most texts in a file."""
MAX_TOKENS = 1 << 22
"""Most tokens of all texts in a file together."""
MAX_BYTES = 1 << 31
"""Most bytes of a file."""
_MAX_ABOUT_BYTES = 1 << 16
"""Most bytes of the JSON that says whose texts they are."""
_MOST_DIMENSIONS = 2
"""Most dimensions of an array in a file."""
_ARRAYS = {"about": "|u1", "lengths": "<i4", "ids": "<i4", "features": "<f2"}
_REMEDY = "record it again with `starsd-edge bench trace`"


class TraceSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The target whose texts a file holds."""

    bundle: str
    """The bundle's name in its manifest, for people."""
    source_fp: str
    feature_fp: str
    feature_kind: str
    vocab_size: int
    """Width of the logits; ids are below it."""
    max_context: int


@dataclass(frozen=True, eq=False)
class Trace:
    """One text.

    Attributes:
        ids: int64 [n], prompt and answer.
        prompt_tokens: number of first tokens that are the prompt; fewer than n.
        features: float16 [n, F], at each position.
    """

    ids: npt.NDArray[np.int64]
    prompt_tokens: int
    features: npt.NDArray[np.float16]

    @property
    def prompt(self) -> list[int]:
        """Ids of the prompt."""
        return [int(token) for token in self.ids[: self.prompt_tokens]]

    @property
    def answer(self) -> list[int]:
        """Ids of the answer, at least one."""
        return [int(token) for token in self.ids[self.prompt_tokens :]]


@dataclass(frozen=True, eq=False)
class Traces:
    """The content of a file: at least one text, all of one target."""

    source: TraceSource
    texts: Sequence[Trace]


def default_trace(bundle: str) -> Path:
    """Where the trace of a bundle is kept, by the bundle's name or path; its directory is made."""
    directory = cache_dir() / "traces"
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{Path(bundle).name}.npz"


def write_traces(path: Path, traces: Traces) -> None:
    """Write the file whole or not at all."""
    texts = traces.texts
    arrays: dict[str, npt.NDArray[Any]] = {
        "about": np.frombuffer(msgspec.json.encode(traces.source), dtype=np.uint8),
        "lengths": np.array([[len(text.ids), text.prompt_tokens] for text in texts], dtype=np.int32),
        "ids": np.concatenate([text.ids for text in texts]).astype(np.int32),
        "features": np.concatenate([text.features for text in texts]).astype(np.float16),
    }
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_whole(path, buffer.getvalue())


def read_traces(path: Path) -> Traces:
    """Read a file that `write_traces` wrote.

    Raises:
        UsageError: there is none, or it is another file, damaged or too large.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {name: _read_array(archive, name, dtype) for name, dtype in _ARRAYS.items()}
        source = msgspec.json.decode(arrays["about"].tobytes(), type=TraceSource)
        return Traces(source, _texts(source, arrays))
    except OSError as error:
        raise UsageError(f"cannot read the trace {path} ({error.strerror}): {_REMEDY}") from None
    except (zipfile.BadZipFile, ValueError, KeyError) as error:  # msgspec's errors are ValueErrors
        raise UsageError(f"{path} is no trace ({_words(error)}): {_REMEDY}") from None


def _words(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) and error.args else str(error)


def _read_array(archive: zipfile.ZipFile, name: str, dtype: str) -> npt.NDArray[Any]:
    """One member, whose header must fit its size before an array is made of it."""
    info = archive.getinfo(f"{name}.npy")
    limit = _MAX_ABOUT_BYTES if name == "about" else MAX_BYTES
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > limit:
        raise ValueError(f"{name} is compressed or larger than {limit} bytes")
    with archive.open(info) as stream:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError(f"{name} has an unknown header")
        shape, fortran, found = np.lib.format.read_array_header_1_0(stream)
        data = stream.read()
    if fortran or found != np.dtype(dtype) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"{name} is an array of {found} with {len(shape)} dimensions")
    if min(shape, default=0) < 0 or math.prod(shape) * found.itemsize != len(data):
        raise ValueError(f"{name} is cut short")
    return np.frombuffer(data, dtype=found).reshape(shape)


def _texts(source: TraceSource, arrays: dict[str, npt.NDArray[Any]]) -> list[Trace]:
    lengths, ids, features = arrays["lengths"], arrays["ids"].astype(np.int64), arrays["features"]
    if lengths.ndim != 2 or lengths.shape[1] != 2 or not 1 <= len(lengths) <= MAX_TEXTS:
        raise ValueError(f"lengths of the shape {lengths.shape}")
    tokens, prompts = lengths[:, 0].astype(np.int64), lengths[:, 1]
    if prompts.min() < 1 or (prompts >= tokens).any() or tokens.max() > source.max_context:
        raise ValueError("a text without prompt or answer, or longer than the context")
    if ids.ndim != 1 or features.ndim != 2 or not int(tokens.sum()) == len(ids) == len(features) <= MAX_TOKENS:
        raise ValueError(f"{len(ids)} ids and {len(features)} features for texts of {int(tokens.sum())} tokens")
    if ids.min() < 0 or ids.max() >= source.vocab_size:
        raise ValueError(f"ids outside the vocabulary of {source.vocab_size}")
    if not np.isfinite(features).all():
        raise ValueError("features that are no finite numbers")
    ends = np.cumsum(tokens).tolist()
    return [
        Trace(ids[end - count : end], int(prompt), features[end - count : end])
        for end, count, prompt in zip(ends, tokens.tolist(), prompts, strict=True)
    ]
