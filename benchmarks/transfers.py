"""Benchmark of placement by traffic: transfers between workers, against the optimum of all placements.

    python benchmarks/transfers.py [--quick] [--json PATH]

Random zoos of 2 to 4 workers and 2 to 6 chains that share blocks, with traffic by a power law, in which the memory of the
workers is too small for every chain to be whole. ``transfers``: the transfers of a placement over the ones of the optimum,
which is found by enumeration (branch and bound over all routes of all chains). Zoos in which the optimum has no transfers,
or cannot serve every chain, are drawn anew. Ours follows the traffic (``policies/cluster/relocation.py``), ``start`` is the
placement of the start, which knows none, ``fragmentation`` the baseline; a chain without a route counts as 99 times.
``unserved``: such chains in 100. ``moved``: zoos placed without knowing the traffic and then relocated, by steps that each
fit beside what is there and half as much memory as KV gives meanwhile. All figures are the same on any machine.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import harness
from harness import OURS, Bar, Options, Report

from blockwright.policies.cluster.placement import Draft, best_draft, draft_by_room
from blockwright.policies.cluster.relocation import Hops, RelocatableChains, cluster, relocate
from blockwright.policies.model.chain import Component, Hop, Kind, KvLayout

ZOOS, QUICK = 200, 40
LAYOUT = KvLayout(1, 8, "float32", 16)
SECONDS = 1000.0  # of transfers in a window: much more than loading takes
NEVER = float("inf")
START, FRAGMENTATION = "start", "fragmentation"
MOVED = "moved"
BARS = (Bar("zoos", "transfers", at_most=1.1),)


def zoo(chance: random.Random) -> RelocatableChains:
    """Return a random zoo. A component stands for a block."""
    names = [f"w{n}" for n in range(chance.randint(2, 4))]
    foundations = [[chance.randint(5, 20) for _ in range(chance.randint(3, 6))] for _ in range(chance.randint(1, 3))]
    chains: dict[str, list[Component]] = {}
    for n in range(chance.randint(2, 6)):
        number = chance.randrange(len(foundations))
        sizes = foundations[number]
        own_from = chance.choice([len(sizes), len(sizes) - 1, len(sizes) // 2, 0])
        owners = [f"a{n}" if depth >= own_from else f"f{number}" for depth in range(len(sizes))]
        chains[f"a{n}"] = [
            Component(f"{owner}/{depth}".encode().ljust(16, b"."), Kind.ATTENTION, size, 8, 8, LAYOUT)
            for depth, (owner, size) in enumerate(zip(owners, sizes, strict=True))
        ]
    every = sum({c.id: c.nbytes for parts in chains.values() for c in parts}.values())
    room = every * chance.uniform(1.2, 1.8) / len(names)
    memory = {name: int(room * chance.uniform(0.7, 1.3)) for name in names}
    traffic = {name: SECONDS * chance.paretovariate(1.2) for name in chains}
    return RelocatableChains(chains, memory, {name: [traffic[name]] * len(parts) for name, parts in chains.items()})


def every_route(workers: Sequence[str], count: int) -> Iterator[Hops]:
    """Yield all routes of a chain of ``count`` components, those of fewest hops first."""
    for number in range(1, min(len(workers), count) + 1):
        for those in combinations(workers, number):
            for cuts in combinations(range(1, count), number - 1):
                borders = (0, *cuts, count)
                yield tuple(Hop(worker, borders[n], borders[n + 1]) for n, worker in enumerate(those))


class Enumeration:
    """The search for the optimum of one zoo: all routes of each chain, cut off where the best known cannot be beaten."""

    def __init__(self, those: RelocatableChains, known: float) -> None:
        self._zoo, self.best = those, known
        self._draft = those.draft()
        self._order = sorted(those.chains, key=lambda name: -those.seconds[name][0])
        self._routes = {name: list(every_route([*those.memory], len(those.chains[name]))) for name in those.chains}
        self._place(0, 0.0)

    def _place(self, number: int, seconds: float) -> None:
        draft = self._draft
        if number == len(self._order):
            self.best = seconds
            return
        name = self._order[number]
        for hops in self._routes[name]:
            cost = seconds + self._zoo.crossing(name, hops)
            if cost >= self.best:
                return  # the others have as many hops or more
            if all(draft.fits(name, hop) for hop in hops):
                draft.put(name, hops)
                if self._fits(number + 1):
                    self._place(number + 1, cost)
                draft.take_back(name)

    def _fits(self, number: int) -> bool:
        """Return whether there can be room for the components that no worker has yet."""
        held: set[bytes] = set()
        for name in self._order[:number]:
            held.update(c.shared for c in self._zoo.chains[name])
        rest = {c.shared: c.nbytes for name in self._order[number:] for c in self._zoo.chains[name] if c.shared not in held}
        return sum(rest.values()) <= sum(self._draft.free(worker) for worker in self._zoo.memory)


def optimum(those: RelocatableChains, *known: Draft) -> float:
    """Return the least seconds of transfers; infinite if not every chain can be served. ``known``: placements to beat."""
    whole = [those.cost(draft).seconds for draft in known if not those.cost(draft).unserved]
    return Enumeration(those, min(whole, default=NEVER) + 1e-6 if whole else NEVER).best


def ratio(those: RelocatableChains, draft: Draft, least: float) -> float:
    """Return the transfers of a placement over the optimum; infinite if a chain has no route."""
    cost = those.cost(draft)
    return NEVER if cost.unserved else cost.seconds / least


def moved(those: RelocatableChains, start: Draft) -> Draft:
    """Return what relocation makes of a placement, by steps that each fit."""
    routes: Mapping[str, Sequence[Hops]] = {name: list(hops) for name, hops in start.hops.items()}
    those = replace(those, spare={worker: nbytes // 2 for worker, nbytes in those.memory.items()})
    while (plan := relocate(those, routes)) is not None and plan.worth:
        for step in plan.steps:
            kept = [hops for hops in routes[step.application] if hops not in step.end]
            routes = {**routes, step.application: [*kept, *step.begin]}
    return those.draft(routes)


@harness.claim(
    "Placement by traffic has at most 1.1 times the transfers of the optimum, at the median of 200 zoos", of="adaptive"
)
def main(options: Options) -> None:
    zoos = QUICK if options.quick else ZOOS
    report = Report("transfers", {"zoos": zoos}, packages=())
    found: dict[str, list[float]] = {name: [] for name in (OURS, START, FRAGMENTATION, MOVED)}
    unserved = dict.fromkeys(found, 0)
    chains = seed = 0
    while len(found[OURS]) < zoos:
        those = zoo(random.Random(seed))
        seed += 1
        drafts = {OURS: cluster(those), START: best_draft(those.chains, those.memory, {})}
        drafts[FRAGMENTATION] = draft_by_room(those.chains, those.memory)
        least = optimum(those, *drafts.values())
        if not SECONDS <= least < NEVER:
            continue
        drafts[MOVED] = moved(those, drafts[START])
        chains += len(those.chains)
        for name, draft in drafts.items():
            found[name].append(ratio(those, draft, least))
            unserved[name] += those.cost(draft).unserved
    for name, ratios in found.items():
        for one in ratios:
            report.add("zoos", name, {"transfers": min(one, 99.0)})
        report.add("zoos", name, {"p90": min(statistics.quantiles(ratios, n=10)[-1], 99.0)})
        report.add("zoos", name, {"unserved": 100 * unserved[name] / chains})
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    main(harness.parse(__doc__))
