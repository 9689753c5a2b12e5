"""The slow computations of an offline job: ordering its requests, and cutting the waiting ones into parts for its workers.

Each is a function of copies and changes nothing that it did not make, so another thread may run it while the job goes on.
Requests that have started meanwhile are removed from the parts when they are adopted (``OfflineFeed.adopt``).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .density import Costs
from .estimates import Estimates
from .job_account import JobAccount, WorkEstimate, WorkSums
from .order import OrderRules, Unit, Weigher, density_order
from .parts import cut
from .prefix_tree import PrefixTree

WAITING, RUNNING, DONE = range(3)  # states of a request
NEAR = 8  # neighbors of a sample that are read right after the samples


@dataclass(frozen=True, slots=True)
class JobOrder:
    """All requests in units by density, with their estimated work. ``informed``: by the lengths of all samples."""

    units: list[Unit]
    work: WorkEstimate
    density: float
    costs: Costs
    informed: bool
    weigher: Weigher


@dataclass(frozen=True, slots=True)
class WorkerPart:
    """The part of one worker: ``first`` is read in order before all else; then ``units`` from both ends."""

    units: list[Unit]
    first: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Arrangement:
    """New parts for workers.

    parts: by worker. version: of the parts that they replace. cut: by request, whether it is in one of them. order, sums:
    set if the order is new.
    """

    version: int
    parts: Mapping[str, WorkerPart]
    cut: bytes
    order: JobOrder | None = None
    sums: WorkSums | None = None


def first_order(
    tree: PrefixTree, costs: Costs, estimates: Estimates, rules: OrderRules, memory: int, *, informed: bool
) -> JobOrder:
    """Order all requests by present knowledge."""
    weigher = Weigher(tree, costs, estimates.outputs())
    units = density_order(weigher, rules, memory)
    return JobOrder(units, WorkEstimate.of(units, weigher), weigher.whole().rho, costs, informed, weigher)


def ordering(
    order: Callable[[], JobOrder], account: JobAccount, version: int, workers: Sequence[str], status: bytes
) -> Callable[[], Arrangement]:
    """Return a computation of a new order and its parts for workers. ``status``: of each request."""
    sums = account.summing()

    def made() -> Arrangement:
        found = order()
        parts = _parts(found, workers, status, ())
        return Arrangement(version, parts, _waiting(status), found, sums(found.work))

    return made


def cutting(
    order: JobOrder, version: int, workers: Sequence[str], status: bytes, first: Collection[int]
) -> Callable[[], Arrangement]:
    """Return a computation that cuts the waiting requests into equal parts for all workers.

    ``first``: samples, which are read before their neighbors, and these before the rest.
    """
    early = {one for one in first if status[one] == WAITING}

    def made() -> Arrangement:
        return Arrangement(version, _parts(order, workers, status, early), _waiting(status))

    return made


def halving(
    order: JobOrder, version: int, giver: str, taker: str, part: Sequence[Unit], ahead: Iterable[int], status: bytes
) -> Callable[[], Arrangement]:
    """Return a computation that moves half of what one worker has not started to one that has nothing left.

    part: what the giver was given. ahead: what it is to read before that, given back or first.
    """
    weigher, before = order.weigher, [*ahead]

    def made() -> Arrangement:
        mine = bytearray(len(status))
        groups = [[one for one in unit.requests if status[one] == WAITING] for unit in part]
        for group in groups:
            for request in group:
                mine[request] = 1
        back = sorted(one for one in before if not mine[one])  # it was running when the part was made
        for request in back:
            mine[request] = 1
        kept, taken = cut([*map(weigher.unit, ([one] for one in back)), *weigher.units(groups)], 2, weigher)
        if not taken:
            kept, taken = taken, kept  # there is only one request
        return Arrangement(version, {giver: WorkerPart(kept), taker: WorkerPart(taken)}, bytes(mine))

    return made


def without(units: Iterable[Unit], gone: set[int]) -> list[Unit]:
    """Return units without some requests. They keep their density, so that nothing is weighed again."""
    return [
        unit
        if gone.isdisjoint(unit.requests)
        else replace(unit, requests=array("i", [one for one in unit.requests if one not in gone]))
        for unit in units
    ]


def _parts(order: JobOrder, workers: Sequence[str], status: bytes, first: Collection[int]) -> dict[str, WorkerPart]:
    """Return a part for each worker in the order of the whole, which keeps neighbors together."""
    early = [_near(order.weigher.tree, one, first, status) for unit in order.units for one in unit.requests if one in first]
    near = {one for group in early for one in group}
    late = [[one for one in unit.requests if status[one] == WAITING and one not in near] for unit in order.units]
    found: dict[str, WorkerPart] = {}
    for name, groups, units in zip(workers, _cut(order, workers, _once(early)), _cut(order, workers, late), strict=True):
        ahead = [one for group in groups for one in group.requests]
        found[name] = WorkerPart(units, sorted(ahead, key=lambda one: one not in first))
    return found


def _cut(order: JobOrder, workers: Sequence[str], groups: Iterable[Iterable[int]]) -> list[list[Unit]]:
    units = order.weigher.units(groups)
    return cut(units, len(workers), order.weigher) if units and workers else [[] for _ in workers]


def _near(tree: PrefixTree, sample: int, first: Collection[int], status: bytes) -> list[int]:
    """Return a sampled request with its next waiting neighbors that share at least half of its prompt.

    They run right after it, and so find that prefix in the cache.
    """
    found, place = [sample], tree.rank[sample]
    for other in tree.order[place + 1 : place + 1 + NEAR]:
        if 2 * tree.shared(sample, other) < tree.length[sample]:
            break
        if status[other] == WAITING and other not in first:
            found.append(other)
    return found


def _once(groups: Iterable[Iterable[int]]) -> Iterable[list[int]]:
    """Yield the groups with each request only where it comes first."""
    seen: set[int] = set()
    for group in groups:
        fresh = [one for one in group if one not in seen]
        seen.update(fresh)
        yield fresh


def _waiting(status: bytes) -> bytes:
    return bytes(one == WAITING for one in status)
