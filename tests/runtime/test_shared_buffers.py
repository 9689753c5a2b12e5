"""Large buffers of calls and links between processes of one host: in shared memory, as what was sent, and given back."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from blockwright.runtime import Actor, Node, endpoint
from blockwright.tests.claims import claim
from blockwright.transport.address import PeerId
from blockwright.transport.errors import PeerGone
from blockwright.transport.handshake import Lane
from blockwright.transport.transfer import SHARE_LEAST as LARGE
from blockwright.transport.wire import Traffic

MIB = 1 << 20


class Keeper(Actor):
    def __init__(self) -> None:
        self.kept: list[np.ndarray] = []

    @endpoint
    async def keep(self, array: np.ndarray, small: np.ndarray) -> tuple[int, int]:
        self.kept.append(array)
        return int(array.sum()), int(small.sum())

    @endpoint
    async def twice(self, array: np.ndarray) -> np.ndarray:
        return array * 2


class Pair:
    def __init__(self, directory) -> None:
        directory.chmod(0o700)
        self.a, self.b = (Node(name, directory=directory) for name in "ab")
        self.keeper = Keeper()

    async def start(self) -> None:
        await self.a.start()
        await self.b.start()
        await self.b.spawn(self.keeper, name="keeper")
        self.a.peering.greet(self.b.id, self.b.endpoint)
        self.ref = self.a.ref("b/keeper", Keeper)


@pytest.fixture
async def pair(tmp_path, until):
    made = Pair(tmp_path)
    await made.start()
    await until(lambda: "a" in made.b.peers())
    link = made.a.link("b")
    await until(lambda: link.kind == "shared-memory")
    yield made
    await made.a.stop()
    await made.b.stop()


@claim("Arrays and tensors travel out of band, and on one host in shared memory", of="actor-runtime")
async def test_large_arguments_and_answers_are_read_in_place(pair, until):
    free = pair.a.tensor_links.inspect()["slots_free_bytes"]
    array, small = np.arange(LARGE // 8), np.arange(3)
    assert await pair.ref.keep(array, small) == (array.sum(), 3)
    assert pair.a.tensor_links.inspect()["slots_free_bytes"] == free - LARGE
    assert not pair.keeper.kept[0].flags.writeable
    part = pair.keeper.kept.pop()[10:12]
    gc.collect()
    assert pair.a.tensor_links.inspect()["slots_free_bytes"] < free
    assert part.tolist() == [10, 11]
    del part
    await until(lambda: pair.a.tensor_links.inspect()["slots_free_bytes"] == free)
    await pair.ref.twice(array)  # an answer goes back over b's link, which is opened by the first
    await until(lambda: pair.b.link("a").kind == "shared-memory")
    doubled = await pair.ref.twice(array)
    assert (doubled == array * 2).all()
    assert pair.b.tensor_links.inspect()["slots_free_bytes"] < free


async def test_arguments_are_let_go_without_the_collector(pair, until):
    free = pair.a.tensor_links.inspect()["slots_free_bytes"]
    gc.disable()
    try:
        for _ in range(3):
            await pair.ref.twice(np.arange(LARGE))
            await until(lambda: pair.a.tensor_links.inspect()["slots_free_bytes"] == free)
    finally:
        gc.enable()


async def test_a_view_of_the_node_names_the_kind_of_link(pair):
    assert [(peer.name, peer.link) for peer in pair.a.inspect().peers] == [("b", "shared-memory")]
    assert [(peer.name, peer.link) for peer in pair.b.inspect().peers] == [("a", "")]


async def test_what_finds_no_slot_goes_in_frames(pair):
    hold = pair.a.link("b").slot(pair.a.tensor_links.inspect()["slots_free_bytes"])
    assert hold is not None
    array = np.arange(LARGE)
    assert await pair.ref.keep(array, array) == (array.sum(), array.sum())


async def test_a_call_that_cannot_be_sent_holds_no_slot(pair, monkeypatch):
    free = pair.a.tensor_links.inspect()["slots_free_bytes"]

    def broken(*_: object) -> None:
        raise PeerGone("no way")

    monkeypatch.setattr(pair.a._transport, "send", broken)
    with pytest.raises(Exception, match="no way"):
        await pair.ref.keep(np.arange(LARGE), np.arange(3))
    gc.collect()
    assert pair.a.tensor_links.inspect()["slots_free_bytes"] == free


async def test_places_from_the_wire_are_checked(pair, until):
    transport, peer = pair.a._transport, PeerId("b", 1)
    for places in (b"x", bytes(8) + b"\1" * 8, b"\1" * 16, bytes(16) * 2000):
        before = pair.b.dropped["garbage"]
        transport.send(peer, b"\x91\x00", (), places)
        await until(lambda before=before: pair.b.dropped["garbage"] == before + 1)
    assert await pair.ref.keep(np.arange(LARGE), np.arange(3)) == (np.arange(LARGE).sum(), 3)


@claim("A transfer survives broken connections and delivers nothing twice", of="actor-runtime")
@pytest.mark.parametrize("share", [True, False])
async def test_a_transfer_survives_a_broken_connection_of_real_sockets(tmp_path, until, share):
    pair = Pair(tmp_path)
    await pair.start()
    pair.a.tensor_links.share = share
    got: list[tuple[bytes, list[bytes]]] = []
    for kind in Traffic:
        pair.b.on_link(kind, lambda node, header, buffers: got.append((header, [bytes(b) for b in buffers])))
    link, data = pair.a.link("b"), np.random.default_rng(1).bytes(40 * MIB)
    transfers = [link.send(Traffic.KV, b"%d" % number, [data[number:]]) for number in range(3)]
    breaks = 0
    while not all(transfer.done for transfer in transfers):
        progress = sum(transfer.chunks for transfer in transfers)
        await until(lambda p=progress: sum(t.chunks for t in transfers) >= p + 4 or all(t.done for t in transfers))
        for node, peer in ((pair.a, pair.b.id), (pair.b, pair.a.id)):
            if (outbound := node._transport._lanes[Lane.LINK].get(peer)) is not None:
                outbound._end("disconnected by the test")
                breaks += 1
    assert breaks > 2
    assert got == [(b"%d" % number, [data[number:]]) for number in range(3)]
    arrived = pair.b.tensor_links.inspect()["from"][str(pair.a.id)]["KV"]
    assert (arrived["bytes"], arrived["chunks"]) == (3 * 40 * MIB - 3, sum(t.chunks for t in transfers))
    assert pair.a.peers()["b"].incarnation == 1, "the peer was never declared down"
    await pair.a.stop()
    await pair.b.stop()
