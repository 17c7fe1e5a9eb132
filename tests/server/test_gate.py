"""Who may come in: by the Host, the Origin and the token of a request."""

from __future__ import annotations

import pytest
from websockets.datastructures import Headers

from starsd_server.gate import HubKey, owner_of, shown_ticket, turn_away

TOKEN = "correct-horse"


def status(token: str | None, **headers: str | list[str]) -> int | None:
    every = {name: values if isinstance(values, list) else [values] for name, values in headers.items()}
    pairs = [(name, value) for name, values in every.items() for value in values]
    away = turn_away(Headers(pairs), [] if token is None else [HubKey("another"), HubKey(token)])
    return None if away is None else int(away.status)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8317",
        "127.1.2.3:8317",
        "localhost",
        "LocalHost:8317",
        "localhost.",
        "[::1]",
        "[::1]:8317",
    ],
)
def test_a_hub_without_a_token_answers_to_the_names_of_this_machine(host: str) -> None:
    assert status(None, Host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8317",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "192.168.1.20:8317",
        "0.0.0.0",  # noqa: S104
        "[::]",
        "[::1",
        "evil.example@127.0.0.1.evil.example",
        "127.0.0.1, evil.example",
        "",
        ["127.0.0.1", "evil.example"],
        [],
    ],
)
def test_and_to_no_other_so_that_no_page_in_a_browser_reads_it(host: str | list[str]) -> None:
    assert status(None, Host=host) == 421


def test_with_a_token_any_name_will_do() -> None:
    assert status(TOKEN, Host="hub.example", Authorization=f"Bearer {TOKEN}") is None
    assert status(TOKEN, Host="hub.example") == 401


def test_a_browser_is_refused_whatever_it_shows() -> None:
    assert status(None, Host="localhost", Origin="http://localhost") == 403
    assert status(TOKEN, Host="localhost", Origin="null", Authorization=f"Bearer {TOKEN}") == 403


def test_the_owner_is_the_key_that_was_shown_and_does_not_tell_it() -> None:
    keys = [HubKey("first-secret"), HubKey("second-secret")]
    owners = {owner_of(Headers({"Authorization": f"Bearer {key.token}"}), keys) for key in keys}
    assert owners == {key.owner for key in keys}
    assert len(owners) == 2
    assert not any("secret" in owner for owner in owners)
    assert "secret" not in repr(keys)
    assert owner_of(Headers(), []) == "anyone"


def test_a_ticket_is_shown_once() -> None:
    assert shown_ticket(Headers([("Starsd-Ticket", " abc ")])) == "abc"
    assert shown_ticket(Headers([("starsd-ticket", "abc"), ("Starsd-Ticket", "abc")])) == ""
    assert shown_ticket(Headers()) == ""
