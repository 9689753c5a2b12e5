"""Messages of a large cell: heartbeats at the head, and reports at each gateway; part of ``cells.py``.

Workers of the example's profile (an A30 with a model of 7 billion parameters) sweep one by one. As a live worker does
(``actors/worker/reports.py``), each sends one report after a sweep to every gateway that has tokens in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cells_runs import cluster_table
from scheduling_runs import EXAMPLE

from blockwright.policies.prediction.instance import Instance
from blockwright.simulator.description import DescriptionSource, profile, scenario
from blockwright.simulator.simulation import ClusterPolicy, ClusterSimulation
from blockwright.simulator.workload import WorkloadRequest

HEARTBEAT = 0.5  # seconds, of every node, as in the settings of a live cluster
TOGETHER = 0.02  # seconds in which the reports of a worker to a gateway could be joined


def heartbeats(workers: int, gateways: int) -> float:
    """Return the heartbeats a second that the head sends and gets: each member and the head beat to each other."""
    return 2 * (workers + gateways) / HEARTBEAT


class CountedReports(ClusterPolicy):
    """The reports of a cluster's workers to its gateways. A request is the gateway's with its number modulo theirs."""

    def __init__(self, cluster: ClusterSimulation, gateways: int, begin: float, end: float) -> None:
        self._cluster, self._gateways = cluster, gateways
        self._begin, self._end = begin, end
        self.places = range(len(cluster.instances))
        self._swept = [0] * len(cluster.instances)  # sweeps at the last news
        self._answered = [Counter[int]() for _ in cluster.instances]  # by gateway: requests that get tokens
        self._last: dict[tuple[int, int], float] = {}  # (place, gateway) -> when its joined report left
        self.sweeps = self.reports = self.joined = 0

    def after_news(self, place: int, news: Sequence[tuple[str, str]]) -> None:
        """Count the reports of a sweep that has ended."""
        instance, answered = self._cluster.instances[place], self._answered[place]
        assert isinstance(instance, Instance), "workers have one device"
        heard = [(int(request[1:]) % self._gateways, what) for request, what in news]
        answered.update([gateway for gateway, what in heard if what == "first"])
        if instance.sweeps > self._swept[place] and self._begin <= self._cluster.now < self._end:
            self.sweeps += instance.sweeps - self._swept[place]
            told = {gateway for gateway, _ in heard} | {gateway for gateway, count in answered.items() if count > 0}
            self.reports += len(told)
            for gateway in told:
                if self._cluster.now >= self._last.get((place, gateway), 0.0) + TOGETHER:
                    self._last[place, gateway] = self._cluster.now
                    self.joined += 1
        self._swept[place] = instance.sweeps
        answered.subtract([gateway for gateway, what in heard if what == "finished"])


def per_worker(
    workers: int, demands: Sequence[WorkloadRequest], gateways: int, begin: float, end: float
) -> dict[str, float]:
    """Simulate some workers; sweeps a second of one, its reports to one gateway, and these joined."""
    table = cluster_table(workers, {"dispatch": {"policy": "round-robin"}})
    source = DescriptionSource(EXAMPLE, "")
    table["instances"][0] |= {"profile": "a30-llama-2-7b.json"}
    made = scenario(table, source)
    counted: list[CountedReports] = []

    def policy(cluster: ClusterSimulation) -> ClusterPolicy:
        counted.append(CountedReports(cluster, gateways, begin, end))
        return counted[0]

    costs = profile(made.instances[0], 0, source)
    ClusterSimulation(made, [costs], demands, jumps=False, policy=policy).run()
    (one,) = counted
    times = workers * (end - begin)
    return {
        "sweeps": one.sweeps / times,
        "reports": one.reports / times / gateways,
        "joined": one.joined / times / gateways,
    }
