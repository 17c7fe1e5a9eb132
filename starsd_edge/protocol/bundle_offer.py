"""How a hub hands bundles to targets: `starsd.bundles.v1`, a WebSocket subprotocol of its own on the hub's port.

The hub begins with an `OfferList`. The client then asks for one file at a time, from an offset on (`Fetch`), and gets
the rest of it in pieces of at most `PIECE_BYTES`, in order and without gaps; after the last one it may ask again. A
link that breaks loses nothing: the next connection asks from where the last one ended. The list has the sha256 of each
bundle's manifest, and the manifest that of every other file.

All messages but the pieces are MessagePack arrays with a name first. Neither side trusts the other: names, counts and
sizes are bounded by the types, and a name from the wire is looked up in a list, never made part of a path.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from starsd_edge.errors import StarsdError

OFFER_SUBPROTOCOL = "starsd.bundles.v1"
"""WebSocket subprotocol by which a hub knows a client that fetches bundles."""
PIECE_BYTES = 256 << 10
"""Most bytes of a piece: a slow link of 1 Mbit/s takes two seconds for it, and drafts go in between."""
MAX_LIST_BYTES = 1 << 20
"""Most bytes of a list that a client takes."""
_MAX_FETCH_BYTES = 1024
"""Most bytes of a request that a hub takes."""

BundleName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""Of a directory below the cache."""
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")]
"""Of a file in a bundle, which has no directories."""
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
Size = Annotated[int, Meta(ge=0, le=1 << 41)]
"""Bytes of a file, up to two terabytes."""


class OfferError(StarsdError):
    """A hub's bundles cannot be had."""


class OfferedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a bundle."""

    name: FileName
    size: Size


class OfferedBundle(msgspec.Struct, frozen=True, array_like=True):
    """A bundle that a hub hands out.

    Attributes:
        source: the model it was made of, for people.
        weights: kind of its weights.
        manifest_sha256: digest of its manifest.json, which has the digests of the other files.
        files: manifest.json and all files that it lists.
    """

    name: BundleName
    source: Annotated[str, Meta(max_length=256)]
    weights: Annotated[str, Meta(max_length=32)]
    manifest_sha256: Sha256
    files: Annotated[list[OfferedFile], Meta(min_length=1, max_length=256)]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


class OfferList(msgspec.Struct, frozen=True, array_like=True, tag="offers"):
    """What a hub says first."""

    bundles: Annotated[list[OfferedBundle], Meta(max_length=64)]


class Fetch(msgspec.Struct, frozen=True, array_like=True, tag="fetch"):
    """A client's request: the rest of a file.

    Attributes:
        at: offset of the first byte that is wanted.
    """

    bundle: BundleName
    file: FileName
    at: Size


def decode_list(message: bytes) -> OfferList:
    """Read a hub's list.

    Raises:
        OfferError: it is none.
    """
    try:
        return msgspec.msgpack.decode(message, type=OfferList)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise OfferError(f"the hub's list of bundles cannot be read ({error}): it is of another version") from None


def decode_fetch(message: bytes) -> Fetch | None:
    """Read a client's request; None where it is none."""
    if len(message) > _MAX_FETCH_BYTES:
        return None
    try:
        return msgspec.msgpack.decode(message, type=Fetch)
    except (msgspec.MsgspecError, ValueError):
        return None
