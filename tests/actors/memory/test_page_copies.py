"""The head's actor for redundant pages over the simulated runtime: who is asked when, and what workers are told to mark."""

from __future__ import annotations

import asyncio
from typing import Any

from blockwright.actors.memory.copies import PageCopies
from blockwright.actors.settings.settings import Settings
from blockwright.policies.memory.cache_news import CacheReport, MarkPages
from blockwright.policies.memory.prefix_index import Key
from blockwright.runtime import Actor, Node, endpoint
from blockwright.runtime.testing import FaultPlan, Simulation

ONE, TWO = (b"1", b"line", 0), (b"2", b"line", 0)


class Host(Actor):
    """A worker with these idle pages and the seconds since their last use; it reports one at a time."""

    def __init__(self) -> None:
        self.pages: list[tuple[Key, float]] = []
        self.refuses: list[Key] = []
        self.fails = self.running = False
        self.asked: list[int] = []
        self.marks: list[MarkPages] = []
        self._number = self._told = 0

    @endpoint
    async def cached(self, after: int) -> CacheReport | None:
        self.asked.append(after)
        if not self.pages:
            return None
        anew = after != self._number or not after
        self._told = 0 if anew else self._told
        new = self.pages[self._told : self._told + 1]
        self._told += len(new)
        self._number += 1
        left = len(self.pages) - self._told
        return CacheReport(self._number, anew, left, idle=[key for key, _ in new], ages=[age for _, age in new])

    @endpoint
    async def mark(self, pages: MarkPages) -> list[Key]:
        self.marks.append(pages)
        if self.fails:
            raise ValueError("it dies")
        return self.refuses

    def beat(self) -> dict[str, object]:
        return {"sweep_age": 0.0, "running": int(self.running)}


class Rig:
    def __init__(self, *workers: str) -> None:
        self.hosts = {name: Host() for name in workers}
        self.sim = Simulation(seed=1, nodes=workers, faults=FaultPlan(), setup=self._setup, restart=None, limit=4000.0)

    async def _setup(self, node: Node) -> None:
        if node.name in self.hosts:
            await node.spawn(self.hosts[node.name], name="worker")
            node.heartbeat = self.hosts[node.name].beat

    def play(self, scenario: Any, **settings: Any) -> None:
        async def run(sim: Simulation) -> None:
            memory = Settings(workers=len(self.hosts), **settings).worker_memory
            await sim.head.spawn(PageCopies(memory), name="copies")
            while len(sim.cluster.members()) < len(self.hosts):  # noqa: ASYNC110 - in virtual time
                await asyncio.sleep(0.1)
            await scenario()

        self.sim.run(run)

    async def work(self) -> None:
        """One worker computes for a moment."""
        self.hosts["w0"].running = True
        await asyncio.sleep(2.0)
        self.hosts["w0"].running = False


def test_asleep_without_work_and_after_it_once_nothing_changes() -> None:
    rig = Rig("w0", "w1")
    first, second = rig.hosts["w0"], rig.hosts["w1"]
    first.pages, second.pages = [(ONE, 50.0), (TWO, 1.0)], [(ONE, 10.0), (TWO, 10.0)]

    async def scenario() -> None:
        await asyncio.sleep(300.0)
        assert first.asked == [], "without work nobody is asked"
        await rig.work()
        await asyncio.sleep(50.0)
        assert first.asked == [], "not yet"
        await asyncio.sleep(10.0)
        assert (first.asked, second.asked) == ([0, 1], [0, 1]), "until all is told"
        assert (first.marks, second.marks) == ([MarkPages([ONE])], [MarkPages([TWO])])
        await asyncio.sleep(600.0)
        assert (first.asked, second.asked) == ([0, 1, 2], [0, 1, 2]), "once more, and no further"
        assert len(first.marks + second.marks) == 2

    rig.play(scenario)


def test_every_so_many_seconds_and_what_was_not_marked_again() -> None:
    rig = Rig("w0", "w1")
    first, second = rig.hosts["w0"], rig.hosts["w1"]
    first.pages, second.pages = [(ONE, 50.0)], [(ONE, 10.0)]
    first.refuses = [ONE]

    async def scenario() -> None:
        await rig.work()
        await asyncio.sleep(9.5)
        assert first.marks == [MarkPages([ONE])]
        first.refuses, first.fails = [], True
        await asyncio.sleep(10.0)
        assert first.marks == [MarkPages([ONE])] * 2
        first.fails = False
        await asyncio.sleep(100.0)
        assert first.marks == [MarkPages([ONE])] * 3
        assert second.marks == []

    rig.play(scenario, redundant_pages=10)


def test_pages_of_a_worker_that_died_count_no_more() -> None:
    rig = Rig("w0", "w1")
    first, second = rig.hosts["w0"], rig.hosts["w1"]
    first.pages, second.pages = [(ONE, 50.0)], [(ONE, 10.0)]

    async def scenario() -> None:
        await rig.work()
        await asyncio.sleep(60.0)
        assert first.marks == [MarkPages([ONE])]
        await rig.sim.cluster.kill("w1")
        await asyncio.sleep(60.0)
        assert first.marks == [MarkPages([ONE]), MarkPages(kept=[ONE])]

    rig.play(scenario)


def test_one_worker_has_no_copies_elsewhere() -> None:
    rig = Rig("w0")
    rig.hosts["w0"].pages = [(ONE, 50.0)]

    async def scenario() -> None:
        await rig.work()
        await asyncio.sleep(200.0)
        assert rig.hosts["w0"].asked == []

    rig.play(scenario)
