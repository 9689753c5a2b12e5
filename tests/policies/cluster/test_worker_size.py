"""Sizes of workers: the share of a machine, and the reading that counts."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from blockwright.gpu.backend import HOST_CHUNK
from blockwright.policies.binary_size import binary_size
from blockwright.policies.cluster.worker_size import (
    LEAST,
    SizeDemand,
    SizeRefused,
    SizeRules,
    WorkerReading,
    WorkerReport,
    WorkerSizes,
    program_space,
    size_of,
    size_of_joined,
)
from blockwright.tests.claims import claim

READING = WorkerReading(machine="m", host="one", device="cpu", cores=5, free_memory=1000, where="on one")


def size(memory: int = 0, threads: int = 0, workers: int = 1, **found: int) -> WorkerReport:
    return size_of(replace(READING, **found), SizeRules(memory=memory, threads=threads, workers=workers))  # type: ignore[arg-type]


def test_memory_and_threads_are_a_share_of_the_machine() -> None:
    one = size(workers=2)
    assert (one.host, one.device, one.cores, one.threads, one.memory) == ("one", "cpu", 5, 2, 300)
    assert (size(memory=77, threads=3).memory, size(memory=77, threads=3).threads) == (77, 3)
    assert size(workers=4, cores=2).threads == 1


def test_the_least_memory_is_a_chunk_of_parameters_and_one_of_kv() -> None:
    assert LEAST == 2 * HOST_CHUNK


def test_more_memory_than_there_is_is_refused_with_the_numbers() -> None:
    assert size(memory=1000).memory == 1000
    with pytest.raises(SizeRefused, match=r"^memory is 1001 B, but only 1000 B are free on one; give less \(--set"):
        size(memory=1001)


@claim("A model that does not fit the memory is refused with the number of bytes that it needs", of="checkpoints")
def test_the_memory_of_all_workers_of_a_machine_is_added_up() -> None:
    assert size(memory=250, workers=4).memory == 250
    words = r"memory is 900 B for each worker, 3.5 KiB for all 4, but only 1000 B are free on one; give less"
    with pytest.raises(SizeRefused, match=words):
        size(memory=900, workers=4)


def test_a_limit_of_the_address_space_is_held_against_what_workers_reserve() -> None:
    """Parameters reserve four budgets, each layout of KV one."""
    need = program_space(3) + 5 * 1000
    assert size(memory=1000, threads=3, address_space=need).addresses_limited
    assert not size(memory=1000, threads=3).addresses_limited
    words = rf"may map {binary_size(need - 1)} \(.*memory 1000 B needs about {binary_size(need)}; raise the limit"
    with pytest.raises(SizeRefused, match=words):
        size(memory=1000, threads=3, address_space=need - 1)
    limited = {"free_memory": 1 << 40, "address_space": program_space(3) + (1 << 30)}
    with pytest.raises(SizeRefused, match=r"or give less memory \(--set memory=(\d+)MiB\)") as caught:
        size(memory=1 << 30, threads=3, **limited)
    (fitting,) = re.findall(r"memory=(\d+)", str(caught.value))
    size(memory=int(fitting) << 20, threads=3, **limited)


@claim("A worker that is restarted beside full neighbors is as large as it was", of="faults")
def test_the_first_reading_of_a_machine_counts_for_all_of_its_workers_and_lives() -> None:
    sizes = WorkerSizes(SizeRules(memory=400, workers=2))
    assert sizes.known("m") is None
    first = sizes.settle(READING)
    assert sizes.known("m") == READING
    assert sizes.settle(replace(READING, free_memory=10, bandwidth=9.0, products=9.0)) == first, "its neighbors are full"
    with pytest.raises(SizeRefused, match="only 10 B are free on two"):
        sizes.settle(replace(READING, machine="n", free_memory=10, where="on two"))
    assert sizes.known("n") is None, "it may have more at the next try"


def test_a_small_sweep_is_limited_by_memory_or_by_products() -> None:
    slow, quick = replace(size(), bandwidth=8e9, products=1e12), replace(size(), bandwidth=8e12, products=1e9)
    assert [round(slow.speed), round(quick.speed)] == [8_000_000_000, 500_000_000]
    assert size().speed == 0.0


def test_a_worker_that_joined_has_its_machine_to_itself_or_says_what_it_takes() -> None:
    rules = SizeRules(workers=4)
    assert size_of_joined(READING, rules, SizeDemand(), 0) == size()
    assert size_of_joined(READING, replace(rules, memory=77), SizeDemand(), 0).memory == 77
    with pytest.raises(SizeRefused, match=r"give less \(--memory SIZE, or launch_memory=\.\.\. of launched workers\)"):
        size_of_joined(READING, rules, SizeDemand(1 << 50), 0)
    asked = size_of_joined(READING, replace(rules, memory=77, threads=1), SizeDemand(99, 3), 1)
    assert (asked.memory, asked.threads, asked.cores) == (99, 3, 5)
    assert size_of_joined(READING, rules, SizeDemand(99), 1).threads == 2, "cores are shared with the other"
    with pytest.raises(SizeRefused, match=r"^one has 2 other workers already, which may take its memory; give --memory"):
        size_of_joined(READING, rules, SizeDemand(), 2)
    with pytest.raises(SizeRefused, match="memory is 1001 B, but only 1000 B are free on one"):
        size_of_joined(READING, rules, SizeDemand(1001), 0)


def test_a_worker_that_joined_is_read_anew_and_beside_those_that_are_there() -> None:
    sizes = WorkerSizes(SizeRules(workers=2))
    assert sizes.report("w0", READING, ["w0"]).memory == 300
    sizes.demand("far", SizeDemand())
    with pytest.raises(SizeRefused, match="one has 1 other worker already"):
        sizes.report("far", READING, ["w0", "far"])
    elsewhere = replace(READING, machine="n", free_memory=500)
    assert sizes.report("far", elsewhere, ["w0", "far"]).memory == 300
    assert sizes.report("far", replace(elsewhere, free_memory=100), ["w0", "far"]).memory == 60, "a later life"
    assert sizes.known("n") is None
    sizes.demand("near", SizeDemand())
    assert sizes.report("near", elsewhere, ["w0", "near"]).memory == 300, "far is gone"
