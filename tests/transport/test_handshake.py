"""Who gets in: identities, versions and keys, checked before a message passes."""

from __future__ import annotations

import asyncio

import pytest
import zmq

from blockwright.tests.claims import claim
from blockwright.tests.waiting import PATIENCE, until
from blockwright.transport import curve, outbound, wire
from blockwright.transport import handshake as greeting
from blockwright.transport.address import PeerId, is_loopback, keyed, own_address, split_key, tcp_parts
from blockwright.transport.curve import NodeKeys
from blockwright.transport.errors import AddressError, KeysError, PeerGone
from blockwright.transport.handshake import Greeting, Lane
from blockwright.transport.interface import UNREACHABLE
from blockwright.transport.sockets import SocketTransport

A, B = PeerId("a", 1), PeerId("b", 3)
ANY = "tcp://127.0.0.1:0"
KEYS = NodeKeys.generate()


@pytest.fixture
async def opened(recorder):
    """Makes started transports: ``opened(peer, listen, keys) -> (transport, recorder)``."""
    made = []

    def open_(peer, listen=ANY, keys=None):
        transport, at = SocketTransport(peer, listen, keys), recorder()
        transport.start(at)
        made.append(transport)
        return transport, at

    yield open_
    for transport in made:
        transport.close()


@pytest.fixture
def raw():
    """Makes sockets that are none of ours."""
    context, made = zmq.Context(), []

    def open_(kind):
        made.append(context.socket(kind))
        return made[-1]

    yield open_
    context.destroy(linger=0)


async def lost(at, cause):
    await at.until(lambda: at.causes != [])
    assert len(at.causes) == 1
    assert cause in at.causes[0], at.causes


async def test_a_port_that_changed_hands_gets_no_messages(opened):
    b, _ = opened(B)
    b.close()
    _, at_c = opened(PeerId("c", 1), b.endpoint)
    a, at_a = opened(A)
    a.connect(B, b.endpoint)
    a.send(B, b"not for c")
    await lost(at_a, "refused: this is node c#1, not b#3")
    assert at_c.messages == []
    with pytest.raises(PeerGone):
        a.send(B, b"more")


async def test_a_successor_at_the_same_port_gets_nothing_of_its_predecessor(opened):
    """A silent reconnect would deliver some messages here, lose others, and tell nobody."""
    b, at_b = opened(B)
    a, at_a = opened(A)
    a.connect(B, b.endpoint)
    a.send(B, b"1")
    await at_b.until(lambda: at_b.messages != [])
    b.close()
    _, at_next = opened(PeerId("b", 4), b.endpoint)
    while not at_a.causes:
        try:
            a.send(B, b"2")
        except PeerGone:
            break
        await asyncio.sleep(0.001)
    await lost(at_a, "disconnected")
    a.connect(PeerId("b", 4), b.endpoint)
    a.send(PeerId("b", 4), b"3")
    await at_next.until(lambda: at_next.messages != [])
    assert at_next.messages == [(A, b"3", [])]


async def test_two_with_one_name_and_number(opened):
    """A ROUTER ignores the second bearer of a routing id without a word (libzmq#4503, #2892)."""
    b, at_b = opened(B)
    first, _ = opened(A)
    second, at_second = opened(A)
    first.connect(B, b.endpoint)
    first.send(B, b"first")
    await at_b.until(lambda: at_b.messages != [])
    second.connect(B, b.endpoint)
    second.send(B, b"second")
    await lost(at_second, "refused: node a#1 is connected already")
    first.send(B, b"again")
    await at_b.until(lambda: len(at_b.messages) == 2)
    assert [body for _, body, _ in at_b.messages] == [b"first", b"again"]


async def test_another_version_is_refused_at_both_ends(opened, raw, caplog):
    b, _ = opened(B)
    dealer = raw(zmq.DEALER)
    dealer.connect(b.endpoint)
    dealer.send(greeting.GREETING + b"blockwright 99 control a#1 b#3 release=9.9")
    await asyncio.to_thread(dealer.poll)
    text = f"protocol 99 was offered and this node speaks {greeting.SPOKEN}, which is too far apart; upgrade the release"
    assert dealer.recv().startswith(greeting.REFUSAL + text.encode())
    assert text in caplog.text
    assert [(refused.name, refused.release) for refused in b.refused()] == [("a#1", "9.9")]
    router = raw(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    a, at_a = opened(A)
    a.connect(B, f"tcp://127.0.0.1:{port}")
    await asyncio.to_thread(router.poll)
    connection, _ = router.recv_multipart()
    router.send_multipart([connection, greeting.pack_refusal("protocol 1 was offered and this node speaks 2")])
    await lost(at_a, "refused: protocol 1 was offered and this node speaks 2")


async def test_an_answer_that_is_none_ends_the_connection(opened, raw):
    for answer in (b"", b"garbage", greeting.pack_welcome(PeerId("c", 1), A), greeting.WELCOME + b"b#3 b#3 5"):
        router = raw(zmq.ROUTER)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        a, at_a = opened(A)
        a.connect(B, f"tcp://127.0.0.1:{port}")
        await asyncio.to_thread(router.poll)
        connection, _ = router.recv_multipart()
        router.send_multipart([connection, answer])
        await lost(at_a, "refused: ")


async def test_an_unknown_key_is_an_error_at_the_caller(opened, caplog, monkeypatch):
    monkeypatch.setattr(curve, "PATIENCE", 0.0)
    b, at_b = opened(B, keys=KEYS)
    a, at_a = opened(A, keys=NodeKeys.generate())
    a.connect(B, b.endpoint)
    a.send(B, b"x")
    await lost(at_a, "refused: the other end does not take this node's key")
    assert "its key is not on the roster" in caplog.text
    assert at_b.messages == []


async def test_a_key_may_come_a_moment_before_the_word_about_it(opened):
    """The head tells two nodes of each other; the first may be at the door of the second before that has read the word."""
    b, at_b = opened(B, keys=KEYS)
    a, at_a = opened(A, keys=NodeKeys.generate())
    a.connect(B, b.endpoint)
    a.send(B, b"x")
    await until(lambda: len(b._authenticator._waiting) == 2)  # control and pulse
    b.connect(A, a.endpoint)
    await at_b.until(lambda: at_b.messages == [(A, b"x", [])])
    assert at_a.causes == []


async def test_nobody_answers_for_another(opened):
    """Neither at an address whose key is another's, nor by a greeting under another's name."""
    keys = [NodeKeys.generate() for _ in range(3)]
    b, at_b = opened(B, keys=keys[0])
    a, at_a = opened(A, keys=keys[1])
    c, at_c = opened(PeerId("c", 1), keys=keys[2])
    b.admit(PeerId("c", 1), keys[2].name)
    where = split_key(b.endpoint)[0]
    a.connect(B, keyed(where, keys[2].name))
    await lost(at_a, "")
    c.peer = A  # it lies
    c.connect(B, b.endpoint)
    c.send(B, b"x")
    await lost(at_c, "refused: this key does not speak for a#1")
    assert at_b.messages == []
    with pytest.raises(KeysError, match="one of c#1 and d#1 has keys and the other has none") as _:
        opened(PeerId("c", 1), keys=keys[2])[0].connect(PeerId("d", 1), "tcp://127.0.0.1:9")


@pytest.mark.parametrize("doing", ["knocks", "is inside"])
async def test_a_key_that_was_removed_is_refused_and_its_connections_end(opened, doing):
    keys = [NodeKeys.generate() for _ in range(2)]
    b, at_b = opened(B, keys=keys[0])
    a, at_a = opened(A, keys=keys[1])
    b.admit(A, keys[1].name)
    if doing == "is inside":
        a.connect(B, b.endpoint)
        a.send(B, b"x")
        await at_b.until(lambda: at_b.messages != [])
        b.disconnect(A)
        await lost(at_a, "disconnected")
        again, at_a = opened(A, keys=keys[1])
    else:
        b.disconnect(A)
        again = a
    again.connect(B, b.endpoint)
    again.send(B, b"once more")
    await lost(at_a, "refused: the other end does not take this node's key")
    with pytest.raises(KeysError):
        b.admit(PeerId("a", 2), keys[1].name)
    assert all(body == b"x" for _, body, _ in at_b.messages)


@pytest.mark.parametrize(
    ("mine", "theirs"), [(None, KEYS), (KEYS, None), (NodeKeys.generate(), KEYS)], ids=["plain", "keyed", "other"]
)
async def test_ends_with_different_keys_or_none_do_not_meet(opened, mine, theirs, monkeypatch):
    monkeypatch.setattr(curve, "PATIENCE", 0.0)
    b, at_b = opened(B, keys=theirs)
    a, at_a = opened(A, keys=mine)
    where = split_key(b.endpoint)[0]
    a.connect(B, where if mine is None else keyed(where, KEYS.name))
    a.send(B, b"x")
    await lost(at_a, "")
    assert at_a.causes[0].startswith(("refused", "disconnected"))
    assert at_b.messages == []


@claim("The messages between processes need keys beyond loopback", of="security")
@pytest.mark.parametrize("fault", ["dead", "another domain"])
async def test_without_a_working_authenticator_nobody_gets_in(opened, fault, monkeypatch):
    """libzmq accepts every key when no authenticator runs, unless the socket insists on one."""
    if fault == "another domain":
        monkeypatch.setattr(curve, "DOMAIN", b"elsewhere")
    b, at_b = opened(B, keys=KEYS)
    monkeypatch.undo()
    if fault == "dead":
        monkeypatch.setattr(outbound, "HANDSHAKE_TIMEOUT", 500)
        b._authenticator.close()
    a, at_a = opened(A, keys=KEYS)
    a.connect(B, b.endpoint)
    a.send(B, b"x")
    await lost(at_a, "")
    assert at_b.messages == []


@claim("The messages between processes need keys beyond loopback", of="security")
@pytest.mark.parametrize("listen", ["tcp://192.0.2.1:0", "tcp://[2001:db8::1]:0", "tcp://host.example:7000"])
def test_what_others_can_reach_needs_keys(listen):
    with pytest.raises(KeysError, match="can be reached from other machines, so keys are needed"):
        SocketTransport(B, listen)
    a = SocketTransport(A, ANY)
    a.start = None
    with pytest.raises(KeysError):
        a.connect(B, listen.replace(":0", ":7"))
    a.close()


@pytest.mark.parametrize(
    "listen", ["tcp://0.0.0.0:0", "tcp://[::]:7", "tcp://*:7", "tcp://h;x:1", "tcp://h", "tcp://h:99999", "x"]
)
def test_addresses_that_cannot_be(listen):
    with pytest.raises(AddressError):
        SocketTransport(B, listen, KEYS)


async def test_a_port_in_use_is_an_error(opened):
    b, _ = opened(B)
    with pytest.raises(AddressError, match="cannot listen on"):
        SocketTransport(A, b.endpoint)


def test_addresses():
    assert tcp_parts("tcp://[::1]:70") == ("::1", 70)
    assert [is_loopback(h) for h in ("127.0.0.1", "127.1.2.3", "::1", "localhost", "10.0.0.1", "a.b")] == [True] * 4 + [
        False
    ] * 2
    assert own_address("127.0.0.1", 1) == "127.0.0.1"


def test_keys_belong_together_and_are_not_shown():
    assert KEYS.secret.decode() not in repr(KEYS)
    for public, secret in ((KEYS.public, KEYS.public), (KEYS.public, b"short"), (KEYS.secret, KEYS.secret)):
        with pytest.raises(KeysError):
            NodeKeys(public, secret)


async def test_a_message_over_the_limit_cuts_off_its_sender_alone(opened, raw, monkeypatch):
    """libzmq disconnects and says nothing (MAXMSGSIZE); so the sender checks, and one that does not is cut off."""
    monkeypatch.setattr(wire, "MAX_FRAME", 5000)
    b, at_b = opened(B)
    monkeypatch.undo()
    a, _ = opened(A)
    a.connect(B, b.endpoint)
    rude = raw(zmq.DEALER)
    rude.set(zmq.RECONNECT_IVL, -1)
    monitor = rude.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    rude.connect(b.endpoint)
    rude.send(Greeting(PeerId("r", 1), B, Lane.CONTROL).pack())
    rude.send(b"x" * 5001)
    await asyncio.to_thread(monitor.poll)
    a.send(B, b"fine")
    await at_b.until(lambda: at_b.messages == [(A, b"fine", [])])
    monitor.close()


class Later:
    """The running loop, whose timers run when the test asks."""

    def __init__(self):
        self._loop, self._due = asyncio.get_running_loop(), []

    def __getattr__(self, name):
        return getattr(self._loop, name)

    def call_later(self, seconds, callback, *arguments):
        self._due.append((callback, arguments))

    def pass_by(self):
        due, self._due = self._due, []
        for callback, arguments in due:
            callback(*arguments)


async def test_a_lost_pulse_alone_is_unreachable_and_can_be_taken_up_again(opened):
    b, at_b = opened(B)
    a, at_a = opened(A)
    a._loop = time = Later()
    a.connect(B, b.endpoint)
    for _ in range(2):
        a.send_pulse(B, b"beat")
        await at_b.until(lambda: at_b.messages != [])
        at_b.messages.clear()
        at_a.causes.clear()
        a._lanes[Lane.PULSE][B]._end("disconnected")  # as its monitor reports a ping that was not answered
        assert at_a.causes == [], "everything may be lost in the next moment"
        time.pass_by()
        await lost(at_a, UNREACHABLE)
        with pytest.raises(PeerGone):
            a.send_pulse(B, b"beat")
        a.send(B, b"the other way stands")
        await at_b.until(lambda: at_b.messages != [])
        at_b.messages.clear()
        a.recheck(B)
    b.close()
    at_a.causes.clear()
    await lost(at_a, "disconnected")
    time.pass_by()
    assert at_a.causes == ["disconnected"]


async def test_a_peer_that_was_given_up_is_notified_with_its_next_heartbeat(opened):
    """Declared down while the way was broken, it would go on for ever unheard."""
    b, at_b = opened(B)
    a, at_a = opened(A)
    a.connect(B, b.endpoint)
    b.connect(A, a.endpoint)
    a.send_pulse(B, b"beat")
    await at_b.until(lambda: at_b.messages != [])
    b.disconnect(A)
    a.send(B, b"unheard")
    await at_b.until(lambda: len(at_b.messages) == 2)
    assert at_a.causes == []
    a.send_pulse(B, b"beat")
    await lost(at_a, "refused: b#3 has given a#1 up")
    with pytest.raises(PeerGone):
        a.send(B, b"x")


async def test_a_large_message_does_not_stop_the_pulse(opened):
    """Pings behind a large message time out (libzmq#2709); they have a way of their own."""
    b, at_b = opened(B, keys=KEYS)
    a, at_a = opened(A, keys=KEYS)
    a.watch(PATIENCE)
    a.connect(B, b.endpoint)
    big = bytes(64 << 20)
    for _ in range(3):
        a.send(B, b"", [big])
    a.send_pulse(B, b"beat")
    await at_b.until(lambda: len(at_b.messages) == 4)
    assert at_b.messages[-1][1] != b"beat", "overtakes what was sent before"
    assert at_a.causes == []
