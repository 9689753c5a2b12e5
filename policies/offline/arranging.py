"""What takes long of an offline job: ordering its requests, and cutting those that wait into parts for its workers.

Each is a function of copies, and changes nothing that it did not make: another thread may run it while the job goes on.
What has started meanwhile is taken out of the parts when they are adopted (``OfflineFeed.adopt``).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from blockwright.policies.offline.density import Costs
from blockwright.policies.offline.estimates import Estimates
from blockwright.policies.offline.job_account import JobAccount, WorkEstimate, WorkSums
from blockwright.policies.offline.order import OrderRules, Unit, Weigher, density_order
from blockwright.policies.offline.parts import cut
from blockwright.policies.offline.prefix_tree import PrefixTree

WAITING, RUNNING, DONE = range(3)  # of a request


@dataclass(frozen=True, slots=True)
class JobOrder:
    """All requests in units by density; what they are worth. ``informed``: by the lengths of all samples."""

    units: list[Unit]
    work: WorkEstimate
    density: float
    costs: Costs
    informed: bool
    weigher: Weigher


@dataclass(frozen=True, slots=True)
class WorkerPart:
    """What one worker reads: ``first`` before all else, the densest at its left; then ``units`` from both ends."""

    units: list[Unit]
    first: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Arrangement:
    """``parts``: by worker; ``version``: of the parts that they take the place of. ``cut``: by request, whether it is in one
    of them. ``order``, ``sums``: where the order is new."""

    version: int
    parts: Mapping[str, WorkerPart]
    cut: bytes
    order: JobOrder | None = None
    sums: WorkSums | None = None


def first_order(
    tree: PrefixTree, costs: Costs, estimates: Estimates, rules: OrderRules, memory: int, *, informed: bool
) -> JobOrder:
    """All requests by what is known now."""
    weigher = Weigher(tree, costs, estimates.outputs())
    units = density_order(weigher, rules, memory)
    return JobOrder(units, WorkEstimate.of(units, weigher), weigher.whole().rho, costs, informed, weigher)


def ordering(
    order: Callable[[], JobOrder], account: JobAccount, version: int, workers: Sequence[str], status: bytes
) -> Callable[[], Arrangement]:
    """A new order, and its parts for workers. ``status``: of each request."""
    sums = account.summing()

    def made() -> Arrangement:
        found = order()
        parts = _parts(found, workers, status, ())
        return Arrangement(version, parts, _waiting(status), found, sums(found.work))

    return made


def cutting(
    order: JobOrder, version: int, workers: Sequence[str], status: bytes, first: Collection[int]
) -> Callable[[], Arrangement]:
    """What waits, to all workers alike; ``first``: requests that every worker takes before the others."""
    early = {*first}

    def made() -> Arrangement:
        return Arrangement(version, _parts(order, workers, status, early), _waiting(status))

    return made


def halving(
    order: JobOrder, version: int, giver: str, taker: str, part: Sequence[Unit], ahead: Iterable[int], status: bytes
) -> Callable[[], Arrangement]:
    """Half of what one worker has not started to one that has nothing left. ``part``: what the giver was given; ``ahead``:
    what it is to read before that, given back or first."""
    weigher, before = order.weigher, [*ahead]

    def made() -> Arrangement:
        mine = bytearray(len(status))
        groups = [[one for one in unit.requests if status[one] == WAITING] for unit in part]
        for group in groups:
            for request in group:
                mine[request] = 1
        back = sorted(one for one in before if not mine[one])  # ran when the part was made
        for request in back:
            mine[request] = 1
        kept, taken = cut([*map(weigher.unit, ([one] for one in back)), *weigher.units(groups)], 2, weigher)
        if not taken:
            kept, taken = taken, kept  # there is but one request
        return Arrangement(version, {giver: WorkerPart(kept), taker: WorkerPart(taken)}, bytes(mine))

    return made


def without(units: Iterable[Unit], gone: set[int]) -> list[Unit]:
    """Units but for some requests; they keep the density that they had, so that nothing is weighed again."""
    return [
        unit
        if gone.isdisjoint(unit.requests)
        else replace(unit, requests=array("i", [one for one in unit.requests if one not in gone]))
        for unit in units
    ]


def _parts(order: JobOrder, workers: Sequence[str], status: bytes, first: Collection[int]) -> dict[str, WorkerPart]:
    """In the order of the whole, which keeps neighbours together, a part for each worker."""
    weigher = order.weigher
    early = (
        [[one for one in unit.requests if one in first and status[one] == WAITING] for unit in order.units] if first else []
    )
    late = [[one for one in unit.requests if status[one] == WAITING and one not in first] for unit in order.units]

    def shared(groups: list[list[int]]) -> list[list[Unit]]:
        units = weigher.units(groups)
        return cut(units, len(workers), weigher) if units and workers else [[] for _ in workers]

    found = zip(workers, shared(early), shared(late), strict=True)
    return {name: WorkerPart(units, [one for unit in ahead for one in unit.requests]) for name, ahead, units in found}


def _waiting(status: bytes) -> bytes:
    return bytes(one == WAITING for one in status)
