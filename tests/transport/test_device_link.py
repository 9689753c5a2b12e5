"""Chunks in device slots, over the twin of a card's memory: real memory files, copies that end some time later."""

from __future__ import annotations

import gc
import json
import random
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from blockwright.policies.cluster.chunk_order import MOST
from blockwright.policies.cluster.link_kind import LinkKind, choose_kind
from blockwright.tests.claims import claim
from blockwright.tests.transport.link_rig import A, B, Rig
from blockwright.transport import link_wire
from blockwright.transport.address import PeerId
from blockwright.transport.device_link import DeviceRing, RingReader, parse_offer
from blockwright.transport.device_memory import DeviceBytes, DeviceMemoryError
from blockwright.transport.errors import PeerGone
from blockwright.transport.link_table import LinkTable
from blockwright.transport.memory_file import MOST_EVENTS, MemoryFile
from blockwright.transport.shared_memory import PINNED_BYTES
from blockwright.transport.wire import Buffer, Traffic, WireError

KV = Traffic.KV
ACTIVATION = Traffic.ACTIVATION
PARAMETERS = Traffic.PARAMETERS
MIB = 1 << 20


def card(rig: Rig, seed: int = 0) -> MemoryFile:
    noise = random.Random(seed)
    return MemoryFile(rig.clock, lambda: noise.uniform(0.0, 0.003))


@pytest.fixture
async def rig():
    made = Rig()
    made.a.offer_device(card(made, 1))
    made.b.offer_device(card(made, 2))
    yield made
    made.close()


def contents(rig: Rig) -> list[tuple[Traffic, bytes, list[bytes]]]:
    return [(kind, header, [bytes(b) for b in buffers]) for _, kind, header, buffers in rig.got]


@pytest.mark.parametrize(
    ("offered", "able", "kind"),
    [
        (set(LinkKind), set(LinkKind), LinkKind.REFERENCE),
        ({LinkKind.FRAMES, LinkKind.DEVICE_SLOT, LinkKind.SHARED_MEMORY}, set(LinkKind), LinkKind.DEVICE_SLOT),
        ({LinkKind.FRAMES, LinkKind.DEVICE_SLOT}, {LinkKind.SHARED_MEMORY, LinkKind.FRAMES}, LinkKind.FRAMES),
        ({LinkKind.SHARED_MEMORY}, {LinkKind.SHARED_MEMORY}, LinkKind.SHARED_MEMORY),
        ({LinkKind.DEVICE_SLOT}, {LinkKind.SHARED_MEMORY}, LinkKind.FRAMES),
        (set(), set(), LinkKind.FRAMES),
    ],
)
def test_the_fastest_kind_that_both_ends_have_is_chosen(offered, able, kind):
    assert choose_kind(offered, able) is kind


@claim("Tensors between processes that use one device travel through its slots, whole and in order", of="actor-runtime")
async def test_messages_arrive_whole_and_in_the_order_of_their_class(rig):
    to_b, noise = rig.a.link(B), random.Random(1)
    await rig.pass_time(0.001)
    assert to_b.kind == "device-slot"
    sent: dict[Traffic, list[tuple[bytes, list[bytes]]]] = {kind: [] for kind in Traffic}
    for number in range(60):
        kind = noise.choice(list(Traffic))
        buffers = [noise.randbytes(noise.choice([0, 1, 1000, 70_000, 700_000])) for _ in range(noise.randrange(4))]
        sent[kind].append((b"%d" % number, buffers))
        to_b.send(kind, b"%d" % number, buffers)
    await rig.pass_time(0.3)
    for kind in Traffic:
        assert [(h, b) for k, h, b in contents(rig) if k == kind] == sent[kind]
    assert rig.a.inspect()["device_slots_free"] == 32, "an acknowledgement returns the slot"


async def test_the_bytes_do_not_go_over_the_wire(rig, monkeypatch):
    to_b, seen = rig.a.link(B), []
    await rig.pass_time(0.001)
    send = rig.there.send_link

    def counted(peer: PeerId, frames: Sequence[Buffer]) -> None:
        seen.append(sum(map(len, frames)))
        send(peer, frames)

    monkeypatch.setattr(rig.there, "send_link", counted)
    to_b.send(ACTIVATION, b"one", [bytes(MIB)])
    to_b.send(ACTIVATION, b"more than a slot", [bytes(MOST + 1)])
    await rig.pass_time(0.1)
    assert [header for _, header, _ in contents(rig)] == [b"one", b"more than a slot"]
    assert seen[0] < 200 < MOST < seen[1], "what no slot holds travels in frames"


class Lent:
    """A buffer of a card that is being sent. ``read`` counts the copies to the host."""

    def __init__(self, content: bytes) -> None:
        self.memory = np.frombuffer(content, dtype=np.uint8).copy()
        self.read = 0

    def sent(self) -> DeviceBytes:
        def read() -> memoryview:
            self.read += 1
            return memoryview(self.memory.tobytes())

        return DeviceBytes(int(self.memory.ctypes.data), self.memory.nbytes, read, self)


@claim(
    "Bytes in a card's memory are sent from there by links that copy from it, and by way of the host by all others",
    of="numerics",
)
@pytest.mark.parametrize(("card_here", "share"), [(True, False), (False, True), (False, False)])
async def test_bytes_of_a_device_leave_it_only_where_a_link_carries_bytes(card_here, share):
    rig, noise = Rig(share=share), random.Random(4)
    if card_here:
        rig.a.offer_device(card(rig, 1))
        rig.b.offer_device(card(rig, 2))
    to_b = rig.a.link(B)
    await rig.pass_time(0.001)
    assert to_b.reads_device is card_here
    contained = [noise.randbytes(size) for size in (0, 5000, MIB, MOST + 70_000)]
    lent = [Lent(content) for content in contained]
    gone = [weakref.ref(one) for one in lent]
    transfers = [to_b.send(ACTIVATION, b"", [b"head", one.sent()]) for one in lent]
    reads = {len(one.memory): one for one in lent}
    await rig.pass_time(0.1)
    assert [buffers for _, _, buffers in contents(rig)] == [[b"head", content] for content in contained]
    assert [one.read for one in reads.values()] == ([0, 0, 0, 1] if card_here else [0, 1, 1, 1]), "a slot holds no more"
    assert all(transfer.done for transfer in transfers)
    lent.clear()
    reads.clear()
    to_b.send(ACTIVATION, b"", [b"a slot is written anew"] * 1)
    await rig.pass_time(0.1)
    gc.collect()
    assert [one() for one in gone] == [None] * 4, "nobody has what was received"
    rig.close()


async def test_a_chunk_is_not_delivered_before_its_bytes_are_there():
    """The receiver's queue waits for the event of the slot, which is recorded behind the sender's copy."""
    late = Rig()
    late.a.offer_device(MemoryFile(late.clock, lambda: 0.5))
    late.b.offer_device(MemoryFile(late.clock))
    to_b = late.a.link(B)
    await late.pass_time(0.001)
    transfer = to_b.send(ACTIVATION, b"", [b"\x07" * MIB])
    await late.pass_time(0.4)
    assert not late.got
    assert not transfer.done
    await late.pass_time(0.2)
    assert contents(late) == [(ACTIVATION, b"", [b"\x07" * MIB])]
    late.close()


@claim("A transfer through device slots fails when either end dies at any step, and nothing is delivered after", of="faults")
@pytest.mark.parametrize("seed", range(12))
async def test_whichever_end_dies_at_whatever_step_no_transfer_is_lost_silently(rig, seed):
    noise = random.Random(seed)
    to_b = rig.a.link(B)
    await rig.pass_time(0.001)
    data = noise.randbytes(6 * MIB)
    transfers = [to_b.send(kind, b"", [data[: noise.choice([5000, MIB, 6 * MIB])]]) for kind in Traffic for _ in range(3)]
    await rig.pass_time(noise.uniform(0.0, 0.02))
    if noise.random() < 0.5:  # the sender: what it had queued never happens
        rig.a._slots._queue.close(lambda: None)
        rig.there.cut()
        rig.back.cut()
        rig.back.up = False
        before = len(rig.got)
        rig.b.drop(A, "killed")
        await rig.pass_time(0.1)
        assert len(rig.got) == before, "what a copy under way reads is not known"
        assert rig.b._closing == []
        assert rig.b._device._opened == {}
        rig.a.drop(B, "I am dead")
    else:
        rig.there.cut()
        rig.back.cut()
        rig.back.up = False
        rig.a.drop(B, "killed")
        await rig.pass_time(0.1)
        assert rig.a.inspect()["device_slots_free"] == 32
    for transfer in transfers:
        assert transfer.done != (transfer.fault is not None), "each has one end"
        if transfer.fault is not None:
            with pytest.raises(PeerGone):
                await transfer


@pytest.mark.parametrize("lost", range(1, 12))
async def test_whatever_single_message_is_lost_is_made_good(rig, lost):
    (rig.there if lost % 2 else rig.back).doomed.add(lost // 2 + 1)
    to_b = rig.a.link(B)
    transfers = [to_b.send(kind, b"", [bytes(3 * MIB)]) for kind in Traffic]
    await rig.pass_time(4.0, 0.001)
    assert all(transfer.done for transfer in transfers)
    assert sorted(kind for kind, _, _ in contents(rig)) == sorted(Traffic)
    assert rig.a.inspect()["device_slots_free"] == 32


async def test_a_full_ring_sends_in_frames_and_two_chunks_are_open_as_always(rig):
    to_b = rig.a.link(B)
    await rig.pass_time(0.001)
    rig.a._slots._free.clear()
    transfer = to_b.send(KV, b"", [bytes(9 * MIB)])
    await rig.pass_time(0.0)
    assert to_b.inspect()["unacknowledged_chunks"] <= 2
    await rig.pass_time(0.2)
    assert transfer.done


async def test_a_device_that_is_offered_later_is_used_from_then_on():
    rig = Rig(share=True)
    to_b = rig.a.link(B)
    await rig.pass_time(0.001)
    assert to_b.kind == "shared-memory"
    first = to_b.send(KV, b"first", [bytes(5 * MIB)])
    rig.b.offer_device(card(rig))
    rig.a.offer_device(card(rig))
    await rig.pass_time(0.1)
    assert to_b.kind == "device-slot"
    assert first.done
    assert to_b.slot(1000) is None, "hidden states are not laid into other memory first"
    to_b.send(KV, b"second", [bytes(5 * MIB)])
    await rig.pass_time(0.1)
    assert [header for _, header, _ in contents(rig)] == [b"first", b"second"]
    assert rig.a.place(B, [bytes(MIB)]) is not None, "other messages still use shared memory"
    rig.close()


def other(**fields: object) -> Callable[[bytes], bytes]:
    return lambda offer: json.dumps({**json.loads(offer), **fields}).encode()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (lambda offer: b"\xff", "cannot be read"),
        (lambda offer: b"[" * 100_000, "cannot be read"),
        (lambda offer: b"{}", "cannot be read"),
        (other(extra=1), "cannot be read"),
        (other(handle="here"), "cannot be read"),
        (other(events="abcd"), "not made of texts"),
        (other(events=[1]), "not made of texts"),
        (other(events=[]), "0 device slots"),
        (other(slot_bytes=True), "no number"),
        (other(slot_bytes=0), "device slots of 0 bytes"),
        (other(slot_bytes=4096), "was offered instead of"),
        (other(form="cuda-ipc"), "of the form 'cuda-ipc'"),
        (other(host="elsewhere"), "another host"),
        (other(card="0000:17:00.0"), "card '0000:17:00.0'"),
        (other(handle="00"), "a handle of 1 bytes"),
        (other(handle="00" * 36), "was offered instead of"),
    ],
)
async def test_a_bad_offer_is_refused_with_a_sentence_and_the_next_kind_is_used(changed, reason):
    rig = Rig(share=True)
    rig.a.offer_device(card(rig))
    rig.b.offer_device(card(rig))
    rig.a._slots.offer = changed(rig.a._slots.offer)
    to_b = rig.a.link(B)
    await rig.pass_time(0.001)
    assert to_b.kind == "pinned-memory"
    assert reason in to_b.inspect()["refused"]
    transfer = to_b.send(KV, b"", [bytes(MIB)])
    await rig.pass_time(0.1)
    assert transfer.done
    rig.close()


async def test_slots_that_are_none_are_refused(rig):
    rig.a.link(B)
    await rig.pass_time(0.001)
    head = link_wire.pack_first(KV, 0, 10, [10], [0], b"")
    for slot, length in ((32, 10), (0, MOST + 1), (0, 0)):
        frames = [memoryview(f) for f in link_wire.pack_laid(head, slot, [memoryview(bytes(length))])]
        with pytest.raises(WireError, match="device slot"):
            rig.b.on_frames(A, frames)
    known = rig.b._from[A].arrivals
    assert known.received == (0, 0, 0)


async def test_a_second_ring_of_one_life_is_refused(rig):
    to_b = rig.a.link(B)
    await rig.pass_time(0.001)
    rig.a._slots.offer = DeviceRing(card(rig)).offer
    to_b.renew()
    await rig.pass_time(0.1)
    assert to_b.kind == "frames"
    assert "a life of a node has one ring" in to_b.inspect()["refused"]


async def test_events_are_counted(rig):
    memory = card(rig)
    for _ in range(MOST_EVENTS):
        memory.event()
    with pytest.raises(DeviceMemoryError, match=f"no more than {MOST_EVENTS}"):
        memory.event()
    ring = DeviceRing(card(rig))
    events = [event[:-8] + "ffffffff" for event in parse_offer(ring.offer).events]
    with pytest.raises(DeviceMemoryError, match="is none of"):
        RingReader(card(rig), other(events=events)(ring.offer), lambda: None)


class NoHandles(MemoryFile):
    """A card whose memory other processes cannot open. ``locked``: nor can memory of the host be pinned for it."""

    locked = False

    def handle(self, address: int, number: int = 0) -> bytes:
        raise DeviceMemoryError("ipcGetMemHandle of CUDA failed: cudaErrorNotSupported")

    def pin(self, address: int, nbytes: int, *, written: bool) -> None:
        if self.locked:
            raise DeviceMemoryError("hostRegister of CUDA failed: cudaErrorMemoryAllocation")
        super().pin(address, nbytes, written=written)


def without_handles(rig: Rig, table: LinkTable, *, locked: bool = False) -> NoHandles:
    memory = NoHandles(rig.clock)
    memory.locked = locked
    with pytest.raises(DeviceMemoryError, match="ipcGetMemHandle"):
        table.offer_device(memory)
    return memory


@claim(
    "Shared memory is pinned for a card whose own memory cannot be shared",
    of="actor-runtime",
)
@pytest.mark.parametrize("receiver", ["card", "host"])
async def test_shared_memory_is_pinned_for_the_cards_of_both_ends(receiver: str) -> None:
    rig = Rig(share=True)
    ours = without_handles(rig, rig.a)
    theirs = without_handles(rig, rig.b) if receiver == "card" else None
    to_b = rig.a.link(B)
    await rig.pass_time(0.001)
    assert to_b.kind == "pinned-memory"
    pool = rig.a._shared
    assert pool is not None
    assert ours.pinned == {pool.address: pool.size}
    assert pool.size == PINNED_BYTES, "a pool that is pinned takes all of its memory at once"
    slot = to_b.slot(MIB)
    assert slot is not None
    slot.view[:] = b"\x09" * MIB
    transfers = [to_b.send(ACTIVATION, b"", [slot]), to_b.send(KV, b"", [b"\x08" * (5 * MIB)])]
    await rig.pass_time(0.2)
    assert all(transfer.done for transfer in transfers)
    assert sorted(contents(rig)) == [(ACTIVATION, b"", [b"\x09" * MIB]), (KV, b"", [b"\x08" * (5 * MIB)])]
    if theirs is not None:
        assert list(theirs.pinned.values()) == [pool.size]
        to_b.renew()
        await rig.pass_time(0.01)
        rig.b.drop(A, "killed")
        assert theirs.pinned == {}
    rig.close()


@pytest.mark.parametrize(("sender", "refused"), [(True, ""), (False, "hostRegister of CUDA failed")])
async def test_memory_that_cannot_be_pinned_is_shared_as_it_is(sender: bool, refused: str) -> None:
    rig = Rig(share=True)
    without_handles(rig, rig.a, locked=sender)
    without_handles(rig, rig.b, locked=not sender)
    to_b = rig.a.link(B)
    await rig.pass_time(0.001)
    assert to_b.kind == "shared-memory"
    assert refused in to_b.inspect()["refused"]
    rig.close()


async def test_what_is_shared_already_is_pinned_when_the_card_comes() -> None:
    rig = Rig(share=True)
    to_b = rig.a.link(B)
    await rig.pass_time(0.001)
    assert to_b.kind == "shared-memory"
    without_handles(rig, rig.a)
    await rig.pass_time(0.001)
    assert to_b.kind == "pinned-memory"
    rig.close()
