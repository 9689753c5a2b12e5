"""Sources of parameters for workers that have no files of them, so that an origin gives each component once.

A worker that has a component gives it to two others at a time, and one that waits for what is on its way gets it from there
next: a distribution to N workers takes at most log2 N rounds. Owns who waits and who is being given to; who holds what is an
argument. Decides nothing about routes or memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

AT_ONCE = 2  # workers that one gives to at a time


@dataclass(frozen=True, slots=True)
class Given:
    """A worker's sources for components: other workers, asked in this order, and for the rest the origin."""

    components: frozenset[bytes]
    sources: tuple[str, ...] = ()
    rest: frozenset[bytes] = frozenset()  # components that no worker had: they come from the origin


@dataclass(slots=True)
class ParameterSources:
    """The distribution of one cluster's parameters (see the module)."""

    waiting: dict[str, frozenset[bytes]] = field(default_factory=dict)  # worker -> what it lacks, in order of asking
    given: dict[str, Given] = field(default_factory=dict)  # worker -> where its load in progress takes that from

    def ask(self, worker: str, components: Collection[bytes]) -> None:
        """Note that a worker lacks components."""
        self.given.pop(worker, None)
        self.waiting[worker] = frozenset(components)

    def end(self, worker: str) -> None:
        """Note that a worker's load has ended, whatever came of it, or the worker itself."""
        self.waiting.pop(worker, None)
        self.given.pop(worker, None)

    def next(self, holders: Mapping[str, Collection[bytes]]) -> tuple[str, Given] | None:
        """Return the next worker to whom sources can be named now, and count them as giving.

        ``holders``: what live workers have, in order of preference. A worker that lacks what no other has gets no
        source for it, and takes it from the origin, or fails to.
        """
        giving = Counter([name for one in self.given.values() for name in one.sources])
        blocked = set[frozenset[bytes]]()  # what all who have it are too busy to give: most workers lack the same
        for worker, lacking in self.waiting.items():
            if lacking in blocked and lacking.isdisjoint(holders.get(worker, ())):
                continue
            found = self._sources(worker, lacking, holders, giving)
            if found is not None:
                del self.waiting[worker]
                self.given[worker] = found
                return worker, found
            blocked.add(lacking)
        return None

    def _sources(
        self, worker: str, lacking: frozenset[bytes], holders: Mapping[str, Collection[bytes]], giving: Mapping[str, int]
    ) -> Given | None:
        """Return where a worker takes components from, or None while it is better to wait.

        ``giving``: to how many workers each one gives.
        """
        free = {}
        for name, has in holders.items():
            if name != worker and giving.get(name, 0) < AT_ONCE and not lacking.isdisjoint(has):
                free[name] = lacking.intersection(has)
        rest, sources = set(lacking), list[str]()
        while rest and free:
            best = max(free, key=lambda name: (len(free[name] & rest), -giving.get(name, 0)))
            if not free[best] & rest:
                break
            sources.append(best)
            rest -= free.pop(best)
        held = any(not rest.isdisjoint(has) for name, has in holders.items() if name != worker)
        if held or any(not rest.isdisjoint(one.components) for name, one in self.given.items() if name != worker):
            return None  # all who have it are busy, or it is on its way to another worker
        return Given(lacking, tuple(sources), frozenset(rest))
