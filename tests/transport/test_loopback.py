import asyncio

import pytest

from blockwright.transport.address import PeerId
from blockwright.transport.errors import PeerGone
from blockwright.transport.link_wire import pack_ack
from blockwright.transport.loopback import Network

A, B = PeerId("a", 1), PeerId("b", 1)


@pytest.fixture
async def pair(recorder):
    network = Network()
    a, b = network.transport(A), network.transport(B)
    at_a, at_b = recorder(), recorder()
    a.start(at_a)
    b.start(at_b)
    a.connect(B, b.endpoint)
    return network, a, b, at_a, at_b


async def test_order_and_later_delivery(pair):
    _, a, _, _, at_b = pair
    for i in range(100):
        a.send(B, b"%d" % i)
    assert at_b.messages == []
    await at_b.until(lambda: len(at_b.messages) == 100)
    assert [int(body) for _, body, _ in at_b.messages] == list(range(100))


async def test_buffers_of_messages_are_as_they_were_when_sent_and_those_of_links_the_same(pair):
    _, a, _, _, at_b = pair
    buffer, got = bytearray(b"before"), []
    at_b.on_link = lambda peer, frames: got.append(frames)
    a.send(B, b"h", [buffer])
    a.send_link(B, [pack_ack((1, 2, 3)), buffer])
    buffer[:] = b"after!"
    await at_b.until(lambda: at_b.messages != [])
    assert at_b.messages == [(A, b"h", [b"before"])]
    assert got[0][1].obj is buffer


async def test_a_cut_peer_is_lost_and_its_messages_with_it(pair):
    network, a, b, at_a, at_b = pair
    a.send(B, b"x")
    network.cut(b.endpoint)
    await at_a.until(lambda: at_a.lost == [B])
    assert at_b.messages == []
    with pytest.raises(PeerGone):
        a.send(B, b"x")


async def test_a_frozen_peer_is_just_silent(pair):
    network, a, b, at_a, at_b = pair
    network.freeze(b.endpoint)
    a.send(B, b"x")
    for _ in range(5):
        await asyncio.sleep(0)
    assert at_b.messages == []
    assert at_a.lost == []


async def test_connecting_to_nobody_is_a_loss(pair):
    _, a, _, at_a, _ = pair
    a.connect(PeerId("c", 1), "loop://c-1")
    await at_a.until(lambda: at_a.lost == [PeerId("c", 1)])


async def test_a_receiver_that_raises_does_not_leave_messages_lying(pair):
    _, a, _, _, at_b = pair
    faults = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context["exception"]))
    at_b.on_link = lambda *_: 1 / 0
    a.send_link(B, [pack_ack((1, 2, 3))])
    a.send(B, b"after")
    await at_b.until(lambda: at_b.messages != [])
    assert len(faults) == 1
