"""The address of a hub, and of the port of its own that the hub sends a target on to."""

from __future__ import annotations

import pytest

from starsd_jetson.hub_address import HubAddress
from starsd_jetson.hub_endings import unreachable


@pytest.mark.parametrize(
    ("url", "there"),
    [
        ("ws://192.168.1.20:8317", "ws://192.168.1.20:9003"),
        ("ws://192.168.1.20", "ws://192.168.1.20:9003"),
        ("wss://hub.example/", "wss://hub.example:9003/"),
        ("ws://[::1]:8317", "ws://[::1]:9003"),
        ("ws://[fe80::1%25eth0]:8317", "ws://[fe80::1%25eth0]:9003"),
        ("wss://proxy.example:443/star?site=2", "wss://proxy.example:9003/star?site=2"),
    ],
)
def test_a_port_of_its_own_is_on_the_same_host_by_the_same_scheme(url: str, there: str) -> None:
    own = HubAddress.parse(url, "secret-word").at_own_port(9003, "tick-et")
    assert own.url == there
    assert own.headers == {"Authorization": "Bearer secret-word", "Starsd-Ticket": "tick-et"}


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("ws://desk", "ws://desk:8317"),
        ("desk", "ws://desk:8317"),
        ("desk.local", "ws://desk.local:8317"),
        ("desk:8317", "ws://desk:8317"),
        ("desk:80", "ws://desk:80"),
        ("192.168.1.20", "ws://192.168.1.20:8317"),
        ("127.0.0.1:9000/star", "ws://127.0.0.1:9000/star"),
        ("[::1]", "ws://[::1]:8317"),
        ("[::1]:9000", "ws://[::1]:9000"),
        ("wss://desk", "wss://desk:8317"),
        ("ws://desk:", "ws://desk:8317"),
        ("ws://desk/star?site=2", "ws://desk:8317/star?site=2"),
        ("ws://192.168.1.20/", "ws://192.168.1.20:8317/"),
        ("ws://[::1]", "ws://[::1]:8317"),
        ("ws://[fe80::1%25eth0]/x", "ws://[fe80::1%25eth0]:8317/x"),
        ("WS://Desk", "ws://desk:8317"),
        ("wss://desk:443", "wss://desk:443"),
        ("ws://desk:80", "ws://desk:80"),
    ],
)
def test_an_address_without_a_port_means_that_of_hubs(url: str, meant: str) -> None:
    address = HubAddress.parse(url)
    assert address.url == meant
    note = "the address named no port, so 8317 was meant"
    assert (note in unreachable(address, "Connection refused")) == (":8317" in meant and ":8317" not in url)


def test_a_hub_without_a_token_still_gets_the_ticket() -> None:
    main = HubAddress.parse("ws://127.0.0.1:8317")
    assert main.headers == {}
    assert main.at_own_port(9003, "tick-et").headers == {"Starsd-Ticket": "tick-et"}


def test_secrets_are_not_shown() -> None:
    shown = repr(HubAddress.parse("ws://127.0.0.1:8317", "secret-word").at_own_port(9003, "tick-et"))
    assert "secret-word" not in shown
    assert "tick-et" not in shown
