import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.transport import handshake as greeting
from blockwright.transport import sessions
from blockwright.transport.address import PeerId
from blockwright.transport.errors import AddressError, HandshakeRefused, ReleaseRefused
from blockwright.transport.handshake import SPOKEN, Admission, Greeting, JoinRequest, Lane, Versions
from blockwright.transport.sessions import Sessions
from blockwright.transport.wire import WireError

A, B = PeerId("a", 1), PeerId("b", 3)


@pytest.mark.parametrize("lane", list(Lane))
def test_a_greeting_and_its_answers_can_be_read(lane):
    for said in (Greeting(A, B, lane), Greeting(A, B, lane, release="0.7.0.dev0")):
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


@pytest.mark.parametrize(
    ("mine", "offered", "chosen"),
    [
        (Versions(5, 6), Versions(5, 6), 6),
        (Versions(5, 6), Versions(6, 7), 6),
        (Versions(5, 6), Versions(4, 5), 5),
        (Versions(5, 6), Versions(6, 6), 6),
        (Versions(6, 6), Versions(5, 6), 6),
        (Versions(1, 9), Versions(3, 4), 4),
    ],
)
def test_the_highest_common_version_is_chosen(mine, offered, chosen):
    assert mine.common(offered) == offered.common(mine) == chosen


@pytest.mark.parametrize(("offered", "older"), [(Versions(7, 8), "5-6"), (Versions(3, 4), "3-4"), (Versions(4, 4), "4")])
def test_releases_too_far_apart_are_named(offered, older):
    with pytest.raises(
        HandshakeRefused,
        match=f"^protocol {offered} was offered and this node speaks 5-6, which is too far apart; upgrade the release that "
        f"speaks {older} first, by one release at a time$",
    ):
        Versions(5, 6).common(offered)


@pytest.mark.parametrize("text", ["", "6-5", "-1", "1-", "1-2-3", "x", "9999999", "1 2"])
def test_what_names_no_versions(text):
    with pytest.raises(WireError, match="names no versions"):
        Versions.parse(text)


def test_another_version_is_refused_whatever_else_it_says():
    far = Versions(SPOKEN.highest + 1, SPOKEN.highest + 2)
    with pytest.raises(HandshakeRefused, match=f"protocol {far} was offered and this node speaks {SPOKEN}"):
        greeting.parse(greeting.GREETING + f"blockwright {far} in words of the future".encode())
    with pytest.raises(HandshakeRefused, match="protocol 4 was offered"):  # as it was said before versions were offered
        greeting.parse(greeting.GREETING + b"blockwright 4 control a#1 b#3")
    with pytest.raises(HandshakeRefused, match="protocol 99 was offered"):
        greeting.parse_answer(greeting.pack_welcome(B, A, 99))
    with pytest.raises(HandshakeRefused, match="protocol 99 was offered"):
        greeting.parse_admission(Admission(B, A, 1.0, version=99).pack())


def test_a_later_release_may_say_more():
    near = Versions(SPOKEN.highest, SPOKEN.highest + 1)
    said = greeting.GREETING + f"blockwright {near} control a#1 b#3 build=7 zone=a".encode()
    assert greeting.parse(said) == Greeting(A, B, Lane.CONTROL, near)
    asked = greeting.GREETING + f"blockwright {near} join w9 ab1 build=7".encode()
    assert greeting.parse(asked) == JoinRequest("w9", "ab1", near)
    assert greeting.parse_answer(greeting.pack_welcome(B, A) + b" build=7") == (B, A)
    admission = Admission(B, A, 1.5)
    assert greeting.parse_admission(admission.pack() + b" build=7") == admission


def test_what_a_peer_said_is_known_while_it_lives():
    table = Sessions(B)
    said = Greeting(A, B, Lane.CONTROL, Versions(SPOKEN.highest, SPOKEN.highest + 1), "0.7.0")
    table.admit(b"1", said)
    assert table.greetings == {A: said}
    table.release(A)
    assert table.greetings == {}


@pytest.mark.parametrize(
    ("words", "name", "release"),
    [
        ("join w9 secret release=0.9.0", "w9", "0.9.0"),
        ("control a#1 b#3 release=0.9.0", "a#1", "0.9.0"),
        ("control a#1 b#3", "a#1", ""),
        ("", "", ""),
        ("join w9 release=<b>", "w9", ""),
    ],
)
def test_a_refused_release_is_named(words, name, release):
    with pytest.raises(ReleaseRefused) as refused:
        greeting.parse(greeting.GREETING + f"blockwright 99 {words}".encode())
    assert (refused.value.name, refused.value.release) == (name, release)


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
