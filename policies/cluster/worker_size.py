"""Sizes of workers: what each worker found on its machine, and the share of it that the worker gets.

Owns the first reading of each machine, which counts for all workers of that machine and for all their lives: workers that
share a machine are equal, and one that is restarted beside full neighbors is as large as it was. What a setting asks for
wins; what a machine does not have is refused with the setting, the numbers and the remedy. Reads nothing itself.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from ..binary_size import binary_size
from ..memory.residence import VIRTUAL

CARD = "cuda:"  # with the number of the card
BY_SETTING, BY_ITSELF = "--set memory=...", "--memory SIZE, or launch_memory=... of launched workers"  # say the memory
LEAST = 128 << 10  # bytes of a worker's memory: a chunk of parameters and one of KV
SHARE = 0.6  # fraction of a machine's free memory that all workers together may take
PROGRAM = 920 << 20  # bytes of address space of a worker with torch's libraries
STACKS = 24 << 20  # bytes of address space per kernel thread: its own stack, and one in each of torch's two pools
HEAP = 64 << 20  # bytes that malloc reserves for each thread but the first; without them it still works
ROWS = 8  # rows of the sweep by which machines are compared
VALUE = 4  # bytes of a parameter of that sweep


class SizeRefused(ValueError):
    """A setting that a machine cannot satisfy: one sentence for the person who gave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReading:
    """A worker's reading of its machine, before it knows its share.

    machine: identity, equal for all workers of one machine. host: the machine's name, for people. free_memory: bytes for
    all workers of the machine, on the device. where: a phrase after "are free". address_space: bytes that a process may
    map; None: no limit. bandwidth: bytes read per second, products: multiplications per second, both with the threads of
    one worker; 0: not measured. notice: a sentence on the choice of the device.
    """

    machine: str
    host: str
    device: str
    cores: int
    free_memory: int
    where: str
    address_space: int | None = None
    bandwidth: float = 0.0
    products: float = 0.0
    notice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRules:
    """Rules for the size of each worker, from the settings.

    memory, threads: as the settings have them; 0: the worker's share. workers: workers that share a machine. layouts:
    layouts of KV, each of which reserves addresses. most_threads: limit of threads. widening: factor by which parameters
    grow from their files to memory, at most. beside: bytes that each worker takes of a card beside its memory and its
    context, beside_sizes: what they are, less_beside: the remedy; context: bytes of a context on a card.
    """

    memory: int = 0
    threads: int = 0
    workers: int = 1
    layouts: int = 1
    most_threads: int = 256
    widening: int = 1
    beside: int = 0
    beside_sizes: str = ""
    less_beside: str = ""
    context: int = 0


@dataclass(frozen=True, slots=True)
class SizeDemand:
    """The demands of a worker that joins; 0: as the settings have it, or its share."""

    memory: int = 0
    threads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """A worker's report when it joined. Units as in ``WorkerReading``; memory: bytes of its budget."""

    host: str
    device: str
    cores: int
    threads: int
    memory: int
    bandwidth: float = 0.0
    products: float = 0.0
    addresses_limited: bool = False  # its processes may not map as much as they like

    @property
    def speed(self) -> float:
        """Bytes of parameters that a small sweep passes in a second; 0: not measured."""
        if not (self.bandwidth and self.products):
            return 0.0
        return 1.0 / max(1.0 / self.bandwidth, ROWS / (VALUE * self.products))


class WorkerSizes:
    """The sizes of one cluster's workers (see the module)."""

    def __init__(self, rules: SizeRules) -> None:
        self.rules = rules
        self._readings: dict[str, WorkerReading] = {}  # by machine: the first
        self._demands: dict[str, SizeDemand] = {}  # of workers that joined, by name
        self._machines: dict[str, str] = {}  # worker -> its machine

    def demand(self, worker: str, demand: SizeDemand) -> None:
        """Expect a worker that joins."""
        self._demands[worker] = demand

    def report(self, worker: str, reading: WorkerReading, known: Collection[str]) -> WorkerReport:
        """Return the size of a worker that made this reading. ``known``: the workers that there are. Raises SizeRefused."""
        self._machines = {name: at for name, at in self._machines.items() if name in known}
        self._demands = {name: demand for name, demand in self._demands.items() if name in known}
        beside = sum(at == reading.machine for name, at in self._machines.items() if name != worker)
        self._machines[worker] = reading.machine
        if (demand := self._demands.get(worker)) is not None:
            return size_of_joined(reading, self.rules, demand, beside)
        return self.settle(reading)

    def known(self, machine: str) -> WorkerReading | None:
        """Return what was found on a machine before, or None."""
        return self._readings.get(machine)

    def settle(self, reading: WorkerReading) -> WorkerReport:
        """Return the share of the worker that made this reading. Raises SizeRefused."""
        report = size_of(self._readings.get(reading.machine, reading), self.rules)
        self._readings.setdefault(reading.machine, reading)
        return report


def size_of_joined(reading: WorkerReading, rules: SizeRules, demand: SizeDemand, beside: int) -> WorkerReport:
    """Return the size of a worker that joined, and has its machine to itself but for ``beside`` other workers there.

    Theirs is lent to them whether they use it or not, and is not known here, so beside them it has to say what it takes.
    Raises SizeRefused.
    """
    memory, threads = demand.memory or rules.memory, demand.threads or rules.threads
    if beside and not memory:
        others = f"{beside} other worker{'s' * (beside > 1)}"
        raise SizeRefused(f"{reading.host} has {others} already, which may take its memory; give --memory SIZE")
    threads = threads or threads_of(max(reading.cores // (beside + 1), 1), replace(rules, threads=0, workers=1))
    less = BY_ITSELF if demand.memory else BY_SETTING
    return size_of(reading, replace(rules, memory=memory, threads=threads, workers=1), less)


def threads_of(cores: int, rules: SizeRules) -> int:
    """Return the kernel threads of one worker."""
    return rules.threads or min(max(cores // rules.workers, 1), rules.most_threads)


def size_of(reading: WorkerReading, rules: SizeRules, less: str = BY_SETTING) -> WorkerReport:
    """Return a worker's share of its machine. less: where less memory would be asked for. Raises SizeRefused."""
    workers, asked = rules.workers, rules.memory
    free = reading.free_memory
    if reading.device.startswith(CARD):
        free = _left_on_card(reading, rules)
    if asked * workers > free:
        all_of_them = f" for each worker, {binary_size(asked * workers)} for all {workers}" if workers > 1 else ""
        raise SizeRefused(
            f"memory is {binary_size(asked)}{all_of_them}, but only {binary_size(free)} are free "
            f"{reading.where}; give less ({less})"
        )
    memory = asked or int(free * SHARE) // workers
    threads = threads_of(reading.cores, rules)
    if reading.address_space is not None:
        _check_address_space(reading.address_space, memory, threads, rules.layouts)
    return WorkerReport(
        host=reading.host,
        device=reading.device,
        cores=reading.cores,
        threads=threads,
        memory=memory,
        bandwidth=reading.bandwidth,
        products=reading.products,
        addresses_limited=reading.address_space is not None,
    )


def card_memory(report: WorkerReport, rules: SizeRules) -> str:
    """Return a sentence on the memory that each worker has on its card."""
    memory, context = binary_size(report.memory), binary_size(rules.context)
    return f"each worker has {memory} for parameters and KV; beside it {context} context, {rules.beside_sizes}"


def _left_on_card(reading: WorkerReading, rules: SizeRules) -> int:
    """Return the bytes that are left for parameters and KV; contexts were put aside before. Raises SizeRefused."""
    left = reading.free_memory - rules.workers * rules.beside
    if left <= 0:
        raise SizeRefused(
            f"workers is {rules.workers}, but only {binary_size(reading.free_memory)} are free {reading.where}, and before "
            f"any parameter each takes {rules.beside_sizes}; start fewer, {rules.less_beside}, or choose a larger card"
        )
    return left


def program_space(threads: int) -> int:
    """Return the bytes of address space of a worker with ``threads`` kernel threads, before any for models (measured).

    Two heaps are created early, so parameters and KV do not get their space.
    """
    return PROGRAM + threads * STACKS + min(threads - 1, 2) * HEAP


def _check_address_space(limit: int, memory: int, threads: int, layouts: int) -> None:
    """Check that the address space suffices. Raises SizeRefused.

    A worker reserves ranges for parameters and for each layout's KV. They cost nothing but addresses.
    """
    ranges = VIRTUAL + layouts
    program = program_space(threads)
    if (need := program + ranges * memory) > limit:
        fits = (limit - program) // ranges
        less = f" or give less memory (--set memory={fits >> 20}MiB)" if fits >= 1 << 20 else ""
        raise SizeRefused(
            f"a process here may map {binary_size(limit)} (ulimit -v or -d), but a worker with memory {binary_size(memory)} "
            f"needs about {binary_size(need)}; raise the limit (ulimit -v unlimited){less}"
        )
