"""How much of KV memory comes back when sequences of a burst end, by itself and when slots move together."""

from __future__ import annotations

from random import Random

import pytest

from blockwright.policies.memory.chunks import ChunkPool
from blockwright.policies.memory.compaction import groups_to_empty
from blockwright.policies.memory.packed_tensor import PackedTensor, Shortage, WantedComponent
from blockwright.policies.memory.slots import SlotAllocator
from blockwright.policies.memory.worker_memory import WorkerMemory
from blockwright.policies.model.chain import KvLayout
from blockwright.policies.model.runs import Span

CHUNK = 64 * 1024


def burst(slot_bytes: int, layers: int, seed: int, use: float) -> tuple[SlotAllocator, list[int]]:
    """Sequences of log-normal lengths that have grown side by side, and of which so many have ended; their slots."""
    random, slots = Random(seed), SlotAllocator("kv", slot_bytes, ChunkPool(1 << 16, CHUNK))
    pages = [max(1, int(random.lognormvariate(3, 0.8))) for _ in range(120)]
    held: list[list[int]] = [[] for _ in pages]
    for step in range(max(pages)):
        for own, count in zip(held, pages, strict=True):
            for _ in range(count // 2 if step == 0 else step > count // 2 and step <= count):
                own += slots.allocate(layers) or []
    everything = slots.used
    while slots.used > use * everything:
        slots.free(held.pop(random.randrange(len(held))))
    return slots, [slot for own in held for slot in own]


@pytest.mark.parametrize(
    ("slot_bytes", "layers", "lowest", "highest"),
    [
        (65536, 48, 1.0, 1.0),  # 14B: a page of a layer is a chunk, whatever the layers
        (8192, 24, 0.95, 1.0),
        (4096, 24, 0.8, 0.95),
        (8192, 3, 0.4, 0.7),
        (2048, 3, 0.2, 0.5),
        (1024, 1, 0.0, 0.2),
    ],
)
def test_what_comes_back_by_itself_at_half_use(slot_bytes: int, layers: int, lowest: float, highest: float) -> None:
    """A part of what could: where a page fills whole groups all of it; of small pages little. Moved together, all."""
    came, could = 0, 0
    for seed in range(3):
        slots, taken = burst(slot_bytes, layers, seed, 1.0)
        all_chunks = len(slots.chunks)
        slots, taken = burst(slot_bytes, layers, seed, 0.5)
        came += all_chunks - len(slots.chunks)
        could += all_chunks - len(slots.chunks) + slots.spare
        spare, used = slots.spare, slots.used
        moved = slots.vacate(spare, slots.used, taken)
        assert (slots.spare, slots.used) == (0, used)
        assert len(moved) <= used / 2 + slots.group_slots, "the sparser half moves"
        slots.check([moved.get(slot, slot) for slot in taken])
    assert lowest <= came / could <= highest, came / could


def test_it_grows_as_sequences_end() -> None:
    shares = []
    for use in (0.75, 0.5, 0.25, 0.1):
        slots, _ = burst(4096, 3, 1, use)
        shares.append(slots.spare / len(slots.chunks))
    assert shares == sorted(shares), "what is left is ever sparser"
    assert shares[1] > 0.2


def test_the_sparsest_groups_are_emptied_and_no_more_than_fit_or_may_move() -> None:
    free = {1: 3, 2: 1, 5: 3, 7: 2}
    assert groups_to_empty(free, 4, 1, 99) == [1]
    assert groups_to_empty(free, 4, 2, 99) == [1, 5]
    assert groups_to_empty(free, 4, 3, 99) == [1, 5], "the others have three free slots, and four would have to go there"
    assert groups_to_empty(free, 4, 2, 1) == [1]
    assert groups_to_empty({}, 4, 2, 9) == []


def test_a_load_finds_room_where_slots_can_move_and_changes_nothing_where_not() -> None:
    layout = KvLayout(1, 8, "float32", 4)
    span = Span.of(0, layout.key, [(b"a0",)], [b"l0"])
    made = WorkerMemory(8 * CHUNK, CHUNK, CHUNK // 4)
    made.add_layout(layout)
    handles = [made.allocate_page(span, "") for _ in range(32)]
    listed = {handle: 1 for i, handle in enumerate(handles) if handle is not None and i % 2}
    cached = [handle for i, handle in enumerate(handles) if handle is not None and i % 2 == 0]
    for i, handle in enumerate(cached):
        made.pages.publish(handle, b"%d" % i)
    made.pages.release(cached, "")
    made.take_edits()
    assert made.free_bytes == 0
    for chunks, moves, fits in ((5, {}, False), (4, None, False), (3, {}, True)):
        before, wanted = made.snapshot(), [WantedComponent(b"c", [PackedTensor(b"t", chunks * CHUNK)])]
        answer = made.load("app", wanted, 0, moves)  # type: ignore[arg-type]
        assert isinstance(answer, Shortage) != fits
        if not fits:
            assert (made.snapshot(), moves or {}) == (before, {})
    assert made.pages.cached == 16 - 12, "the newest that there is still room for"
    assert 0 < len(moves[layout.key]) <= 8  # type: ignore[index]
    made.check(listed)
    copy = WorkerMemory.restore(made.snapshot())
    copy.check(listed)
    page = made.allocate_page(span, "")
    assert page is not None
    made.pages.release([page], "")
    assert made.load("other", [WantedComponent(b"d", [PackedTensor(b"u", CHUNK)])], 0, {}), "the last cached page goes"


def test_slots_whose_memory_the_device_does_not_have_yet_stay() -> None:
    layout = KvLayout(1, 8, "float32", 4)
    span = Span.of(0, layout.key, [(b"a0",)], [b"l0"])
    made = WorkerMemory(2 * CHUNK, CHUNK, CHUNK // 4)
    made.add_layout(layout)
    handles = [handle for _ in range(8) if (handle := made.allocate_page(span, "")) is not None]
    made.pages.release(handles[1:3] + handles[4:7], "")
    wanted = [WantedComponent(b"c", [PackedTensor(b"t", CHUNK)])]
    assert isinstance(made.load("app", wanted, 0, {}), Shortage)
    made.take_edits()
    assert not isinstance(made.load("app", wanted, 0, {}), Shortage)
