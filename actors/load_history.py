"""How busy a process that answers was: a row for each second of the last minutes, coarser rows for the hours before.

Owns the rows, a bounded number of them, and how those of several processes are added up. Standard library only: time and
numbers come in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

RINGS = ((1, 180), (10, 360), (60, 1440))  # seconds of a row, rows: three minutes, an hour, a day
WINDOW = 10  # rows of a second that a quantile is taken over: one alone has few requests


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of all workers. ``tenants``: KV by tenant, cached pages included."""

    parameters: float = 0.0
    kv: float = 0.0  # in use
    cached: float = 0.0
    free: float = 0.0
    tenants: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadRow:
    """``at``: its beginning, in seconds since 1970. Means of ``samples`` looks; ``first``: requests by how long their first
    token took, one number for each bucket; ``memory``: at the end, None where nobody has told."""

    at: int
    samples: int
    running: float
    waiting: float
    rate: float  # tokens generated in a second
    first: list[int]
    memory: Memory | None = None

    def then(self, later: LoadRow) -> LoadRow:
        """Both as one row."""
        both = self.samples + later.samples

        def mean(a: float, b: float) -> float:
            return (a * self.samples + b * later.samples) / both

        return LoadRow(
            self.at,
            both,
            mean(self.running, later.running),
            mean(self.waiting, later.waiting),
            mean(self.rate, later.rate),
            _added(self.first, later.first),
            later.memory or self.memory,
        )

    def beside(self, other: LoadRow) -> LoadRow:
        """The same time in two processes. Memory is the workers', which both tell of."""
        load = self.running + other.running, self.waiting + other.waiting, self.rate + other.rate
        samples = max(self.samples, other.samples)
        return LoadRow(self.at, samples, *load, _added(self.first, other.first), self.memory or other.memory)


def _added(a: Sequence[int], b: Sequence[int]) -> list[int]:
    return [x + y for x, y in zip(a, b, strict=True)]


class LoadHistory:
    """See the module. ``memory`` is set by whoever hears of it."""

    def __init__(self) -> None:
        self.memory: Memory | None = None
        self._rings: dict[int, deque[LoadRow]] = {step: deque(maxlen=most) for step, most in RINGS}
        self._at, self._generated = 0.0, 0
        self._first: Sequence[int] | None = None

    def record(self, at: float, running: int, waiting: int, generated: int, first: Sequence[int]) -> None:
        """A look at ``at``, seconds since 1970. generated: tokens since the start; first: requests by bucket since then."""
        before, seconds = self._first, at - self._at
        if before is not None and seconds <= 0:
            return  # the clock was set back: wait until it has come here again
        if before is not None:
            rate = max(0, generated - self._generated) / seconds
            grown = [max(0, now - then) for now, then in zip(first, before, strict=True)]
            for step, ring in self._rings.items():
                row = LoadRow(int(at) // step * step, 1, running, waiting, rate, grown, self.memory)
                if ring and ring[-1].at == row.at:
                    row = ring.pop().then(row)
                ring.append(row)
        self._at, self._generated, self._first = at, generated, list(first)

    def rows(self, step: int, after: int = 0) -> list[LoadRow]:
        """Rows of ``step`` seconds that begin at ``after`` or later; the last one may not be full yet."""
        return [row for row in self._rings[step] if row.at >= after]


def merged(processes: Iterable[Iterable[LoadRow]]) -> list[LoadRow]:
    """The rows of several processes, by time."""
    found: dict[int, LoadRow] = {}
    for rows in processes:
        for row in rows:
            found[row.at] = found[row.at].beside(row) if row.at in found else row
    return [found[at] for at in sorted(found)]


def step_of(seconds: float) -> int:
    """The finest rows that reach so far back; the coarsest where none does."""
    return next((step for step, most in RINGS if step * most >= seconds), RINGS[-1][0])


def quantile(counts: Sequence[int], bounds: Sequence[float], share: float) -> float | None:
    """Below which ``share`` of what was counted lies, between the bounds of its bucket in proportion; None of nothing. Of
    the last bucket, which has no bound, the lower one."""
    wanted, under, low = share * sum(counts), 0, 0.0
    if not wanted:
        return None
    for count, bound in zip(counts, bounds, strict=False):
        if under + count >= wanted:
            return low + (bound - low) * (wanted - under) / count
        under, low = under + count, bound
    return low


def windows(rows: Sequence[LoadRow], most: int) -> list[list[int]]:
    """For each row the counts of it and of those up to ``most - 1`` before it, added up."""
    found: list[list[int]] = []
    for i, row in enumerate(rows):
        total = _added(found[-1], row.first) if found else list(row.first)
        if i >= most:
            total = [count - gone for count, gone in zip(total, rows[i - most].first, strict=True)]
        found.append(total)
    return found


def memory_of(cluster: Mapping[str, object], most: int = 5) -> Memory | None:
    """From the body of ``/admin/cluster``: of all workers. ``most`` tenants are told apart, the largest."""
    workers = cluster.get("workers")
    if not isinstance(workers, list) or not workers:
        return None
    total = dict.fromkeys(("parameters", "kv", "cached", "free"), 0.0)
    tenants: dict[str, float] = {}
    for worker in workers:
        for use, size in (worker.get("memory") or {}).items():
            if use in total:
                total[use] += size
        for tenant, size in (worker.get("kv_by_tenant") or {}).items():
            tenants[tenant] = tenants.get(tenant, 0.0) + size
    largest = sorted(tenants, key=lambda name: (-tenants[name], name))
    told = {name: tenants[name] for name in largest[:most]}
    if rest := sum(tenants[name] for name in largest[most:]):
        told["others"] = rest
    return Memory(**total, tenants=told)
