"""NCCL channels over a communicator that checks order, sizes and posted receives; ends that die, fail and stand still."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from blockwright.policies.cluster.chunk_order import MOST
from blockwright.tests.claims import claim
from blockwright.tests.transport.fake_nccl import FAILED, FakeHub, FakeNccl, NcclViolation
from blockwright.tests.transport.link_rig import A, B, Rig
from blockwright.transport import link_wire
from blockwright.transport.errors import PeerGone
from blockwright.transport.memory_file import FileQueue, MemoryFile
from blockwright.transport.nccl_link import STUCK, NcclSender
from blockwright.transport.wire import Traffic, WireError

MIB = 1 << 20
KV = Traffic.KV


class Cards:
    """Two nodes with a card each, and the hub of their pairs."""

    def __init__(self, *, share: bool = False, seed: int = 1, refuses: str = "") -> None:
        self.rig = Rig(share=share)
        self.hub = FakeHub()
        self.memories = []
        noise = random.Random(seed)
        for table, card in ((self.rig.a, "0000:17:00.0"), (self.rig.b, "0000:65:00.0")):
            memory = MemoryFile(self.rig.clock, lambda: noise.uniform(0.0, 0.003))
            memory.card = card
            self.memories.append(memory)
            table.offer_device(memory, FakeNccl(self.hub, self.rig.clock, lambda: noise.uniform(0.0, 0.01), refuses))

    def end(self, rank: int, kind: Traffic = KV) -> Any:
        return list(self.hub.pairs.values())[kind].ends[rank]

    def close(self) -> None:
        self.rig.close()
        assert self.hub.violations == []


@pytest.fixture
async def cards() -> AsyncIterator[Cards]:
    made = Cards()
    yield made
    made.close()


def contents(rig: Rig) -> list[tuple[Traffic, bytes, list[bytes]]]:
    return [(kind, header, [bytes(b) for b in buffers]) for _, kind, header, buffers in rig.got]


async def joined(cards: Cards) -> Any:
    to_b = cards.rig.a.link(B)
    await cards.rig.pass_time(0.05)
    assert to_b.kind == "nccl"
    return to_b


@claim(
    "Tensors between two cards go by NCCL, whole and in order, and no send is queued before its receive", of="actor-runtime"
)
async def test_messages_arrive_whole_and_in_the_order_of_their_class(cards: Cards) -> None:
    rig, noise = cards.rig, random.Random(1)
    to_b = rig.a.link(B)
    sent: dict[Traffic, list[tuple[bytes, list[bytes]]]] = {kind: [] for kind in Traffic}
    for number in range(60):
        kind = noise.choice(list(Traffic))
        buffers = [noise.randbytes(noise.choice([0, 1, 1000, 70_000, 700_000])) for _ in range(noise.randrange(4))]
        sent[kind].append((b"%d" % number, buffers))
        to_b.send(kind, b"%d" % number, buffers)
        if number == 20:
            await joined(cards)  # the first ones went in frames, before the pairs had joined
    await rig.pass_time(0.6)
    for kind in Traffic:
        assert [(h, b) for k, h, b in contents(rig) if k == kind] == sent[kind]
    assert cards.hub.sends > 20
    assert to_b.nccl._sources == {}


async def test_two_chunks_are_open_and_the_bytes_do_not_go_over_the_wire(cards: Cards, monkeypatch: Any) -> None:
    to_b, rig = await joined(cards), cards.rig
    seen = list[int]()
    send = rig.there.send_link
    monkeypatch.setattr(
        rig.there, "send_link", lambda peer, frames: (seen.append(sum(map(len, frames))), send(peer, frames))
    )
    transfer = to_b.send(KV, b"", [bytes(9 * MIB)])
    assert to_b.inspect()["unacknowledged_chunks"] == 2
    await rig.pass_time(0.5)
    assert transfer.done
    assert max(seen) < 1000
    to_b.send(Traffic.ACTIVATION, b"more than a chunk", [bytes(MOST + 1)])
    await rig.pass_time(0.1)
    assert seen[-1] > MOST, "what is too large for the staging memory travels in frames"


@pytest.mark.parametrize("lost", range(1, 14))
async def test_whatever_single_message_is_lost_is_made_good(cards: Cards, lost: int) -> None:
    to_b, rig = await joined(cards), cards.rig
    wire = rig.there if lost % 2 else rig.back
    wire.doomed.add(wire.sent + lost // 2 + 1)
    transfers = [to_b.send(kind, b"", [bytes(3 * MIB)]) for kind in Traffic]
    await rig.pass_time(4.0, 0.001)
    assert all(transfer.done for transfer in transfers)
    assert sorted(kind for kind, _, _ in contents(rig)) == sorted(Traffic)
    assert to_b.kind == "nccl"


async def test_a_broken_connection_announces_again(cards: Cards) -> None:
    to_b, rig = await joined(cards), cards.rig
    data = random.Random(5).randbytes(6 * MIB)
    transfers = [to_b.send(kind, b"", [data]) for kind in Traffic]
    for _ in range(4):
        await rig.pass_time(0.004)
        rig.break_connection()
    await rig.pass_time(1.5, 0.001)
    assert all(transfer.done for transfer in transfers)
    assert sorted(contents(rig)) == sorted((kind, b"", [data]) for kind in Traffic)


@claim("A transfer by NCCL fails when either end dies at any step, and nothing is delivered after", of="faults")
@pytest.mark.parametrize("seed", range(12))
async def test_whichever_end_dies_at_whatever_step_no_transfer_is_lost_silently(seed: int) -> None:
    cards, noise = Cards(seed=seed), random.Random(seed)
    rig = cards.rig
    to_b = rig.a.link(B)
    await rig.pass_time(noise.choice([0.0001, 0.001, 0.005, 0.05]))
    data = noise.randbytes(6 * MIB)
    transfers = [to_b.send(kind, b"", [data[: noise.choice([5000, MIB, 6 * MIB])]]) for kind in Traffic for _ in range(3)]
    await rig.pass_time(noise.uniform(0.0, 0.03))
    rig.there.cut()
    rig.back.cut()
    rig.back.up = rig.there.up = False
    died, other = (rig.a, rig.b) if noise.random() < 0.5 else (rig.b, rig.a)
    before = len(rig.got)
    other.drop(A if died is rig.a else B, "killed")
    await rig.pass_time(0.1)
    assert len(rig.got) == before
    assert other._closing == [], "the memory is given back"
    died.drop(B if died is rig.a else A, "I am dead")
    for transfer in transfers:
        assert transfer.done != (transfer.fault is not None), "each has one end"
        if transfer.fault is not None:
            with pytest.raises(PeerGone):
                await transfer
    cards.close()


@claim("If NCCL fails or stands still, the next kind of link takes over, and no transfer is lost", of="faults")
@pytest.mark.parametrize("where", ["sender", "receiver", "sender notices", "stands still", "receive fails"])
@pytest.mark.parametrize("share", [True, False], ids=["shared", "frames"])
async def test_the_next_kind_takes_over(where: str, share: bool) -> None:
    cards = Cards(share=share)
    to_b, rig = await joined(cards), cards.rig
    data = random.Random(3).randbytes(7 * MIB)
    transfers = [to_b.send(kind, b"%d" % n, [data]) for kind in Traffic for n in range(2)]
    await rig.pass_time(0.004)
    if where == "sender":
        cards.end(0).fails = FAILED
    elif where == "receiver":
        cards.end(1).fails = FAILED
    elif where == "receive fails":
        for kind in Traffic:
            cards.end(1, kind).fails = FAILED
    elif where == "sender notices":
        for kind in Traffic:
            cards.end(0, kind).fails = FAILED
    else:
        cards.end(0).send = lambda *_: None  # nothing says so
    await rig.pass_time(STUCK + 5.0, 0.002)
    assert all(transfer.done for transfer in transfers)
    for kind in Traffic:
        assert [(h, b) for k, h, b in contents(rig) if k == kind] == [(b"0", [data]), (b"1", [data])]
    if where == "stands still":
        assert "nothing came by NCCL for 5 seconds" in to_b.inspect()["refused"]
    assert to_b.kind == ("pinned-memory" if share else "frames")
    again = to_b.send(KV, b"", [data])
    await rig.pass_time(0.5)
    assert again.done
    cards.close()


async def test_pairs_that_nobody_can_join_leave_the_next_kind() -> None:
    cards = Cards(share=True, refuses="NCCL failed: no socket interface found")
    to_b = cards.rig.a.link(B)
    transfer = to_b.send(KV, b"", [bytes(9 * MIB)])
    await cards.rig.pass_time(1.0)
    assert transfer.done
    assert to_b.kind in ("pinned-memory", "shared-memory")
    cards.close()


def changed(**fields: object) -> Callable[[bytes], bytes]:
    def change(offer: bytes) -> bytes:
        names = ("version", "host", "card", "identities")
        return json.dumps(list({**dict(zip(names, json.loads(offer), strict=True)), **fields}.values())).encode()

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda offer: b"\xff", "cannot be read"),
        (lambda offer: b"[" * 4000, "cannot be read"),
        (lambda offer: b"[" + offer + b"]", "cannot be read"),
        (lambda offer: offer + b" " * 5000, "cannot be read"),
        (changed(identities=["00"]), "1 pairs for 3 classes"),
        (changed(identities=["x", "y", "z"]), "cannot be read"),
        (changed(version="2"), "NCCL 2 was offered; this end has 22800"),
        (changed(card="0000:65:00.0"), "two processes on one card, and both ends use 0000:65:00.0"),
    ],
)
async def test_a_bad_offer_is_refused_with_a_sentence_and_the_next_kind_is_used(
    change: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = Cards(share=True)
    monkeypatch.setattr(NcclSender, "offer", property(lambda self: change(self._offer.pack())))
    to_b: Any = cards.rig.a.link(B)
    await cards.rig.pass_time(0.01)
    assert to_b.kind == "pinned-memory"
    assert reason in to_b.inspect()["refused"]
    transfer = to_b.send(KV, b"", [bytes(MIB)])
    await cards.rig.pass_time(0.1)
    assert transfer.done
    cards.close()


async def test_chunks_that_cannot_come_so_are_refused(cards: Cards) -> None:
    rig = cards.rig
    head = link_wire.pack_first(KV, 0, 10, [10], [0], b"")
    laid = [memoryview(f) for f in link_wire.pack_laid(head, link_wire.BY_NCCL, [memoryview(bytes(10))])]
    rig.b.on_frames(A, [memoryview(link_wire.pack_open(0, {}))])
    rig.a.link(B)
    with pytest.raises(WireError, match="by NCCL, which is not open"):
        rig.b.on_frames(A, laid)
    await joined(cards)
    for size in (0, MOST + 1):
        wrong = [memoryview(f) for f in link_wire.pack_laid(head, link_wire.BY_NCCL, [memoryview(bytes(size))])]
        with pytest.raises(WireError, match="by NCCL, in 3 pairs"):
            rig.b.on_frames(A, wrong)
    rig.a.on_frames(B, [memoryview(link_wire.pack_posted((99, 99, 99)))])  # nothing is announced, so nothing is sent
    assert cards.hub.sends == 0


async def test_the_communicator_of_these_tests_catches_what_nccl_would_hang_at() -> None:
    """Otherwise the tests above would show nothing."""
    rig, hub = Rig(), FakeHub()
    ends = dict[int, Any]()
    nccl = FakeNccl(hub, rig.clock)
    identity = nccl.identity()
    for rank in (0, 1):
        nccl.join(identity, rank, lambda end, rank=rank: ends.__setitem__(rank, end))  # type: ignore[misc]
    await rig.pass_time(0.001)
    queue = FileQueue(rig.clock, lambda: 0.0)
    memory = MemoryFile(rig.clock)
    address = memory.allocate(100)
    with pytest.raises(NcclViolation, match="send 0 of 10 bytes has no posted receive"):
        ends[0].send(queue, address, 10)
    ends[1].receive(queue, address, 20)
    with pytest.raises(NcclViolation, match="send 0 has 10 bytes, and its receive 20"):
        ends[0].send(queue, address, 10)
    with pytest.raises(NcclViolation, match="receive by rank 0"):
        ends[0].receive(queue, address, 10)
    ends[1].abort()
    with pytest.raises(NcclViolation, match="receive after an abort"):
        ends[1].receive(queue, address, 10)
    rig.close()
