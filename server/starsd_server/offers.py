"""Bundles that a hub hands to targets: what they are, and the connections that fetch them.

Files are read on threads, a piece at a time, and a piece leaves before the next one is read: a connection takes two
pieces of memory however large a file is, and the event loop carries drafts in between. What a client names is looked up
in the table of files that was made when the hub started.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from websockets.exceptions import ConnectionClosed

from starsd_edge.bundles.bundle import load_bundle
from starsd_edge.bundles.cache import MANIFEST_NAME
from starsd_edge.bundles.integrity import sha256_file
from starsd_edge.errors import UsageError
from starsd_edge.protocol.bundle_offer import (
    PIECE_BYTES,
    OfferedBundle,
    OfferedFile,
    OfferList,
    decode_fetch,
)
from starsd_edge.protocol.codes import CLOSE_POLICY
from starsd_server.peer import LiveConnection

log = logging.getLogger(__name__)

_IDLE_S = 60.0
"""Seconds that a client may take until its next request."""


@dataclass
class Offers:
    """What one hub hands out. All methods belong to the event loop.

    Attributes:
        files: path and size of each file, by the names of bundle and file.
        bytes_sent: of files, while the hub runs.
    """

    bundles: Sequence[OfferedBundle] = ()
    files: dict[tuple[str, str], tuple[Path, int]] = field(default_factory=dict)
    bytes_sent: int = 0

    @classmethod
    def of(cls, paths: Sequence[Path]) -> Offers:
        """Of these bundles, checked by their hashes.

        Raises:
            BundleError: one is no whole bundle of a target.
            UsageError: two have one name, or one has a name that cannot be handed out.
        """
        bundles = [_described(path) for path in paths]
        names = [bundle.name for bundle in bundles]
        if twins := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(f"--offer names two bundles {twins[0]}: targets know them by their directory's name")
        files = {
            (bundle.name, file.name): (path / file.name, file.size)
            for bundle, path in zip(bundles, paths, strict=True)
            for file in bundle.files
        }
        return cls(bundles, files)

    async def serve(self, connection: LiveConnection) -> None:
        """Answer a client until it leaves."""
        told: set[str] = set()
        try:
            await connection.send(msgspec.msgpack.encode(OfferList(list(self.bundles))))
            while True:
                message = await asyncio.wait_for(connection.recv(), _IDLE_S)
                wanted = decode_fetch(message) if isinstance(message, bytes) else None
                found = None if wanted is None else self.files.get((wanted.bundle, wanted.file))
                if wanted is None or found is None or wanted.at > found[1]:
                    await connection.close(CLOSE_POLICY, "no such bundle, file or place in it")
                    return
                if wanted.bundle not in told:
                    told.add(wanted.bundle)
                    log.info("%s fetches %s", connection.shown_address, wanted.bundle)
                await self._send(connection, *found, wanted.at)
        except (ConnectionClosed, asyncio.TimeoutError):
            return
        except OSError as error:
            log.warning("an offered file cannot be read: %s", error.strerror)
            await connection.close(CLOSE_POLICY, "the file cannot be read at the hub")

    async def _send(self, connection: LiveConnection, path: Path, size: int, at: int) -> None:
        file = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while at < size:
                piece = await asyncio.to_thread(os.pread, file, min(PIECE_BYTES, size - at), at)
                if not piece:
                    raise OSError(0, f"{path.name} has become shorter")
                await connection.send(piece)
                at += len(piece)
                self.bytes_sent += len(piece)
        finally:
            os.close(file)


def _described(path: Path) -> OfferedBundle:
    manifest = load_bundle(path).manifest
    names = [MANIFEST_NAME, *sorted(manifest.files)]
    described = OfferedBundle(
        path.absolute().name,
        manifest.source[:256],
        manifest.graph.weights,
        sha256_file(path / MANIFEST_NAME),
        [OfferedFile(name, (path / name).stat().st_size) for name in names],
    )
    try:  # what a client would not take is told here
        return msgspec.msgpack.decode(msgspec.msgpack.encode(described), type=OfferedBundle)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path} cannot be offered ({error}): rename it") from None
