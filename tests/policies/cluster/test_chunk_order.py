"""The order of chunks: priority, tiles without gap or overlap, the window, what a broken way repeats, sizes by bandwidth."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.cluster.chunk_order import (
    FIRST,
    LEAST,
    MOST,
    URGENT_BYTES,
    URGENT_CHUNKS,
    WINDOW,
    Chunk,
    ChunkOrder,
    Traffic,
)

KV = Traffic.KV
ACTIVATION = Traffic.ACTIVATION
PARAMETERS = Traffic.PARAMETERS
MIB = 1 << 20

messages = st.lists(st.tuples(st.sampled_from(Traffic), st.integers(0, 3 * MIB)), max_size=12)
steps = st.lists(st.sampled_from(["send", "arrive", "break"]), max_size=80)


class Receiver:
    """Takes chunks of each class in order, as a link's far end does; what comes twice or with a gap is not taken."""

    def __init__(self) -> None:
        self.taken: dict[Traffic, list[Chunk]] = defaultdict(list)

    def take(self, chunk: Chunk) -> None:
        if chunk.number == len(self.taken[chunk.kind]):
            self.taken[chunk.kind].append(chunk)

    def numbers(self) -> dict[Traffic, int]:
        return {kind: len(self.taken[kind]) for kind in Traffic}


def check_tiles(taken: list[Chunk], sent: list[tuple[int, int]]) -> None:
    """The chunks are exactly the messages, first-in first-out."""
    at = 0
    for message, size in sent:
        offset = 0
        while True:
            chunk = taken[at]
            assert (chunk.message, chunk.offset, chunk.number) == (message, offset, at)
            offset, at = offset + chunk.size, at + 1
            if chunk.last:
                break
        assert offset == size
    assert at == len(taken)


@given(messages, steps)
def test_every_message_arrives_once_in_order_whatever_breaks(added: list[tuple[Traffic, int]], events: list[str]) -> None:
    order = ChunkOrder()
    receiver = Receiver()
    way = list[Chunk]()
    done: list[Chunk] = []
    for number, (kind, size) in enumerate(added):
        order.add(kind, number, size)
    for event in [*events, *["send", "arrive"] * 200]:
        if event == "send" and (chunk := order.next()) is not None:
            way.append(chunk)
        elif event == "arrive" and way:
            receiver.take(way.pop(0))
            done += order.acknowledge(receiver.numbers())
        elif event == "break":  # half of what is on its way arrives, and the acknowledgement is lost
            for chunk in way[: len(way) // 2]:
                receiver.take(chunk)
            way.clear()
            order.rewind(receiver.numbers())
        assert sum(chunk.kind != ACTIVATION for chunk in way) <= WINDOW
    assert order.idle
    assert order.unacknowledged == 0
    for kind in Traffic:
        check_tiles(receiver.taken[kind], [(n, size) for n, (k, size) in enumerate(added) if k == kind])
        assert [chunk for chunk in done if chunk.kind == kind] == receiver.taken[kind]


@given(messages, st.integers(0, 20))
def test_a_higher_class_goes_first(added: list[tuple[Traffic, int]], before: int) -> None:
    order, receiver = ChunkOrder(), Receiver()
    for number, (kind, size) in enumerate(added):
        order.add(kind, number, size)
    waiting = {kind: sum(k == kind for k, _ in added) for kind in Traffic}
    for _ in range(before):
        if (chunk := order.next()) is None:
            break
        assert chunk.kind == min(kind for kind, count in waiting.items() if count)
        waiting[chunk.kind] -= chunk.last
        receiver.take(chunk)
        order.acknowledge(receiver.numbers())


def test_what_the_receiver_holds_unacknowledged_is_not_sent_again() -> None:
    order = ChunkOrder()
    order.add(KV, 1, 10 * MIB)
    order.add(ACTIVATION, 2, MIB)
    sent = [order.next(), order.next(), order.next()]
    assert order.next() is None
    order.rewind({ACTIVATION: 0, KV: 1, PARAMETERS: 0})
    assert order.unacknowledged == 1
    assert [order.next(), order.next()] == [sent[0], sent[2]]
    assert order.next() is None
    assert order.acknowledge({KV: 2}) == [sent[1], sent[2]]


def test_an_activation_passes_chunks_that_wait_and_is_never_cut() -> None:
    order = ChunkOrder()
    order.add(KV, 1, 100 * MIB)
    first, second = order.next(), order.next()
    assert first is not None
    assert second is not None
    assert order.next() is None, "two are unacknowledged"
    order.add(PARAMETERS, 2, 10)
    assert order.next() is None, "the window is one for all lower classes"
    order.add(ACTIVATION, 3, 10 * MIB)
    assert order.next() == Chunk(ACTIVATION, 0, 3, 0, 10 * MIB, True)
    assert order.next() is None
    assert order.acknowledge({KV: 1}) == [first]
    chunk = order.next()
    assert chunk is not None
    assert (chunk.kind, chunk.number) == (KV, 2)


def test_activations_are_bounded_too() -> None:
    order = ChunkOrder()
    for number in range(3):
        order.add(ACTIVATION, number, URGENT_BYTES)
    order.add(KV, 9, 1)
    assert order.next() is not None
    chunk = order.next()
    assert chunk is not None
    assert chunk.kind == KV, "what the window of activations leaves free is used"
    assert order.next() is None
    order.acknowledge({ACTIVATION: 1})
    assert order.next() is not None
    empty = ChunkOrder()
    for number in range(URGENT_CHUNKS + 1):
        empty.add(ACTIVATION, number, 0)
    assert [empty.next() is not None for _ in range(URGENT_CHUNKS + 1)] == [True] * URGENT_CHUNKS + [False]


def test_a_receiver_that_claims_too_much_is_not_believed() -> None:
    order = ChunkOrder()
    order.add(KV, 1, MIB)
    chunk = order.next()
    assert order.acknowledge({KV: 1000}) == [chunk]
    assert order.next() is not None


def test_chunks_take_about_the_target_time() -> None:
    order = ChunkOrder(target=0.01)
    assert order.chunk_bytes == FIRST
    order.measure(4 * MIB, 0.02)
    assert order.chunk_bytes == 2 * MIB, "the first measurement counts in full"
    for _ in range(50):
        order.measure(2 * MIB, 0.02)
    assert abs(order.chunk_bytes - MIB) < MIB / 100
    for _ in range(100):
        order.measure(4 * MIB, 0.0001)
    assert order.chunk_bytes == MOST
    for _ in range(100):
        order.measure(LEAST, 1.0)
    assert order.chunk_bytes == LEAST
    order.measure(100, 1e-6)  # a message of 100 bytes says nothing of bandwidth
    assert order.chunk_bytes == LEAST


def test_nothing_is_cut_where_bytes_do_not_move() -> None:
    order = ChunkOrder(whole=True)
    order.add(KV, 1, 100 * MIB)
    assert order.next() == Chunk(KV, 0, 1, 0, 100 * MIB, True)


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="positive"):
        ChunkOrder(target=0)


def test_a_link_is_idle_once_all_is_acknowledged() -> None:
    order = ChunkOrder(whole=True)
    assert order.idle
    order.add(KV, 1, 10)
    assert not order.idle, "it waits"
    assert order.next() is not None
    assert not order.idle, "it is on its way"
    order.acknowledge({KV: 1})
    assert order.idle
