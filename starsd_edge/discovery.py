"""Hubs that announce themselves on the local network (multicast DNS), and targets that look for one: `--hub auto`.

Anybody on the network can announce anything, and a target shows its token to the hub it connects to. So a hub announces
with each address a proof that it knows the token: a keyed digest (HMAC-SHA256) of address and port. A target takes only
an address with the proof for its own token. Who copies an announcement copies the address with it. (The proof lets who
sees it try weak tokens: a token has to be a random one, as `run-draft --make-token` writes it. And it binds the
address, not the machine: over ws://, who takes the hub's address over gets the token, as with an address that a user
gives.)

Nothing is sent or heard unless a user asks for it.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from starsd_edge.errors import UsageError

AUTO = "auto"
"""In the place of a hub's address: the one that shows this target's token."""
SERVICE = "_starsd-edge._tcp.local."
LOOKING_S = 3.0
"""Seconds for which hubs are looked for: an answer takes milliseconds, and lost ones are sent again after a second."""
_MOST_HUBS = 64
_MOST_ADDRESSES = 8
_ANSWER_MS = 1000
_CONNECT_S = 1.0
_PURPOSE = b"starsd-edge announcement v1"
_SHOWN = 63


@dataclass(frozen=True)
class Announcement:
    """What a hub says of itself, or somebody in its name.

    Attributes:
        name: of the hub's host, for people.
        port: it listens at.
        proofs: by address, the digest that shows the token.
    """

    name: str
    port: int
    proofs: dict[str, str]

    @classmethod
    def of(cls, name: str, addresses: Sequence[str], port: int, token: str) -> Announcement:
        """For a hub with this token."""
        return cls(name, port, {address: proof_of(token, address, port) for address in addresses[:_MOST_ADDRESSES]})

    def shown_addresses(self, token: str) -> list[str]:
        """The addresses with the right proof for this token."""
        return [
            address
            for address, proof in self.proofs.items()
            if hmac.compare_digest(proof.encode(), proof_of(token, address, self.port).encode())
        ]


def proof_of(token: str, address: str, port: int) -> str:
    """The digest by which a hub at this address shows that it knows the token."""
    place = f"{ipaddress.ip_address(address).compressed} {port}"
    return hmac.new(token.encode(), _PURPOSE + b"\0" + place.encode(), hashlib.sha256).hexdigest()


def accepts(address: str, port: int) -> bool:
    """Whether a connection to it succeeds; nothing is sent. Blocks for a second at most."""
    try:
        with socket.create_connection((address, port), timeout=_CONNECT_S):
            return True
    except OSError:
        return False


def choose_hub(found: Sequence[Announcement], token: str | None, accepts: Callable[[str, int], bool] = accepts) -> str:
    """The address of the one hub that shows this token, as --hub takes it.

    A hub in several networks shows an address in each, and not all of them lead there from here: the first that accepts
    a connection is taken, and where none does the first.

    Args:
        accepts: tells whether a connection to an address and port succeeds; asked only where there are several.

    Raises:
        UsageError: there is none, or there are several; says which there are.
    """
    names = ", ".join(sorted({_shown(each) for each in found}))
    if token is None:
        seen = f"seen: {names}" if found else "none is seen"
        raise UsageError(f"--hub auto takes a hub that shows your token: give --token-file ({seen})")
    hubs = {_place(shown[0], each.port): each for each in found if (shown := each.shown_addresses(token))}
    if len(hubs) == 1:
        hub = next(iter(hubs.values()))
        addresses = hub.shown_addresses(token)
        usable = (each for each in addresses if len(addresses) == 1 or accepts(each, hub.port))
        return _place(next(usable, addresses[0]), hub.port)
    if hubs:
        places = ", ".join(f"{_shown(each)} at {place}" for place, each in sorted(hubs.items()))
        raise UsageError(f"several hubs show this token: name one with --hub ({places})")
    if found:
        raise UsageError(f"no hub here shows this token (seen: {names}): name the hub, or copy its token file anew")
    raise UsageError(
        "no hub is announced on this network: start it with `run-draft --announce`, or name it (multicast does not "
        "cross routers, and firewalls and containers often stop it: UDP port 5353)"
    )


def _place(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _shown(announcement: Announcement) -> str:
    """A name from the network, for a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in announcement.name[:_SHOWN])


def addresses_to_announce(host: str) -> list[str]:
    """Of this machine, by the address that the hub listens on.

    Raises:
        UsageError: nobody else can reach it.
    """
    import psutil

    bound = ipaddress.ip_address(host)
    if not bound.is_unspecified:
        candidates = [bound]
    else:
        family = socket.AF_INET if bound.version == 4 else socket.AF_INET6
        every = (each for addresses in psutil.net_if_addrs().values() for each in addresses if each.family == family)
        candidates = [ipaddress.ip_address(each.address.partition("%")[0]) for each in every]
    reachable = [str(each) for each in candidates if not each.is_loopback and not each.is_link_local]
    if not reachable:
        raise UsageError(f"--announce is for hubs that other machines reach, and {host} is not: give --host")
    return reachable


@contextmanager
def announced(announcement: Announcement, interfaces: Sequence[str] | None = None) -> Iterator[None]:
    """Announce a hub while the block runs. Not from an event loop: it blocks for a second.

    Args:
        interfaces: addresses of this machine to speak on; None for all.

    Raises:
        UsageError: another hub of this machine is announced at this port, or there is no network.
    """
    from zeroconf import Error, InterfaceChoice, ServiceInfo, Zeroconf

    label = f"{announcement.name[: _SHOWN - 6]}-{announcement.port}".replace(".", "-")
    info = ServiceInfo(
        SERVICE,
        f"{label}.{SERVICE}",
        port=announcement.port,
        properties=written(announcement),
        parsed_addresses=list(announcement.proofs),
        server=f"{label}.local.",
    )
    try:
        network = Zeroconf(interfaces=InterfaceChoice.All if interfaces is None else list(interfaces))
    except OSError as error:
        raise UsageError(f"cannot announce the hub: {error.strerror}") from None
    try:
        try:
            network.register_service(info)
        except (Error, OSError) as error:
            raise UsageError(
                f"cannot announce the hub ({error or type(error).__name__}): leave --announce out"
            ) from None
        yield
    finally:
        network.close()


def written(announcement: Announcement) -> dict[str, str]:
    """The TXT record: "name", and for each address "p1", "p2" ... "ADDRESS PROOF"."""
    proofs = enumerate(announcement.proofs.items(), 1)
    return {"v": "1", "name": announcement.name[:_SHOWN], **{f"p{number}": " ".join(pair) for number, pair in proofs}}


def read(properties: dict[bytes, bytes | None], port: int | None) -> Announcement | None:
    """A TXT record that somebody sent; None where it is none of ours."""
    if not port or not 0 < port < 1 << 16 or properties.get(b"v") != b"1":
        return None
    proofs: dict[str, str] = {}
    for number in range(1, _MOST_ADDRESSES + 1):
        text = (properties.get(f"p{number}".encode()) or b"").decode("ascii", errors="replace")
        address, _, proof = text.partition(" ")
        try:
            proofs[ipaddress.ip_address(address).compressed] = proof
        except ValueError:
            continue
    name = (properties.get(b"name") or b"?").decode("utf-8", errors="replace")
    return Announcement(name, port, proofs)


def find_hubs(seconds: float = LOOKING_S, interfaces: Sequence[str] | None = None) -> list[Announcement]:
    """What is announced on the network. Blocks for so many seconds; not for an event loop.

    Raises:
        UsageError: there is no network.
    """
    from zeroconf import Error, InterfaceChoice, ServiceBrowser, ServiceInfo, ServiceStateChange, Zeroconf

    names: dict[str, None] = {}

    def heard(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is ServiceStateChange.Added and len(names) < _MOST_HUBS:
            names[name] = None

    def asked(name: str) -> ServiceInfo | None:
        try:
            return network.get_service_info(SERVICE, name, timeout=_ANSWER_MS)
        except Error:  # no name of a service: anybody can answer with one
            return None

    try:
        network = Zeroconf(interfaces=InterfaceChoice.All if interfaces is None else list(interfaces))
    except OSError as error:
        raise UsageError(f"cannot look for hubs: {error.strerror}") from None
    try:
        browser = ServiceBrowser(network, SERVICE, handlers=[heard])
        time.sleep(seconds)
        browser.cancel()
        with ThreadPoolExecutor(_MOST_HUBS) as pool:  # at once: names that nobody answers for take no turn of others
            infos = list(pool.map(asked, list(names)))
    finally:
        network.close()
    found = [read(info.properties, info.port) for info in infos if info is not None]
    return [each for each in found if each is not None]
