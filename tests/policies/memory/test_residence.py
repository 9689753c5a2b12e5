"""Packed tensors are resident once, close together, and for as long as something consists of them."""

from __future__ import annotations

import random

import pytest

from blockwright.policies.memory.chunks import ChunkPool
from blockwright.policies.memory.packed_tensor import PackedTensor, TensorPlace
from blockwright.policies.memory.residence import Residence
from blockwright.tests.claims import claim

CHUNK, GRANULE = 4096, 64


def made(chunks: int) -> tuple[Residence, ChunkPool]:
    pool = ChunkPool(chunks, CHUNK)
    return Residence(pool, GRANULE), pool


def tensors(**sizes: int) -> list[PackedTensor]:
    return [PackedTensor(name.encode(), nbytes) for name, nbytes in sizes.items()]


@claim("Identical tensors lie in a worker's memory once, whatever their names", of="fine-tunes")
def test_tensors_of_several_components_lie_in_memory_once() -> None:
    residence, pool = made(8)
    base = residence.load(b"base", "a", tensors(q=CHUNK, k=100, o=CHUNK))
    assert base == [TensorPlace(0, True), TensorPlace(CHUNK, True), TensorPlace(CHUNK + 128, True)]
    tuned = residence.load(b"tuned", "b", tensors(q=CHUNK, k=100, mine=50))
    assert tuned == [TensorPlace(0, False), TensorPlace(CHUNK, False), TensorPlace(2 * CHUNK + 128, True)]
    assert residence.bytes_by_holder() == {"a": (CHUNK, CHUNK + 128), "b": (64, CHUNK + 128)}
    assert residence.release(b"base", "a") == [b"o"]
    assert residence.bytes_by_holder() == {"b": (CHUNK + 128 + 64, 0)}
    assert residence.tensor_bytes == CHUNK + 128 + 64
    residence.check()
    assert residence.release(b"tuned", "b") == [b"q", b"k", b"mine"]
    assert (residence.used, pool.free) == (0, 8)
    residence.check()


def test_small_tensors_share_chunks_and_the_last_gives_the_chunk_back() -> None:
    residence, pool = made(2)
    for i in range(64):
        assert residence.load(bytes([i]), "a", [PackedTensor(bytes([i]), 60)]) is not None
        residence.check()
    assert (residence.used, residence.tensor_bytes) == (1, CHUNK)
    pool.take_edits()
    for i in range(63):
        residence.release(bytes([i]), "a")
    assert not pool.pending, "the chunk is in use"
    residence.release(bytes([63]), "a")
    assert [(edit.offset, edit.back) for edit in pool.take_edits()] == [(0, True)]


def test_two_equal_tensors_of_one_component_lie_in_memory_once() -> None:
    residence, _ = made(1)
    places = residence.load(b"c", "a", [PackedTensor(b"norm", 64), PackedTensor(b"w", 64), PackedTensor(b"norm", 64)])
    assert places == [TensorPlace(0, True), TensorPlace(64, True), TensorPlace(0, False)]
    assert residence.release(b"c", "a") == [b"norm", b"w"]


def test_what_does_not_fit_changes_nothing() -> None:
    residence, pool = made(2)
    residence.load(b"c", "a", tensors(q=CHUNK + 64))
    before = residence.snapshot()
    pool.take_edits()
    assert residence.load(b"d", "a", tensors(q=CHUNK + 64, k=CHUNK - 128, v=128)) is None
    assert residence.load(b"d", "a", tensors(huge=100 * CHUNK)) is None
    assert residence.chunks_for(tensors(k=CHUNK - 64)) == 0
    assert residence.chunks_for(tensors(k=CHUNK)) == 1
    assert residence.snapshot() == before
    assert not pool.pending
    residence.check()


def test_neighbouring_chunks_are_mapped_and_given_back_together() -> None:
    residence, pool = made(8)
    residence.load(b"a", "x", tensors(a=3 * CHUNK))
    residence.load(b"b", "x", tensors(b=CHUNK + 64))
    assert [(edit.offset, len(edit.chunks)) for edit in pool.take_edits()] == [(0, 3), (3, 2)]
    residence.release(b"b", "x")
    residence.load(b"c", "x", tensors(c=64))
    residence.release(b"a", "x")
    assert [(edit.offset, len(edit.chunks), edit.back) for edit in pool.take_edits()] == [
        (3, 2, True), (3, 1, False), (0, 3, True),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_loads_and_releases(seed: int) -> None:
    """Against a count of what is held, with copies on the way that must go on alike."""
    chance = random.Random(seed)
    residence, pool = made(40)
    sizes = {bytes([i]): chance.choice((1, 64, 700, CHUNK, 3 * CHUNK + 5)) for i in range(30)}
    held: dict[bytes, tuple[list[bytes], set[str]]] = {}
    for _ in range(200):
        component, holder = bytes([chance.randrange(12)]), chance.choice("xyz")
        if component in held and chance.random() < 0.7:
            ids, holders = held[component]
            gone = residence.release(component, holder)
            holders.discard(holder)
            if not holders:
                del held[component]
                others = {id for ids, _ in held.values() for id in ids}
                assert gone == [id for id in dict.fromkeys(ids) if id not in others]
            else:
                assert gone is None
        elif component in held:
            assert residence.hold(component, holder) is not None
            held[component][1].add(holder)
        else:
            wanted = [PackedTensor(id, sizes[id]) for id in chance.choices(list(sizes), k=5)]
            places = residence.load(component, holder, wanted)
            if places is not None:
                there = {id for ids, _ in held.values() for id in ids}
                fresh = {tensor.id for tensor, place in zip(wanted, places, strict=True) if place.fresh}
                assert fresh == {tensor.id for tensor in wanted} - there
                held[component] = ([tensor.id for tensor in wanted], {holder})
        residence.check()
        pool.check(residence.chunks)
        needed = sum(-(-sizes[id] // GRANULE) for id in {id for ids, _ in held.values() for id in ids})
        assert residence.tensor_bytes == needed * GRANULE
        assert residence.chunks_by_holder() == {name: alone(residence, pool, name, held) for name in residence.holders()}
        if chance.random() < 0.1:
            snapshot = residence.snapshot()
            if chance.random() < 0.5:
                pool = pool.fork()
                residence = residence.fork(pool)
            else:
                pool = ChunkPool.restore(pool.snapshot())
                residence = Residence.restore(snapshot, pool)
            assert residence.snapshot() == snapshot


def alone(residence: Residence, pool: ChunkPool, name: str, held: dict[bytes, tuple[list[bytes], set[str]]]) -> int:
    """Chunks in use once all others have gone."""
    left = residence.fork(pool.fork())
    for component, (_, holders) in held.items():
        for holder in holders - {name}:
            left.release(component, holder)
    return left.used


def test_a_granule_must_divide_a_chunk() -> None:
    with pytest.raises(ValueError, match="no multiple of a granule of 60"):
        Residence(ChunkPool(1, CHUNK), 60)


def test_what_is_borrowed_is_the_other_holders_own() -> None:
    residence, _ = made(8)
    residence.load(b"base", "a", tensors(q=CHUNK))
    assert residence.hold(b"base", "a~1")
    residence.load(b"stitch", "a~1", tensors(w=100))
    residence.borrow("a~1")
    assert residence.bytes_by_holder() == {"a": (CHUNK, 0), "a~1": (128, CHUNK)}
    assert residence.only("a")
    copy = Residence.restore(residence.snapshot(), made(8)[1])
    assert copy.bytes_by_holder() == residence.bytes_by_holder()
    residence.hold(b"base", "b")
    assert residence.bytes_by_holder() == {"a": (0, CHUNK), "a~1": (128, CHUNK), "b": (0, CHUNK)}
    assert not residence.only("a")
    for holder in ("a", "b"):
        assert residence.release(b"base", holder) is None
    assert residence.bytes_by_holder() == {"a~1": (CHUNK + 128, 0)}, "no other holder is left"
    residence.release(b"base", "a~1")
    residence.check()
    residence.release(b"stitch", "a~1")
    residence.check()
    residence.load(b"base", "a~1", tensors(q=CHUNK))
    residence.hold(b"base", "a")
    assert residence.bytes_by_holder() == {"a": (0, CHUNK), "a~1": (0, CHUNK)}, "it is a borrower no more"
