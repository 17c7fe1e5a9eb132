"""Fetching a bundle from a hub that offers it (`starsd.bundles.v1`), in pieces, over links that break.

Nothing that the hub says is trusted: the bundle is put in place only when every file has the hash that its manifest
lists, and the manifest the one that the hub named. Pieces lie in the cache, below the manifest's digest, until then; a
later run goes on where an earlier one ended.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from websockets.exceptions import ConnectionClosed

from starsd_edge.bundles.bundle import load_bundle
from starsd_edge.bundles.cache import MANIFEST_NAME, bundles_dir, cache_dir
from starsd_edge.bundles.integrity import require_free_space, require_replaceable, sha256_file, staged_directory
from starsd_edge.errors import BundleError, UsageError, did_you_mean
from starsd_edge.protocol.bundle_offer import (
    MAX_LIST_BYTES,
    OFFER_SUBPROTOCOL,
    Fetch,
    OfferedBundle,
    OfferError,
    decode_list,
)
from starsd_edge.protocol.codec import printable
from starsd_edge.telemetry.hub_opening import (
    CLOSE_TIMEOUT_S,
    NOT_LET_IN,
    NotOpenedError,
    describe,
    open_hub,
    token_remedy,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from websockets.asyncio.client import ClientConnection

    from starsd_jetson.hub_address import HubAddress

_SILENCE_S = 30.0
"""Seconds without a piece after which a link counts as broken."""
_ATTEMPTS = 5
"""Connections in a row that bring nothing, after which the fetch gives up."""
_PAUSE_S = 1.0
_MOST_WORDS = 400
"""Most characters shown of what is wrong with a manifest: part of it may come from the hub."""
_NOT_FOUND, _UNAVAILABLE, _NO_SUCH_ROLE = 404, 503, 400
Progress = Callable[[int, int], None]
"""Told the bytes that are here, and those of the whole bundle."""


@dataclass(frozen=True)
class Fetched:
    """A bundle in the cache.

    Attributes:
        was_here: it lay there already, and nothing was fetched.
    """

    path: Path
    offered: OfferedBundle
    was_here: bool


class BundleFetch:
    """Fetches from one hub."""

    def __init__(
        self, address: HubAddress, progress: Progress, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._address = address
        self._progress = progress
        self._sleep = sleep

    async def offers(self) -> Sequence[OfferedBundle]:
        """What the hub offers.

        Raises:
            OfferError: nothing, or it cannot be asked.
        """
        async with self._connected() as (_, offers):
            return offers

    async def fetch(self, name: str) -> Fetched:
        """Bring a bundle into the cache, by its name or by its model's.

        Raises:
            OfferError: the hub has none like that, or it cannot be had.
            UsageError: several would do, or another bundle of that name is here.
            StarsdError: no room, or the files are not what the manifest lists.
        """
        bundle = choose(await self.offers(), name)
        target = bundles_dir() / bundle.name
        _require_no_other(target, bundle)
        if _is_here(target):
            return Fetched(target, bundle, was_here=True)
        with _arriving(bundle) as place:
            missing = bundle.size - sum(_size(place / str(index)) for index in range(len(bundle.files)))
            require_free_space(bundles_dir(), missing, f"the bundle {bundle.name}")
            await self._bring(bundle, place)
            _put_together(bundle, place, target)
        return Fetched(target, bundle, was_here=False)

    async def _bring(self, bundle: OfferedBundle, place: Path) -> None:
        failures = 0
        while not _is_whole(bundle, place):
            before = _arrived(bundle, place)
            try:
                await self._bring_once(bundle, place)
            except (OfferError, ConnectionClosed, asyncio.TimeoutError) as error:
                failures = failures + 1 if _arrived(bundle, place) == before else 0
                if isinstance(error, _FinalError) or failures == _ATTEMPTS:
                    reason = str(error) if isinstance(error, OfferError) else self._ending(error)
                    raise OfferError(f"{reason}; what came is kept: the same command goes on from there") from None
                await self._sleep(_PAUSE_S)

    async def _bring_once(self, bundle: OfferedBundle, place: Path) -> None:
        """Over one connection, as far as that goes."""
        async with self._connected() as (connection, offers):
            if bundle not in offers:
                raise _FinalError(f"the hub offers another {bundle.name} now, or none")
            for index, file in enumerate(bundle.files):
                with (place / str(index)).open("ab") as arrived:
                    at = arrived.tell()
                    if at < file.size:
                        await connection.send(msgspec.msgpack.encode(Fetch(bundle.name, file.name, at)))
                    while at < file.size:
                        piece = await asyncio.wait_for(connection.recv(), _SILENCE_S)
                        if isinstance(piece, str) or not 0 < len(piece) <= file.size - at:
                            raise _FinalError("the hub sends something else than the file")
                        arrived.write(piece)
                        at += len(piece)
                        self._progress(_arrived(bundle, place, index, at), bundle.size)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[ClientConnection, Sequence[OfferedBundle]]]:
        try:
            connection = await open_hub(
                self._address.url, self._address.headers, OFFER_SUBPROTOCOL, max_size=MAX_LIST_BYTES, max_queue=2
            )
        except NotOpenedError as error:
            raise self._explained(error) from None
        try:
            yield connection, await self._list(connection)
        finally:
            try:
                await asyncio.wait_for(connection.close(), CLOSE_TIMEOUT_S)
            except asyncio.TimeoutError:
                connection.transport.abort()

    async def _list(self, connection: ClientConnection) -> Sequence[OfferedBundle]:
        try:
            message = await asyncio.wait_for(connection.recv(), _SILENCE_S)
        except (ConnectionClosed, asyncio.TimeoutError) as error:
            raise OfferError(f"{self._ending(error)}; it has not said what it offers: try again") from None
        return decode_list(message if isinstance(message, bytes) else b"").bundles

    def _ending(self, error: BaseException) -> str:
        """What ended a connection, in the hub's words where it gave some."""
        said = error.rcvd.reason if isinstance(error, ConnectionClosed) and error.rcvd is not None else ""
        return f"the hub {self._address.url} was lost ({printable(said) or describe(error, self._address.url)})"

    def _explained(self, error: NotOpenedError) -> OfferError:
        url, status = self._address.url, error.status
        if status in NOT_LET_IN:
            return _FinalError(
                f"the hub {url} does not let this device in: {token_remedy(bool(self._address.headers))}"
            )
        if status == _NOT_FOUND:
            return _FinalError(f"the hub {url} offers no bundles: start it with `run-draft ... --offer BUNDLE`")
        if status == _NO_SUCH_ROLE:
            return _FinalError(f"the hub {url} is of a version that offers no bundles: copy the bundle's directory")
        if status == _UNAVAILABLE:
            return OfferError(f"the hub {url} hands bundles to as many as it may: try later")
        return OfferError(f"there is no hub at {url} ({error}): start one with `run-draft`, or give another address")


class _FinalError(OfferError):
    """Trying again would not help."""


def choose(offers: Sequence[OfferedBundle], name: str) -> OfferedBundle:
    """The bundle of this name, or the only one of the model of this name.

    Raises:
        OfferError: there is none.
        UsageError: there are several of the model.
    """
    _require_sound(offers)
    exact = [bundle for bundle in offers if bundle.name == name]
    found = exact or [bundle for bundle in offers if bundle.name.startswith(f"{name}-")]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"the hub offers several of {name}: name one of {', '.join(bundle.name for bundle in found)}")
    names = [bundle.name for bundle in offers]
    raise OfferError(f"the hub offers no {name!r}{did_you_mean(name, names) or f': it offers {_listed(names)}'}")


def _require_sound(offers: Sequence[OfferedBundle]) -> None:
    """Beyond what the types say: of two files of one name, one would stand in for the other after it was checked."""
    for bundle in offers:
        names = [file.name for file in bundle.files]
        if len(names) != len(set(names)) or MANIFEST_NAME not in names:
            raise OfferError(f"the hub's list of files of {bundle.name} cannot be right: nothing is fetched")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


def _require_no_other(target: Path, bundle: OfferedBundle) -> None:
    """A hub does not replace what a user has made or fetched elsewhere."""
    require_replaceable(target, MANIFEST_NAME, "bundle")
    manifest = target / MANIFEST_NAME
    if manifest.is_file() and sha256_file(manifest) != bundle.manifest_sha256:
        raise UsageError(
            f"another {bundle.name} is here already: `starsd-edge rm {bundle.name}` makes way for the hub's"
        )


def _is_here(target: Path) -> bool:
    """Whether it is whole."""
    if not (target / MANIFEST_NAME).is_file():
        return False
    try:
        load_bundle(target)
    except BundleError:
        return False
    return True


@contextmanager
def _arriving(bundle: OfferedBundle) -> Iterator[Path]:
    """Where its files come in, by their number; for one process at a time."""
    place = cache_dir() / "arriving" / bundle.manifest_sha256[:32]
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"cannot write to {place}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _forget_what_is_too_long(bundle, place)
        yield place
    except BlockingIOError:
        raise UsageError(f"another command fetches {bundle.name} into this cache: wait for it") from None
    finally:
        os.close(lock)


def _forget_what_is_too_long(bundle: OfferedBundle, place: Path) -> None:
    for index, file in enumerate(bundle.files):
        if _size(place / str(index)) > file.size:
            (place / str(index)).unlink()


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _arrived(bundle: OfferedBundle, place: Path, index: int = -1, at: int = 0) -> int:
    """Bytes that are here; of the file of this number so many, which may not be on the disk yet."""
    return sum(at if number == index else _size(place / str(number)) for number in range(len(bundle.files)))


def _is_whole(bundle: OfferedBundle, place: Path) -> bool:
    return all(
        (place / str(index)).is_file() and _size(place / str(index)) == file.size
        for index, file in enumerate(bundle.files)
    )


def _put_together(bundle: OfferedBundle, place: Path, target: Path) -> None:
    """Check what came against the manifest, and put it in place whole; what is not as it should be goes."""
    try:
        with staged_directory(target) as staging:
            for index, file in enumerate(bundle.files):
                (place / str(index)).rename(staging / file.name)
                (staging / file.name).chmod(0o644)
            _require_whole(bundle, staging)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        with suppress(OSError):  # another fetch goes on there
            place.parent.rmdir()


def _require_whole(bundle: OfferedBundle, staging: Path) -> None:
    if sha256_file(staging / MANIFEST_NAME) != bundle.manifest_sha256:
        raise OfferError(f"the hub sent another manifest of {bundle.name} than it named: nothing is kept of it")
    try:
        listed = load_bundle(staging, anew=True).manifest.files
    except BundleError as error:
        why = printable(str(error))[:_MOST_WORDS]
        raise OfferError(f"what the hub sent is not what its manifest lists, and is not kept: {why}") from None
    if extra := [file.name for file in bundle.files if file.name not in {*listed, MANIFEST_NAME}]:
        raise OfferError(f"the hub sent {extra[0]}, which the manifest does not list: nothing is kept of it")
