"""The mirror of a card's memory against a model: chunks keep their bytes wherever they move, new ones hold no number, and
what is not mapped faults. The accesses that fault end a child process.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from blockwright.gpu.cuda.arena import MappedArena
from blockwright.gpu.cuda.deferred import DeferredStreams
from blockwright.gpu.cuda.mirror import MirrorMemory
from blockwright.gpu.errors import ExecutorError
from blockwright.tests.claims import claim
from blockwright.tests.parts import spans

CHUNK = 4096
POOL = 24
PLACES = 40  # chunks of a range


def signal_of(access: Callable[[], object]) -> int:
    """The signal that ends a process which does this; 0 if none."""
    if not (child := os.fork()):
        faulthandler.disable()
        access()
        os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


@pytest.fixture
def memory() -> Iterator[MirrorMemory]:
    made = MirrorMemory(CHUNK, POOL)
    yield made
    made.close()


class Model:
    """What two ranges and the pool should hold: a byte for each chunk."""

    def __init__(self) -> None:
        self.content = [0xFF] * POOL
        self.at: list[dict[int, int]] = [{}, {}]  # of each range: chunk id by place

    @property
    def free(self) -> list[int]:
        return sorted(set(range(POOL)) - {*self.at[0].values(), *self.at[1].values()})


def play(seed: int) -> None:
    """Random commits, moves, drops and writes in two arenas over one pool; after each everything mapped is compared."""
    draw = random.Random(seed)
    memory = MirrorMemory(CHUNK, POOL)
    model = Model()
    arenas = [MappedArena(memory, name, PLACES * CHUNK) for name in ("parameters", "kv")]
    for _ in range(40):
        which = draw.randrange(2)
        arena, places = arenas[which], model.at[which]
        first, count = draw.randrange(PLACES), draw.randint(1, 6)
        span = range(first, first + count)
        kind = draw.choice(("commit", "commit", "give back", "move", "write"))
        if kind == "write" and places:
            place, byte = draw.choice(sorted(places)), draw.randrange(256)
            arena.view(place * CHUNK, CHUNK).fill_(byte)
            model.content[places[place]] = byte
        elif kind == "commit":
            ids = draw.sample(model.free, min(count, len(model.free)))
            if first + len(ids) <= PLACES and places.keys().isdisjoint(span[: len(ids)]):
                arena.commit(first, ids)
                places.update(zip(span, ids, strict=False))
            elif ids:
                with pytest.raises(ExecutorError):
                    arena.commit(first, ids)
        elif places.keys() >= set(span):
            ids = [places.pop(place) for place in span]
            arena.give_back(first, ids)
            if kind == "move":
                other, target = model.at[1 - which], draw.randrange(PLACES - count)
                if other.keys().isdisjoint(range(target, target + count)):
                    arenas[1 - which].commit(target, ids)
                    other.update(zip(range(target, target + count), ids, strict=True))
        else:
            with pytest.raises(ExecutorError):
                arena.give_back(first, [places.get(place, 0) for place in span])
        for one, held in zip(arenas, model.at, strict=True):
            assert one.committed == len(held)
            for place, id in held.items():
                held_B = one.view(place * CHUNK, CHUNK).numpy()
                assert (held_B == model.content[id]).all()
    memory.close()


@claim("A drop or a restore moves chunks of memory between ranges with their bytes, without a copy", of="numerics")
@pytest.mark.parametrize("seeds", spans(10, 100, daily=5), ids=str)
def test_random_commits_moves_and_drops(seeds: range) -> None:
    for seed in seeds:
        play(seed)


def test_a_chunk_moves_with_its_bytes_and_a_new_one_holds_no_number(memory: MirrorMemory) -> None:
    one, two = (MappedArena(memory, name, PLACES * CHUNK) for name in ("parameters", "kv"))
    one.commit(3, [7, 2])
    assert bool(one.view(3 * CHUNK, CHUNK).view(torch.float32).isnan().all())
    assert bool(one.view(3 * CHUNK, CHUNK).view(torch.bfloat16).isnan().all())
    with one.window(4 * CHUNK, CHUNK) as window:
        window.fill_(9)
    one.give_back(3, [7, 2])
    two.commit(0, [2])
    found = np.empty(CHUNK, dtype=np.uint8)
    two.read(0, found)
    assert set(found.tolist()) == {9}


def test_what_is_not_mapped_faults(memory: MirrorMemory) -> None:
    arena = MappedArena(memory, "kv", PLACES * CHUNK)
    arena.commit(0, [1])
    stale = arena.view(0, CHUNK)
    assert signal_of(lambda: stale.fill_(1)) == 0
    arena.give_back(0, [1])
    assert signal_of(lambda: stale[0].item()) == signal.SIGSEGV
    assert signal_of(lambda: arena.memory[5 * CHUNK].item()) == signal.SIGSEGV


def test_unmapping_is_refused_while_work_is_queued() -> None:
    streams = DeferredStreams()
    stream, memory = streams.stream(), MirrorMemory(CHUNK, POOL, streams.queued)
    arena = MappedArena(memory, "kv", PLACES * CHUNK)
    arena.commit(0, [4, 5])
    view = arena.view(0, CHUNK)
    stream.launch(lambda: view.fill_(3))
    with pytest.raises(ExecutorError, match="2 chunks would be unmapped while 1 operations are queued; settle first"):
        arena.give_back(0, [4, 5])
    assert int(view[0]) == 0xFF
    streams.settle()
    assert int(view[0]) == 3
    arena.give_back(0, [4, 5])
    assert arena.committed == 0


def test_wrong_accounts_are_refused_and_change_nothing(memory: MirrorMemory) -> None:
    arena = MappedArena(memory, "kv", PLACES * CHUNK)
    arena.commit(2, [0, 1])
    for wrong, words in (
        (lambda: arena.commit(8, [1]), "chunk 1 would be mapped at two places"),
        (lambda: arena.commit(8, [3, 3]), "chunk 3 would be mapped at two places"),
        (lambda: arena.commit(3, [5]), "chunk 1 is mapped at .* already"),
        (lambda: arena.commit(8, [POOL]), f"chunk {POOL} does not exist"),
        (lambda: arena.commit(PLACES - 1, [5, 6]), f"has {PLACES} chunks"),
        (lambda: arena.give_back(2, [1, 0]), r"has chunks \[0, 1\] from 2 on"),
        (lambda: arena.give_back(3, [1, 2]), "arena kv has chunks"),
        (lambda: arena.view(3 * CHUNK, CHUNK + 1), "are not committed"),
        (lambda: memory.map(64, [5]), "lie in no reserved range"),
        (lambda: memory.unmap(memory.reserve(1), 1), "nothing is mapped at"),
        (lambda: MirrorMemory(1000, 1), "no multiple of the page size"),
    ):
        with pytest.raises(ExecutorError, match=words):
            wrong()
    assert arena.committed == 2
    arena.give_back(2, [0, 1])


def test_a_view_keeps_the_memory() -> None:
    memory = MirrorMemory(CHUNK, POOL)
    arena = MappedArena(memory, "kv", CHUNK)
    arena.commit(0, [0])
    view = arena.view(0, CHUNK)
    del arena, memory
    view.fill_(5)
    assert int(view.sum()) == 5 * CHUNK
