"""Hubs that are found on the local network: only one that shows this target's token is taken."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from starsd_edge import discovery
from starsd_edge.discovery import (
    Announcement,
    addresses_to_announce,
    announced,
    choose_hub,
    find_hubs,
    proof_of,
    read,
    written,
)
from starsd_edge.errors import UsageError
from starsd_jetson.api import hub_address

TOKEN = "a" * 64


def desk(token: str = TOKEN, *addresses: str, name: str = "desk", port: int = 8317) -> Announcement:
    return Announcement.of(name, addresses or ("192.168.1.20",), port, token)


def heard(announcement: Announcement) -> Announcement:
    """After its way over the network."""
    properties = {name.encode(): text.encode() for name, text in written(announcement).items()}
    got = read(properties, announcement.port)
    assert got is not None
    return got


def test_the_hub_that_shows_the_token_is_taken() -> None:
    others = [heard(desk("b" * 64, "192.168.1.30", name="other")), Announcement("rogue", 8317, {"10.0.0.9": "0" * 64})]
    assert choose_hub([*others, heard(desk())], TOKEN) == "192.168.1.20:8317"
    assert choose_hub([heard(desk(TOKEN, "fd00::5"))], TOKEN) == "[fd00::5]:8317"
    twice = [heard(desk()), heard(desk())]
    assert choose_hub(twice, TOKEN) == "192.168.1.20:8317", "one hub that is heard twice"


def test_of_several_networks_the_first_that_leads_to_the_hub_is_taken() -> None:
    asked: list[str] = []

    def accepts(address: str, port: int) -> bool:
        asked.append(f"{address} {port}")
        return address == "10.0.0.5"

    ours = heard(desk(TOKEN, "192.168.9.9", "10.0.0.5", "fd00::5"))
    ours.proofs["10.6.6.6"] = "0" * 64
    assert choose_hub([ours, ours], TOKEN, accepts) == "10.0.0.5:8317"
    assert asked == ["192.168.9.9 8317", "10.0.0.5 8317"]
    assert choose_hub([ours], TOKEN, lambda address, port: False) == "192.168.9.9:8317", "the link says what is wrong"
    assert choose_hub([ours], TOKEN, lambda address, port: address == "10.6.6.6") == "192.168.9.9:8317", "no proof"


class HostileNetwork:
    """In the place of Zeroconf: answers with names of no service, and with none for the others."""

    def __init__(self, interfaces: object) -> None:
        self.all_asked = threading.Barrier(HOSTILE_NAMES)

    def get_service_info(self, kind: str, name: str, timeout: float) -> None:
        from zeroconf import ServiceInfo

        self.all_asked.wait(timeout=60)  # breaks where one waits for the other
        ServiceInfo(kind, name)  # refuses it, as the real one does

    def close(self) -> None:
        pass


HOSTILE_NAMES = 64
"""As many as are asked for."""


class HostileBrowser:
    def __init__(self, network: HostileNetwork, kind: str, handlers: list[Callable[..., None]]) -> None:
        from zeroconf import ServiceStateChange

        names = ["evil", "x._other._tcp.local.", "\x1b[2J", *(f"n{number}.{kind}" for number in range(200))]
        for name in names:
            handlers[0](network, kind, name, ServiceStateChange.Added)

    def cancel(self) -> None:
        pass


def test_names_that_are_none_and_names_nobody_answers_for_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zeroconf", reason="not run: no zeroconf (pip install '.[discover]')")
    monkeypatch.setattr("zeroconf.Zeroconf", HostileNetwork)
    monkeypatch.setattr("zeroconf.ServiceBrowser", HostileBrowser)
    assert find_hubs(0) == []


def test_a_copied_announcement_leads_to_the_hub_it_was_copied_from() -> None:
    ours = heard(desk())
    moved = Announcement("desk", 8317, {"10.0.0.9": ours.proofs["192.168.1.20"]})
    other_port = Announcement("desk", 9000, ours.proofs)
    for rogue in (moved, other_port):
        with pytest.raises(UsageError, match="no hub here shows this token"):
            choose_hub([rogue], TOKEN)
        assert choose_hub([rogue, ours], TOKEN) == "192.168.1.20:8317"


@pytest.mark.parametrize(
    ("found", "token", "says"),
    [
        ([], TOKEN, "no hub is announced on this network: start it with `run-draft --announce`"),
        ([], None, r"give --token-file \(none is seen\)"),
        ([desk()], None, r"give --token-file \(seen: desk\)"),
        ([desk("b" * 64)], TOKEN, r"shows this token \(seen: desk\)"),
        ([desk(), desk(TOKEN, "10.0.0.1", name="attic")], TOKEN, "attic at 10.0.0.1:8317, desk at 192.168.1.20:8317"),
    ],
)
def test_what_else_there_is_is_said_in_one_line(found: list[Announcement], token: str | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        choose_hub(found, token)


@pytest.mark.parametrize(
    ("properties", "port"),
    [
        ({}, 8317),
        ({b"v": b"2"}, 8317),
        ({b"v": b"1"}, 0),
        ({b"v": b"1"}, None),
        ({b"v": b"1"}, 70000),
        ({b"v": None}, 8317),
    ],
)
def test_what_is_no_announcement_of_ours_is_passed_over(
    properties: dict[bytes, bytes | None], port: int | None
) -> None:
    assert read(properties, port) is None


def test_odd_records_do_no_harm() -> None:
    odd = {
        b"v": b"1",
        b"name": b"\x1b[2J\xff" + b"n" * 200,
        b"p1": b"127.0.0.1; rm -rf /",
        b"p2": b"\xff\xff",
        b"p3": None,
        b"p4": b"192.168.1.20",
        b"p5": b"::1 " + b"x" * 200,
        b"p9": f"10.0.0.1 {proof_of(TOKEN, '10.0.0.1', 8317)}".encode(),
    }
    got = read(odd, 8317)
    assert got is not None
    with pytest.raises(UsageError) as refused:
        choose_hub([got], TOKEN)
    assert "\x1b" not in str(refused.value)
    assert len(str(refused.value)) < 200


def test_only_addresses_that_others_reach_are_announced() -> None:
    assert addresses_to_announce("192.168.1.20") == ["192.168.1.20"]
    for own in ("127.0.0.1", "::1", "169.254.3.4"):
        with pytest.raises(UsageError, match="--announce is for hubs that other machines reach"):
            addresses_to_announce(own)


def test_auto_is_an_address_where_one_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("starsd_jetson.api.find_hubs", lambda: [heard(desk())])
    key = tmp_path / "key"
    key.write_text(TOKEN)
    key.chmod(0o600)
    assert hub_address("auto", key).url == "ws://192.168.1.20:8317"
    assert hub_address("ws://auto").url == "ws://auto:8317", "a host of that name"
    with pytest.raises(UsageError, match="give --token-file"):
        hub_address("auto")


def test_a_hub_on_a_real_network_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zeroconf", reason="not run: no zeroconf (pip install '.[discover]')")
    try:
        here = addresses_to_announce("0.0.0.0")[:1]  # noqa: S104 (nothing listens)
        ours = Announcement.of("desk", here, 8317, token := secrets.token_hex(32))
        with announced(ours, here):
            found = find_hubs(discovery.LOOKING_S, here)
    except UsageError as error:
        pytest.skip(f"not run: {error}")
    if not found:
        pytest.skip("not run: no multicast on this machine")
    assert choose_hub(found, token) == f"{here[0]}:8317"
