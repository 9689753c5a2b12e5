"""Arenas: memory of the process falls and rises with commits, stale views fault, wrong accounting is refused."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

from blockwright.gpu.errors import BackendError, ExecutorError
from blockwright.gpu.memory import POISON, HostArena
from blockwright.tests.memory import arena_bytes

CHUNK = 65536
MIB = 1 << 20


def held(arena: HostArena) -> int:
    """Bytes of memory that lie in an arena."""
    first = arena.memory.data_ptr()
    return arena_bytes(within=range(first, first + arena.nbytes))


@pytest.mark.parametrize("protect", [False, True])
def test_memory_rises_and_falls(protect: bool) -> None:
    arena = HostArena("test", 1 << 34, CHUNK, protect)  # 16 GiB of address space cost nothing
    assert held(arena) == 0
    arena.commit(512, range(512))
    arena.view(512 * CHUNK, 32 * MIB).fill_(7)
    assert held(arena) == 32 * MIB
    arena.give_back(512, range(256))
    assert held(arena) == 16 * MIB
    arena.commit(512, range(900, 1156))
    assert set(arena.view(512 * CHUNK, 16 * MIB).unique().tolist()) == {POISON if protect else 0}
    assert int(arena.view(768 * CHUNK, 16 * MIB).min()) == 7
    arena.give_back(512, [*range(900, 1156), *range(256, 512)])
    assert held(arena) == 0
    assert arena.committed == 0


def test_one_chunk_is_one_chunk() -> None:
    """No huge page makes 2 MiB of 64 KiB."""
    others = arena_bytes()
    arena = HostArena("test", 1 << 30, CHUNK)
    for chunk in range(0, 16384, 64):  # one in every 4 MiB
        arena.commit(chunk, [chunk])
        arena.view(chunk * CHUNK, CHUNK).fill_(1)
    assert held(arena) == 256 * CHUNK == arena_bytes() - others


def test_a_range_that_does_not_fit_is_a_sentence() -> None:
    with pytest.raises(BackendError, match=r"\d+ bytes of address space for arena test cannot be reserved .*ulimit -v"):
        HostArena("test", 1 << 60, CHUNK)


@pytest.fixture
def pipe() -> Iterator[int]:
    read, write = os.pipe()
    yield write
    os.close(read)
    os.close(write)


def test_stale_view_faults(pipe: int) -> None:
    arena = HostArena("test", MIB, CHUNK, protect=True)
    arena.commit(0, [8, 9])
    view = arena.view(0, 2 * CHUNK).numpy()
    assert os.write(pipe, view[:8]) == 8
    arena.give_back(0, [8])
    # the system call reads the memory, so that a fault is an error, not a signal
    with pytest.raises(OSError, match=os.strerror(errno.EFAULT)):
        os.write(pipe, view[:8])
    assert os.write(pipe, view[CHUNK : CHUNK + 8]) == 8


def test_wrong_accounting_is_refused() -> None:
    arena = HostArena("kv", MIB, CHUNK)
    assert arena.chunks == 16
    arena.commit(2, [40, 0, 41])
    with pytest.raises(ExecutorError, match="committed twice"):
        arena.commit(4, [42, 43])
    with pytest.raises(ExecutorError, match="without being committed"):
        arena.give_back(1, [39, 40])
    with pytest.raises(ExecutorError, match="chunk 42 is given back from place 4, where chunk 41 lies"):
        arena.give_back(3, [0, 42])
    with pytest.raises(ExecutorError, match="16 chunks"):
        arena.commit(15, [42, 43])
    with pytest.raises(ExecutorError, match="not committed"):
        arena.view(4 * CHUNK, CHUNK + 1)
    with pytest.raises(ExecutorError, match="page size"):
        HostArena("kv", MIB, 1000)
    assert arena.committed == 3
