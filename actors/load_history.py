"""Load history of a serving process: a row per second of the last minutes, coarser rows for the hours before.

Owns the rows, a bounded number of them, and the sums over several processes. The page's charts read it. Standard library
only: time and numbers are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

RINGS = ((1, 180), (10, 360), (60, 1440))  # (seconds of a row, rows): three minutes, an hour, a day
WINDOW = 10  # one-second rows that a quantile is taken over; a single row has too few requests


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes, over all workers. ``tenants``: KV by tenant, cached pages included."""

    parameters: float = 0.0
    kv: float = 0.0  # in use
    cached: float = 0.0
    free: float = 0.0
    tenants: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadRow:
    """Load over one interval, as the mean of ``samples`` samples.

    ``at`` is its beginning in seconds since 1970. ``first`` counts requests by time to first token, one number for each
    bucket. ``memory`` is the state at its end; None where it is unknown.
    """

    at: int
    samples: int
    running: float
    waiting: float
    rate: float  # tokens generated in a second
    first: list[int]
    memory: Memory | None = None

    def then(self, later: LoadRow) -> LoadRow:
        """Merge with a later row."""
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
        """Merge with another process's row of the same time. Memory is the workers', so both rows report the same."""
        load = self.running + other.running, self.waiting + other.waiting, self.rate + other.rate
        samples = max(self.samples, other.samples)
        return LoadRow(self.at, samples, *load, _added(self.first, other.first), self.memory or other.memory)


def _added(a: Sequence[int], b: Sequence[int]) -> list[int]:
    return [x + y for x, y in zip(a, b, strict=True)]


class LoadHistory:
    """Load history of one process (see the module). ``memory`` is set from outside when it is known."""

    def __init__(self) -> None:
        self.memory: Memory | None = None
        self._rings: dict[int, deque[LoadRow]] = {step: deque(maxlen=limit) for step, limit in RINGS}
        self._at, self._generated = 0.0, 0
        self._first: Sequence[int] | None = None

    def record(self, at: float, running: int, waiting: int, generated: int, first: Sequence[int]) -> None:
        """Add a sample.

        ``at`` is in seconds since 1970. ``generated`` counts tokens since the start. ``first`` counts requests by bucket
        since then.
        """
        before, seconds = self._first, at - self._at
        if before is not None and seconds <= 0:
            return  # the clock was set back: wait until it reaches this time again
        if before is not None:
            rate = max(0, generated - self._generated) / seconds
            grown = [max(0, now - then) for now, then in zip(first, before, strict=True)]
            for step, ring in self._rings.items():
                row = LoadRow(int(at) // step * step, 1, running, waiting, rate, grown, self.memory)
                if ring and ring[-1].at == row.at:
                    row = ring.pop().then(row)
                ring.append(row)
        self._at = at
        self._generated = generated
        self._first = list(first)

    def rows(self, step: int, after: int = 0) -> list[LoadRow]:
        """Return rows of ``step`` seconds that begin at ``after`` or later. The last one may be incomplete."""
        return [row for row in self._rings[step] if row.at >= after]


def merged(processes: Iterable[Iterable[LoadRow]]) -> list[LoadRow]:
    """Return the rows of several processes, summed by time."""
    found: dict[int, LoadRow] = {}
    for rows in processes:
        for row in rows:
            found[row.at] = found[row.at].beside(row) if row.at in found else row
    return [found[at] for at in sorted(found)]


def step_of(seconds: float) -> int:
    """Return the finest step whose rows cover ``seconds``, or else the coarsest one."""
    return next((step for step, limit in RINGS if step * limit >= seconds), RINGS[-1][0])


def quantile(counts: Sequence[int], bounds: Sequence[float], share: float) -> float | None:
    """Return the value below which the fraction ``share`` of the counts lies; None for no counts.

    Within a bucket the value is interpolated. The last bucket has no upper bound, so its lower one is returned.
    """
    wanted = share * sum(counts)
    under = 0
    low = 0.0
    if not wanted:
        return None
    for count, bound in zip(counts, bounds, strict=False):
        if under + count >= wanted:
            return low + (bound - low) * (wanted - under) / count
        under, low = under + count, bound
    return low


def windows(rows: Sequence[LoadRow], limit: int) -> list[list[int]]:
    """Return for each row the sum of its counts and the counts of up to ``limit - 1`` rows before it."""
    found: list[list[int]] = []
    for i, row in enumerate(rows):
        total = _added(found[-1], row.first) if found else list(row.first)
        if i >= limit:
            total = [count - gone for count, gone in zip(total, rows[i - limit].first, strict=True)]
        found.append(total)
    return found


def memory_of(cluster: Mapping[str, object], limit: int = 5) -> Memory | None:
    """Return the memory of all workers from the body of ``/admin/cluster``.

    The ``limit`` largest tenants are listed; the others are summed up.
    """
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
    listed = {name: tenants[name] for name in largest[:limit]}
    if rest := sum(tenants[name] for name in largest[limit:]):
        listed["others"] = rest
    return Memory(**total, tenants=listed)
