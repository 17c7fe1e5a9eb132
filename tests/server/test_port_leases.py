"""Who holds which port, and what a ticket is worth: once, for its owner, at its port, for five seconds."""

from __future__ import annotations

from itertools import count

import pytest

from starsd_server.dedicated_ports import PortLeases
from tests.support.wire import Clock


def leases(ports: range = range(9000, 9003)) -> tuple[PortLeases, Clock]:
    clock, numbers = Clock(), count(1)
    return PortLeases(ports, lambda: f"ticket-{next(numbers)}", clock), clock


def test_a_ticket_lets_its_owner_in_once_at_its_port() -> None:
    book, clock = leases()
    ticket = book.lease(9000, "alice")
    clock.now += 5.0
    assert book.redeem(9000, "alice", ticket)
    assert not book.redeem(9000, "alice", ticket)
    assert len(book) == 1


@pytest.mark.parametrize(
    ("port", "owner", "ticket"),
    [
        (9000, "alice", "ticket-2"),
        (9001, "alice", "ticket-1"),
        (9002, "alice", "ticket-1"),
        (9000, "mallory", "ticket-1"),
        (9000, "alice", ""),
        (9000, "alice", "ticket-"),
        (9000, "alice", "ticket-1\udce9"),
    ],
    ids=["another's", "at another's port", "at a free port", "another key", "none", "the beginning", "no text"],
)
def test_any_other_ticket_opens_nothing_and_spoils_nothing(port: int, owner: str, ticket: str) -> None:
    book, _ = leases()
    book.lease(9000, "alice")
    book.lease(9001, "alice")
    assert not book.redeem(port, owner, ticket)
    assert book.redeem(9000, "alice", "ticket-1")
    assert book.redeem(9001, "alice", "ticket-2")


def test_a_ticket_expires_and_its_port_with_it() -> None:
    book, clock = leases()
    ticket = book.lease(9000, "alice")
    assert book.overdue() == []
    clock.now += 5.01
    assert not book.redeem(9000, "alice", ticket)
    assert book.overdue() == [9000]
    book.give_back(9000)
    assert (book.overdue(), len(book)) == ([], 0)


def test_a_port_in_use_is_never_overdue() -> None:
    book, clock = leases()
    assert book.redeem(9000, "alice", book.lease(9000, "alice"))
    clock.now += 1e6
    assert book.overdue() == []


def test_a_ticket_of_an_earlier_lease_is_worth_nothing() -> None:
    book, _ = leases()
    old = book.lease(9000, "alice")
    book.give_back(9000)
    book.lease(9000, "alice")
    assert not book.redeem(9000, "alice", old)


def test_ports_are_handed_out_in_turn_so_that_one_rests_after_its_use() -> None:
    book, _ = leases()
    assert list(book.free()) == [9000, 9001, 9002]
    book.lease(9000, "alice")
    book.give_back(9000)
    assert list(book.free()) == [9001, 9002, 9000]
    book.lease(9002, "alice")  # 9001 was somebody else's
    assert list(book.free()) == [9000, 9001]
    book.lease(9000, "alice")
    book.lease(9001, "alice")
    assert list(book.free()) == []


def test_secrets_are_not_shown() -> None:
    book, _ = leases()
    book.lease(9000, "alice")
    assert "ticket-1" not in repr(vars(book))
