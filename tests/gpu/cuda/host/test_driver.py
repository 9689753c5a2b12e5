"""Calls of the CUDA driver for virtual memory, and in which order: on a driver that refuses what the real one refuses."""

from __future__ import annotations

import random
import sys
from collections import Counter

import pytest

from blockwright.gpu.cuda.driver import CudaMemory
from blockwright.gpu.errors import BackendError, ExecutorError

from .fake_driver import GRANULE, FakeDriver


def opened(driver: FakeDriver, chunks: int = 16) -> CudaMemory:
    return CudaMemory(GRANULE, chunks, driver=driver)


def test_memory_that_moves_is_created_once_and_access_is_set_once_for_each_range() -> None:
    driver = FakeDriver()
    memory = opened(driver)
    parameters, kv = memory.reserve(64), memory.reserve(16)
    memory.map(parameters, [3, 9, 4])
    driver.calls.clear()
    assert memory.unmap(parameters + GRANULE, 2) == [9, 4]
    memory.map(kv, [4, 9])
    assert driver.calls == ["cuMemUnmap", "cuMemMap", "cuMemMap", "cuMemSetAccess"]
    assert sorted(driver.mapped) == sorted(driver.usable) == [parameters, kv, kv + GRANULE]
    assert [memory.id_at(kv + i * GRANULE) for i in range(3)] == [4, 9, None]
    memory.close()
    assert (driver.mapped, driver.ranges, driver.handles) == ({}, {}, {})


def test_random_moves_agree_with_the_driver() -> None:
    draw, driver = random.Random(5), FakeDriver()
    memory, places = opened(driver), dict[int, int]()
    ranges = [memory.reserve(40), memory.reserve(40)]
    for _ in range(300):
        address, count = draw.choice(ranges) + draw.randrange(36) * GRANULE, draw.randint(1, 4)
        span = range(address, address + count * GRANULE, GRANULE)
        free = sorted(set(range(16)) - set(places.values()))
        if all(place in places for place in span):
            assert memory.unmap(address, count) == [places.pop(place) for place in span]
        elif len(free) >= count and places.keys().isdisjoint(span):
            ids = draw.sample(free, count)
            memory.map(address, ids)
            places.update(zip(span, ids, strict=True))
        assert driver.usable == set(driver.mapped) == set(places)
    calls = Counter(driver.calls)
    assert calls["cuMemCreate"] == len(driver.handles) <= 16 < calls["cuMemMap"]
    assert "cuMemRelease" not in calls


def test_a_card_that_is_too_small_is_said_and_nothing_stays_mapped() -> None:
    driver = FakeDriver(chunks=2)
    memory = opened(driver)
    address = memory.reserve(8)
    with pytest.raises(BackendError, match=r"cuMemCreate .* CUDA_ERROR_OUT_OF_MEMORY; give workers less memory"):
        memory.map(address, [0, 1, 2])
    assert not driver.mapped
    memory.map(address, [0, 1])


def test_what_is_refused_before_the_driver_is_asked() -> None:
    driver = FakeDriver()
    with pytest.raises(BackendError, match=f"chunks of {GRANULE + 4096} bytes are no multiple of the card's {GRANULE}"):
        CudaMemory(GRANULE + 4096, 1, driver=driver)
    memory = CudaMemory(GRANULE, 4, queued=lambda: 1, driver=driver)
    memory.map(address := memory.reserve(2), [1])
    driver.calls.clear()
    with pytest.raises(ExecutorError, match="settle first"):
        memory.unmap(address, 1)
    assert driver.calls == []


def test_without_the_binding_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(BackendError, match=r"needs cuda-bindings.*pip install 'blockwright\[gpu\]'"):
        CudaMemory(GRANULE, 1)
