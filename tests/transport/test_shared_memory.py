"""Slots: written by one process, read by another, back when nobody reads, nothing left whoever is killed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from blockwright.transport import shared_memory
from blockwright.transport.address import PeerId
from blockwright.transport.link_wire import NOTHING
from blockwright.transport.shared_memory import GRANULE, SharedPool, attach
from blockwright.transport.wire import WireError

B = PeerId("b", 1)


@pytest.fixture
def pool():
    made = SharedPool(16 * GRANULE)
    yield made
    made.close()


def test_what_is_written_is_read_without_a_copy(pool):
    attached = attach(pool.offer)
    slot = pool.allocate(100_000)
    slot.view[:5] = b"first"
    view = attached.view(slot.offset, slot.size, lambda: None)
    assert bytes(view[:5]) == b"first"
    slot.view[:5] = b"other"
    assert bytes(view[:5]) == b"other"
    assert len(view) == 100_000
    with pytest.raises(TypeError):
        view[0] = 1


def test_a_view_is_released_when_the_last_slice_of_it_is_gone(pool):
    import numpy

    attached, released = attach(pool.offer), []
    view = attached.view(pool.put(b"12345678").offset, 8, lambda: released.append(1))
    part, array = view[2:4], numpy.frombuffer(view, numpy.uint8)
    tail = array[6:]
    del view, array, attached
    gc.collect()
    assert released == []
    assert bytes(part) == b"34"
    del part
    assert released == []
    assert tail.tolist() == [55, 56], "still mapped"
    del tail
    assert released == [1]


def test_a_slot_returns_when_all_who_hold_it_let_go(pool):
    free = pool.free
    slot = pool.allocate(3 * GRANULE - 1)
    assert pool.free == free - 3 * GRANULE
    offset = slot.offset
    pool.lend(B, slot)
    pool.lend(B, slot)
    del slot
    pool.release(B, offset)
    assert pool.lent(B) == 1
    assert pool.free == free - 3 * GRANULE
    pool.release(B, offset)
    assert pool.free == free
    pool.lend(B, pool.allocate(1))
    pool.forget(B)
    assert pool.free == free


def test_a_full_pool_says_so(pool):
    assert pool.allocate(0) is None
    held = [pool.allocate(5 * GRANULE) for _ in range(3)]
    assert None not in held
    assert pool.allocate(1) is None
    assert pool.put(b"x") is None
    held.pop()
    assert pool.allocate(5 * GRANULE) is not None


def test_handles_from_the_wire_are_checked(pool):
    attached = attach(pool.offer)
    size = pool.offer.size
    for offset, length in [
        (0, 1),
        (1, 1),
        (GRANULE, 0),
        (GRANULE, size),
        (size, 1),
        (-GRANULE, 1),
        (2**63, 1),
        (GRANULE, 2**64),
    ]:
        with pytest.raises(WireError):
            attached.view(offset, length, lambda: None)
    pool.lend(B, slot := pool.allocate(1))
    for peer, offset in [(B, 0), (B, slot.offset + 1), (PeerId("c", 1), slot.offset)]:
        with pytest.raises(WireError):
            pool.release(peer, offset)


def test_an_offer_that_is_not_what_it_claims_is_not_attached(pool, tmp_path):
    offer = pool.offer
    assert attach(offer) is not None
    assert attach(NOTHING) is None
    for wrong in ({"token": bytes(16)}, {"size": offer.size * 2}, {"descriptor": 10**6}, {"process": 2**31 - 1}):
        assert attach(replace(offer, **wrong)) is None
    with open(tmp_path / "file", "wb") as file:
        file.write(offer.token + bytes(offer.size - 16))
        file.flush()
        assert attach(replace(offer, descriptor=file.fileno())) is None
    unsealed = os.memfd_create(shared_memory._NAME)
    os.write(unsealed, offer.token + bytes(offer.size - 16))
    assert attach(replace(offer, descriptor=unsealed)) is None, "its owner could shrink it under the reader"
    os.close(unsealed)


def test_slots_may_be_taken_and_dropped_by_any_thread(pool):
    free = pool.free

    def work():
        for number in range(300):
            slot = pool.allocate(number % (2 * GRANULE) + 1)
            if slot is not None:
                slot.view[0] = number % 256

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.free == free


OWNER = """
import sys, time
from blockwright.transport.shared_memory import SharedPool
pool = SharedPool(1 << 20)
slot = pool.put(b"from the dead")
o = pool.offer
print(o.process, o.descriptor, o.size, o.token.hex(), slot.offset, flush=True)
time.sleep(600)
"""


def maps() -> int:
    return Path("/proc/self/maps").read_text().count("blockwright-slots")


def test_nothing_remains_of_a_killed_owner_but_what_is_read(pool):
    gc.collect()
    before, mapped = set(os.listdir("/dev/shm")), maps()  # of other programs, too
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    words = owner.stdout.readline().split()
    offer = shared_memory.SharedMemoryOffer(int(words[0]), int(words[1]), int(words[2]), bytes.fromhex(words[3]))
    attached = attach(offer)
    view = attached.view(int(words[4]), 13, lambda: None)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert bytes(view) == b"from the dead"
    assert attach(offer) is None
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "blockwright" in name}
    assert maps() == mapped + 1
    del attached, view
    assert maps() == mapped


def test_a_closed_pool_is_not_found(pool):
    offer = pool.offer
    slot = pool.allocate(1)
    pool.close()
    pool.close()
    assert attach(offer) is None
    slot.view[0] = 1
