from __future__ import annotations

import pytest

from blockwright.runtime.cluster.tickets import MemberTicket, Tickets
from blockwright.transport.address import PeerId
from blockwright.transport.errors import HandshakeRefused
from blockwright.transport.handshake import LONGEST, ReturnRequest, parse

KEY = "ab" * 32
TICKETS = Tickets(b"secret")
TICKET = MemberTicket(PeerId("w0", 3), "worker", True, KEY, 1_000)


def test_a_ticket_says_what_was_put_into_it() -> None:
    assert TICKETS.check(TICKETS.issue(TICKET), KEY, 999.0) == TICKET
    bare = MemberTicket(PeerId("a.b-c_d", 10**17), "", False, "", 5)
    assert Tickets(b"secret").check(TICKETS.issue(bare), "", 0.0) == bare


def test_a_ticket_fits_a_greeting() -> None:
    longest = MemberTicket(PeerId("n" * 64, 10**17), "predictor", True, KEY, 10**11)
    request = ReturnRequest(longest.member, 10**17, 10**9, TICKETS.issue(longest))
    assert len(request.pack()) < LONGEST
    assert parse(request.pack()) == request


@pytest.mark.parametrize(
    ("text", "key", "now", "sentence"),
    [
        (TICKETS.issue(TICKET), KEY, 1_000.0, "the ticket of w0#3 has expired"),
        (TICKETS.issue(TICKET), "cd" * 32, 0.0, "the ticket of w0#3 belongs to another key"),
        (TICKETS.issue(TICKET), "", 0.0, "the ticket of w0#3 belongs to another key"),
        (Tickets(b"another").issue(TICKET), KEY, 0.0, "not of this cluster"),
        (TICKETS.issue(TICKET).replace(":3:", ":4:"), KEY, 0.0, "not of this cluster"),
        (TICKETS.issue(TICKET)[:-1], KEY, 0.0, "not of this cluster"),
        (TICKETS.issue(TICKET)[:60], KEY, 0.0, "cannot be read"),
        ("", KEY, 0.0, "cannot be read"),
        ("bwt1::::::x:", KEY, 0.0, "cannot be read"),
        ("-", "", 0.0, "cannot be read"),
    ],
)
def test_what_is_no_valid_ticket_is_refused_with_a_sentence(text: str, key: str, now: float, sentence: str) -> None:
    with pytest.raises(HandshakeRefused, match=sentence):
        TICKETS.check(text, key, now)


def test_a_ticket_without_a_key_is_not_the_one_of_a_key() -> None:
    with pytest.raises(HandshakeRefused, match="another key"):
        TICKETS.check(TICKETS.issue(MemberTicket(PeerId("w0", 3), "", False, "", 1_000)), KEY, 0.0)
