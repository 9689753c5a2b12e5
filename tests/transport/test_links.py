"""Links over a wire under a manual clock: priorities, acknowledgement, resume, ends, bounded memory."""

from __future__ import annotations

import gc
import random
import statistics

import pytest

from blockwright.policies.cluster.chunk_order import LEAST, MOST, WINDOW
from blockwright.policies.cluster.link_kind import LinkKind
from blockwright.tests.claims import claim
from blockwright.tests.transport.link_rig import A, B, Rig
from blockwright.transport import link, link_wire
from blockwright.transport.errors import MessageTooLarge, PeerGone, QueueFull
from blockwright.transport.wire import Traffic, WireError

KV = Traffic.KV
ACTIVATION = Traffic.ACTIVATION
PARAMETERS = Traffic.PARAMETERS
MIB = 1 << 20


@pytest.fixture
async def rig():
    made = Rig()
    yield made
    made.close()


@pytest.fixture
async def sharing():
    made = Rig(share=True)
    yield made
    made.close()


def contents(rig: Rig) -> list[tuple[Traffic, bytes, list[bytes]]]:
    return [(kind, header, [bytes(b) for b in buffers]) for _, kind, header, buffers in rig.got]


async def test_messages_arrive_whole_and_in_the_order_of_their_class(rig):
    to_b, noise = rig.a.link(B), random.Random(1)
    sent: dict[Traffic, list[tuple[bytes, list[bytes]]]] = {kind: [] for kind in Traffic}
    for number in range(40):
        kind = noise.choice(list(Traffic))
        buffers = [noise.randbytes(noise.choice([0, 1, 1000, 70_000, 700_000])) for _ in range(noise.randrange(4))]
        sent[kind].append((b"%d" % number, buffers))
        to_b.send(kind, b"%d" % number, buffers)
    await rig.pass_time(0.1)
    assert to_b.kind == "frames"
    for kind in Traffic:
        assert [(h, b) for k, h, b in contents(rig) if k == kind] == sent[kind]
    assert to_b.inspect()["messages"] == to_b.inspect()["bytes"] == 0


async def test_buffers_are_sent_as_their_bytes(rig):
    import numpy as np

    matrix, empty = np.arange(600_000, dtype=np.float32).reshape(600, 1000), np.zeros((3, 0))
    rig.a.link(B).send(KV, b"", [matrix, empty, memoryview(matrix)])
    await rig.pass_time(0.02)
    assert contents(rig) == [(KV, b"", [matrix.tobytes(), b"", matrix.tobytes()])]
    for broken in (matrix[:, ::2], memoryview(b"1234")[::2]):
        with pytest.raises(ValueError, match="not contiguous"):
            rig.a.link(B).send(KV, b"", [broken])


@pytest.mark.parametrize(("kind", "header", "error"), [(KV, "text", TypeError), (KV, None, TypeError), (7, b"", ValueError)])
async def test_what_cannot_be_sent_is_refused_and_holds_up_nothing(rig, kind, header, error):
    to_b = rig.a.link(B)
    with pytest.raises(error):
        to_b.send(kind, header, [b"x"])
    to_b.send(KV, memoryview(b"next"), [b"y"])
    await rig.pass_time(0.02)
    assert contents(rig) == [(KV, b"next", [b"y"])]


async def test_a_transfer_tells_how_far_it_is(rig):
    transfer = rig.a.link(B).send(KV, b"", [bytes(40 * MIB)])
    seen = []
    while not transfer.done:
        await rig.pass_time(0.005)
        seen.append((transfer.acknowledged, transfer.chunks))
    assert seen == sorted(seen)
    assert 0 < seen[1][0] < 40 * MIB
    assert transfer.acknowledged == transfer.size == 40 * MIB
    await transfer
    arrived = rig.b.inspect()["from"][str(A)]["KV"]
    assert arrived == {"chunks": transfer.chunks, "bytes": 40 * MIB, "messages": 1, "unfinished_bytes": 0}


@claim("A transfer survives broken connections and delivers nothing twice", of="actor-runtime")
@pytest.mark.parametrize("share", [True, False])
async def test_a_transfer_survives_broken_connections(share):
    rig = Rig(share=share, bandwidth=100e6)
    noise = random.Random(2)
    data = noise.randbytes(30 * MIB)
    to_b = rig.a.link(B)
    transfers = [to_b.send(KV, b"kv", [data[:20], data[20:]]), to_b.send(PARAMETERS, b"p", [data[: 5 * MIB]])]
    for number in range(12):
        await rig.pass_time(noise.uniform(0.0, 0.07))
        transfers.append(to_b.send(ACTIVATION, b"%d" % number, [data[:1000]]))
        rig.break_connection()
    await rig.pass_time(1.5)
    assert all(transfer.done for transfer in transfers)
    by_kind = {kind: [(h, b) for k, h, b in contents(rig) if k == kind] for kind in Traffic}
    assert by_kind[KV] == [(b"kv", [data[:20], data[20:]])]
    assert by_kind[PARAMETERS] == [(b"p", [data[: 5 * MIB]])]
    assert [header for header, _ in by_kind[ACTIVATION]] == [b"%d" % n for n in range(12)]
    arrived = rig.b.inspect()["from"][str(A)]
    for kind, transfer in ((KV, transfers[0]), (PARAMETERS, transfers[1])):
        assert (arrived[kind.name]["chunks"], arrived[kind.name]["bytes"]) == (transfer.chunks, transfer.size)
    assert to_b.inspect()["attempts"] > 5
    assert to_b.kind == ("shared-memory" if share else "frames")
    rig.close()


@pytest.mark.parametrize("lost", range(1, 12))
async def test_whatever_single_message_is_lost_is_made_good(rig, lost):
    """Also where nobody notices that the connection broke: what is long unacknowledged is asked for."""
    (rig.there if lost % 2 else rig.back).doomed.add(lost // 2 + 1)
    to_b = rig.a.link(B)
    transfers = [to_b.send(kind, b"", [bytes(3 * MIB)]) for kind in Traffic]
    await rig.pass_time(4.0, 0.001)
    assert all(transfer.done for transfer in transfers)
    assert sorted(kind for kind, _, _ in contents(rig)) == sorted(Traffic)


async def test_the_end_of_the_receiver_tells_exactly_what_it_had(rig):
    to_b = rig.a.link(B)
    first, second = to_b.send(KV, b"", [bytes(60 * MIB)]), to_b.send(KV, b"", [bytes(5)])
    await rig.pass_time(0.03)
    rig.there.cut()
    await rig.pass_time(0.001)
    rig.a.drop(B, "node b#1 is down: killed")
    with pytest.raises(PeerGone, match=r"node b#1 is down: killed; [1-9][0-9]* of 62914560 bytes in") as caught:
        await first
    arrived = rig.b.inspect()["from"][str(A)]["KV"]
    assert (caught.value.acknowledged, caught.value.chunks) == (arrived["bytes"], arrived["chunks"])
    assert caught.value.acknowledged == arrived["unfinished_bytes"] > 0
    with pytest.raises(PeerGone) as caught:
        await second
    assert caught.value.acknowledged == 0
    with pytest.raises(PeerGone):
        to_b.send(KV, b"")


async def latencies(rig: Rig, kind: Traffic, total: int) -> tuple[list[float], float]:
    """Seconds that 64 KiB messages of a class take while ``total`` bytes of KV move; and the time of a chunk."""
    to_b = rig.a.link(B)
    await rig.pass_time(0.01)
    for _ in range(total // (32 * MIB)):
        to_b.send(KV, b"kv", [bytes(32 * MIB)])
    payload = bytes(64 << 10)
    sent = {}
    chunk_times = []
    noise = random.Random(3)
    while sum(header == b"kv" for _, _, header, _ in rig.got) < total // (32 * MIB):
        await rig.pass_time(noise.uniform(0.0, 0.01))
        header = b"a%d" % len(sent)
        sent[header] = rig.clock.now()
        to_b.send(kind, header, [payload])
        chunk_times.append(to_b.inspect()["chunk_bytes"] / rig.there.bandwidth)
    await rig.pass_time(2.0)
    took = [at - sent[header] for at, _, header, _ in rig.got if header in sent]
    assert len(took) == len(sent)
    return took, statistics.median(chunk_times)


@claim("Activations overtake KV and parameters on a link and wait for two chunks at most", of="actor-runtime")
async def test_activations_wait_for_two_chunks_at_most_and_ten_times_less_than_without_classes():
    ours, none = Rig(bandwidth=200e6), Rig(bandwidth=200e6)
    with_classes, chunk = await latencies(ours, ACTIVATION, 256 * MIB)
    without, _ = await latencies(none, KV, 256 * MIB)
    p99, p99_none = (statistics.quantiles(took, n=100)[98] for took in (with_classes, without))
    assert 0.004 < chunk < 0.006, "a chunk is sized to take the target of 5 ms"
    assert p99 <= 2.5 * chunk
    assert p99 <= p99_none / 10
    ours.close()
    none.close()


@pytest.mark.parametrize("bandwidth", [5e6, 50e6, 2e9])
async def test_chunks_follow_the_bandwidth(bandwidth):
    rig = Rig(bandwidth=bandwidth)
    to_b = rig.a.link(B)
    to_b.send(KV, b"", [bytes(int(bandwidth * 0.1))])
    await rig.pass_time(0.5)
    seen = to_b.inspect()
    assert abs(seen["chunk_bytes"] - max(LEAST, min(MOST, bandwidth * 0.005))) < 0.25 * bandwidth * 0.005 + 1
    rig.close()


@pytest.mark.parametrize("rate", [0, -1.0, float("nan")])
async def test_a_rate_that_sends_nothing_is_refused(rig, rate):
    with pytest.raises(ValueError, match="bytes per second"):
        rig.a.link(B).rate = rate


async def test_a_rate_is_kept(rig):
    to_b = rig.a.link(B)
    to_b.rate = 50e6
    transfer = to_b.send(KV, b"", [bytes(10 * MIB)])
    while not transfer.done:
        await rig.pass_time(0.002)
    assert 0.9 < 10 * MIB / 50e6 / rig.clock.now() < 1.1
    assert rig.there.sent < 60, "chunks follow the rate, not the speed of the wire"


async def test_no_more_than_two_chunks_are_unacknowledged(rig):
    rig.back.latency = 10.0
    to_b = rig.a.link(B)
    rig.back.latency = 50e-6
    to_b.send(KV, b"", [bytes(10 * MIB)])
    to_b.send(PARAMETERS, b"", [bytes(10 * MIB)])
    worst = 0
    for _ in range(200):
        await rig.pass_time(0.0001)
        worst = max(worst, to_b.inspect()["unacknowledged_chunks"])
    assert worst == WINDOW


async def test_small_activations_share_an_acknowledgement(rig):
    to_b = rig.a.link(B)
    await rig.pass_time(0.001)
    before = rig.back.sent
    transfers = []
    for _ in range(100):
        transfers.append(to_b.send(ACTIVATION, b"", [bytes(100)]))
        await rig.pass_time(0.0003)
    assert 6 <= rig.back.sent - before <= 8
    assert not transfers[-1].done
    await rig.pass_time(0.015)
    assert transfers[-1].done, "at the latest after a while"
    last = to_b.send(ACTIVATION, b"", [bytes(2 * MIB)])
    await rig.pass_time(0.005)
    assert last.done, "what holds much memory is acknowledged at once"


async def test_a_receiver_that_keeps_what_it_gets_stops_the_sender(rig, monkeypatch):
    monkeypatch.setattr(rig.b._budget, "size", 24 * MIB)
    to_b = rig.a.link(B)
    transfers = [to_b.send(KV, b"%d" % number, [bytes(10 * MIB)]) for number in range(6)]
    await rig.pass_time(2.5, 0.001)
    assert len(rig.got) == 2
    assert rig.b.inspect()["assembling_bytes"] == 20 * MIB
    to_b.send(ACTIVATION, b"passes", [b"x"])
    await rig.pass_time(0.001)
    assert rig.got[-1][2] == b"passes"
    while not transfers[-1].done:
        rig.got.clear()
        gc.collect()
        await rig.pass_time(0.01)
    assert rig.there.sent < 60, "what waits at the receiver is not sent again and again"


async def test_limits_are_reported_at_once(rig, monkeypatch):
    to_b = rig.a.link(B)
    with pytest.raises(MessageTooLarge, match="1073741824"):
        to_b.send(KV, b"", [memoryview(bytes(256 * MIB))] * 5)
    monkeypatch.setattr(link, "QUEUE_MESSAGES", 2)
    to_b.send(KV, b"")
    to_b.send(KV, b"")
    with pytest.raises(QueueFull, match="2 messages"):
        to_b.send(KV, b"")


async def test_slots_come_back_and_a_full_pool_falls_back_to_frames(sharing):
    to_b = sharing.a.link(B)
    await sharing.pass_time(0.001)
    assert to_b.kind == "shared-memory"
    free = sharing.a._shared.free
    slot = to_b.slot(100_000)
    slot.view[:4] = b"here"
    to_b.send(ACTIVATION, b"", [slot, b"small", bytes(300_000)])
    del slot
    await sharing.pass_time(0.001)
    buffers = sharing.got[0][3]
    assert [bytes(b[:4]) for b in buffers] == [b"here", b"smal", bytes(4)]
    assert [len(b) for b in buffers] == [100_000, 5, 300_000]
    assert sharing.a._shared.lent(B) == 2
    sent = sharing.there.sent
    hold = sharing.a._shared.allocate(sharing.a._shared.free)
    to_b.send(ACTIVATION, b"", [bytes(300_000)])
    await sharing.pass_time(0.001)
    assert sharing.there.sent == sent + 1
    assert sharing.a._shared.lent(B) == 2
    del hold, buffers
    sharing.got.clear()
    sharing.break_connection()  # the news that they are free must not be lost with it
    await sharing.pass_time(0.2)
    assert sharing.a._shared.lent(B) == 0
    assert sharing.a._shared.free == free


async def test_a_view_of_a_slot_that_is_not_given_as_a_slot_is_copied(sharing):
    to_b = sharing.a.link(B)
    await sharing.pass_time(0.001)
    slot = to_b.slot(300_000)
    slot.view[:5] = b"first"
    to_b.send(ACTIVATION, b"", [slot.view])
    slot.view[:5] = b"later"
    await sharing.pass_time(0.001)
    assert bytes(sharing.got[0][3][0][:5]) == b"first"


async def test_what_a_peer_holds_comes_back_when_it_is_gone(sharing):
    to_b = sharing.a.link(B)
    await sharing.pass_time(0.001)
    free = sharing.a._shared.free
    to_b.send(KV, b"", [bytes(MIB)])
    await sharing.pass_time(0.001)
    assert sharing.a._shared.free < free
    sharing.a.drop(B, "killed")
    assert sharing.a._shared.free == free


async def test_a_peer_whose_memory_cannot_be_attached_gets_frames(sharing, monkeypatch):
    monkeypatch.setattr("blockwright.transport.link_table.attach", lambda offer: None)
    to_b = sharing.a.link(B)
    await sharing.pass_time(0.001)
    assert to_b.kind == "frames"
    assert to_b.slot(100) is None
    to_b.send(KV, b"", [bytes(5 * MIB)])
    await sharing.pass_time(0.1)
    assert len(sharing.got) == 1


async def test_a_node_sends_to_itself_by_reference(rig):
    to_self, data = rig.a.link(A), bytes(10 * MIB)
    await rig.pass_time(0.001)
    transfer = to_self.send(KV, b"", [data])
    await rig.pass_time(0.001)
    assert to_self.kind == "reference"
    assert rig.got[0][3][0].obj is data
    assert transfer.done


def garbage() -> list[list[bytes]]:
    first = link_wire.pack_first(KV, 0, 10, [10], [0], b"")
    slot = link_wire.pack_first(KV, 0, 10, [10], [65536], b"")
    huge = link_wire.pack_first(KV, 0, 10, [2**40], [0], b"")
    heads = [b"", b"\x63", b"\x01", b"\x02123", b"\x03", b"\x05123456789", first[:-17], first[:-16], first[:-1]]
    return [
        [],
        *[[head] for head in heads],
        [b"\x04", b""],
        [first],
        [first, b"123"],
        [first, bytes(11)],
        [huge],
        [slot],
        [link_wire.pack_chunk(KV, 0, 5, 10), bytes(10)],
        [b"\x03\x07" + first[2:], bytes(10)],
        [link_wire.pack_release(1, [65536])],
        [link_wire.pack_ack((1, 1, 1))],
        [link_wire.pack_welcome(link_wire.Welcome(1, LinkKind.FRAMES, True, (0, 0, 0), (0, 0, 0)))],
        [link_wire.pack_open(1, {LinkKind.SHARED_MEMORY: b"here"})],
        [link_wire.pack_open(1, {LinkKind.DEVICE_SLOT: b"here"})[:-1]],
        [link_wire.pack_open(1, {})[:4]],
        [link_wire.pack_open(1, {}) + b"\x09\0\0\0\0"],
        [*link_wire.pack_laid(first, 0, [bytes(10)])],
        [*link_wire.pack_laid(first, 0, [bytes(10)]), b""],
        [link_wire.pack_laid(first, 0, [])[0], b"\0"],
    ]


@pytest.mark.parametrize("frames", garbage())
async def test_garbage_is_refused_and_others_go_on(rig, frames):
    rig.b.on_frames(A, [memoryview(link_wire.pack_open(1, {LinkKind.FRAMES: b""}))])
    with pytest.raises(WireError):
        rig.b.on_frames(A, [memoryview(frame) for frame in frames])
    assert rig.got == []
    rig.b.drop(A, "it talks nonsense")
    rig.a.link(B).send(KV, b"", [bytes(3 * MIB)])
    await rig.pass_time(0.1)
    assert len(rig.got) == 1


async def test_a_flood_of_chunks_that_have_no_room_is_refused(rig, monkeypatch):
    monkeypatch.setattr(rig.b._budget, "size", 0)
    keep = rig.b._budget.take(1)
    rig.b.on_frames(A, [memoryview(link_wire.pack_open(1, {LinkKind.FRAMES: b""}))])
    data, number = bytes(MIB), 0

    def flood() -> None:
        nonlocal number
        while number < 1000:
            later = link_wire.pack_chunk(KV, number, number * MIB, MIB)
            head = later if number else link_wire.pack_first(KV, 0, MIB, [200 * MIB], [0], b"")
            rig.b.on_frames(A, [memoryview(head), memoryview(data)])
            number += 1

    with pytest.raises(WireError, match="more are sent"):
        flood()
    assert number < 100
    assert keep is not None
