import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.transport import handshake as greeting
from blockwright.transport import sessions
from blockwright.transport.address import PeerId
from blockwright.transport.errors import AddressError, HandshakeRefused
from blockwright.transport.handshake import Greeting, JoinRequest, Lane
from blockwright.transport.sessions import Sessions
from blockwright.transport.wire import WireError

A, B = PeerId("a", 1), PeerId("b", 3)


@pytest.mark.parametrize("lane", list(Lane))
def test_a_greeting_and_its_answers_can_be_read(lane):
    said = Greeting(A, B, lane)
    assert greeting.parse(said.pack()) == said
    assert greeting.parse_answer(greeting.pack_welcome(B, A)) == (B, A)
    with pytest.raises(HandshakeRefused, match="for a reason"):
        greeting.parse_answer(greeting.pack_refusal("for a reason"))


def test_asking_to_join():
    assert [greeting.parse(asked.pack()) for asked in (JoinRequest("w9"), JoinRequest("w9", "ab1"))] == [
        JoinRequest("w9"),
        JoinRequest("w9", "ab1"),
    ]
    with pytest.raises(AddressError):
        JoinRequest("w 9").pack()


def test_another_version_is_named_whatever_else_it_says():
    with pytest.raises(
        HandshakeRefused, match=f"version 99 was offered and this node speaks {greeting.VERSION}; run the same"
    ):
        greeting.parse(greeting.GREETING + b"blockwright 99 in words of the future")


@given(st.binary(max_size=600), st.sampled_from([b"", greeting.GREETING, greeting.GREETING + b"blockwright 1 "]))
def test_garbage_is_no_greeting(data, start):
    try:
        said = greeting.parse(start + data)
    except (WireError, HandshakeRefused):
        return
    assert isinstance(said, JoinRequest | Greeting)


@given(st.binary(max_size=600))
def test_garbage_is_no_answer(data):
    with pytest.raises((WireError, HandshakeRefused, AddressError)):
        greeting.parse_answer(data)


def test_a_reason_stays_one_short_printable_line():
    answer = greeting.pack_refusal("a\nb\x1b[31m" + "x" * 10_000)
    assert len(answer) <= greeting.LONGEST
    with pytest.raises(HandshakeRefused, match=r"^a\?b\?\[31mx+$"):
        greeting.parse_answer(answer)


def test_a_connection_for_another_node_is_refused():
    table = Sessions(B)
    for wrong in (PeerId("c", 3), PeerId("b", 2), PeerId("b", 4)):
        with pytest.raises(HandshakeRefused, match=f"this is node b#3, not {wrong}; its address is out of date"):
            table.admit(b"1", Greeting(A, wrong, Lane.CONTROL))
    assert table.peers == {}


def test_a_second_bearer_of_a_name_is_refused_for_ever():
    table = Sessions(B)
    for lane in Lane:
        table.admit(lane.value.encode(), Greeting(A, B, lane))
    with pytest.raises(HandshakeRefused, match="a#1 is connected already"):
        table.admit(b"second", Greeting(A, B, Lane.CONTROL))
    table.admit(b"link again", Greeting(A, B, Lane.LINK))
    table.admit(b"pulse again", Greeting(A, B, Lane.PULSE))
    table.admit(b"next life", Greeting(PeerId("a", 2), B, Lane.CONTROL))
    table.release(A)
    assert table.peers[b"control"] == A, "what it still sends must be known as its, to be fenced"
    with pytest.raises(HandshakeRefused, match="b#3 has given a#1 up"):
        table.admit(b"second", Greeting(A, B, Lane.CONTROL))


def test_a_peer_given_up_before_its_pulse_came_is_notified(monkeypatch):
    """Else it would never learn that it is over."""
    monkeypatch.setattr(sessions, "MOST_PAST", 2)
    table = Sessions(B)
    for incarnation in (1, 2, 3):
        table.release(PeerId("a", incarnation))
    for incarnation in (2, 3):
        with pytest.raises(HandshakeRefused, match=f"b#3 has given a#{incarnation} up"):
            table.admit(b"late", Greeting(PeerId("a", incarnation), B, Lane.PULSE))
    assert table.peers == {}


def test_only_so_many_connections_are_remembered(monkeypatch):
    monkeypatch.setattr(sessions, "MOST", 3)
    table = Sessions(B)
    for i in range(1, 10):
        over = PeerId("a", i)
        table.admit(b"%d" % i, Greeting(over, B, Lane.CONTROL))
        table.release(over)
        assert len(table.peers) <= 3
    for i in range(3):
        table.admit(b"x%d" % i, Greeting(PeerId("x", i + 1), B, Lane.CONTROL))
    with pytest.raises(HandshakeRefused, match="3 connections are open"):
        table.admit(b"x4", Greeting(PeerId("x", 4), B, Lane.CONTROL))
