"""Moves of KV in a simulated cluster: sequences continue elsewhere, or later, with their KV.

KV takes time on links. When it arrives its pages are published, and held until the sequence has started and lists them
itself, so that all memory is accounted for in pages of the real allocator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..policies.prediction.instance import Instance
from ..policies.prediction.machines import LinkTimes
from ..policies.prediction.pipeline_instance import PipelineInstance
from ..policies.sweep.events import Submission
from .bulk import BulkLinks
from .devices import DevicePages, RemovedSequence, devices, take_one
from .simulation import ClusterSimulation

Held = dict[str, list[int]]  # pages, by worker


class KvMoves:
    """The moving KV of a cluster (see the module), for a policy that decides what moves.

    ``bandwidth`` is of the links that KV moves on, in bytes per second. There is one model, and instances have ``memory``
    bytes and prefix caches.
    """

    def __init__(self, cluster: ClusterSimulation, bandwidth: float, *, priorities: bool = True) -> None:
        scenario = cluster.scenario
        self.cluster = cluster
        self.times = LinkTimes(scenario.links.latency, bandwidth)
        self.links = BulkLinks(self.times, bandwidth, cluster.call, priorities=priorities)
        self.places = {instance.name: place for place, instance in enumerate(cluster.instances)}
        self.at = list(range(len(cluster.instances)))  # for each place, the place of the instance that its device is in now
        # pages of sequences that continue elsewhere and have not started
        self.kept: dict[str, tuple[Mapping[str, DevicePages], Held]] = {}
        self.page_bytes = scenario.instances[0].page_size * scenario.models[0].kv_bytes
        self.stalls: list[float] = []  # pauses of sequences, in seconds
        self.moved = 0  # bytes of KV
        self.changes: list[dict[str, Any]] = []
        self.retired: list[Instance | PipelineInstance] = []  # instances that have stopped

    @property
    def current(self) -> list[int]:
        """The places of the current instances."""
        return sorted(set(self.at))

    def record(self, what: str, group: str, **more: Any) -> None:
        """Record a change."""
        self.changes.append({"at": self.cluster.now, "what": what, "group": group, **more})
        self.cluster.record(self.changes[-1])

    def touch(self, worker: str) -> None:
        """Prepare for a change of a worker's memory: it must not be within a jump."""
        place = self.at[self.places[worker]]
        instance = self.cluster.instances[place]
        if not isinstance(instance, Instance):
            instance.mark_changed()
            return
        instance.catch_up(self.cluster.now)
        self.cluster.schedule(place)

    def device(self, place: int) -> DevicePages:
        """Return the memory of an instance of one device."""
        instance = self.cluster.instances[place]
        self.touch(instance.name)
        return devices(instance)[instance.name]

    def take(self, place: int, request: str) -> RemovedSequence:
        """Remove a sequence from the instance of one device at a place."""
        instance = self.cluster.instances[place]
        assert isinstance(instance, Instance), "one sequence was to leave a pipeline"
        taken, news = take_one(instance, request, self.cluster.now)
        self.cluster.news(place, news)
        return taken

    def resume(self, place: int, taken: RemovedSequence, held: list[int]) -> None:
        """Continue a sequence at the instance of one device at a place, where its KV has arrived."""
        device, name = self.device(place), self.cluster.instances[place].name
        hashes = taken.submission.page_hashes[: taken.pages]
        self.kept[taken.submission.request] = {name: device}, {name: device.publish(held, hashes)}
        self.cluster.deliver(place, taken.submission)

    def release_started(self, news: Sequence[tuple[str, str]]) -> None:
        """Release the held pages of sequences that have started, or ended."""
        for request, what in news if self.kept else ():
            if what != "preempted" and request in self.kept:
                devices, held = self.kept.pop(request)
                for worker, handles in held.items():
                    self.touch(worker)
                    devices[worker].release(handles)

    def routed(self, place: int, submission: Submission) -> Submission:
        """Return a submission with the route of the instance at a place."""
        (route,) = self.cluster.routes[place].values()
        return submission if submission.route == route.id else replace(submission, route=route.id)

    def report(self) -> dict[str, object]:
        """Return the figures, as in ``docs/schemas/simulate.json``."""
        return {
            "dropped_s": 0.0,
            "stale": len(self.stalls),
            "stall_mean": round(sum(self.stalls) / max(len(self.stalls), 1), 6),
            "stall_max": round(max(self.stalls, default=0.0), 6),
            "moved_bytes": self.moved,
            "changes": [{**change, "at": round(change["at"], 6)} for change in self.changes],
            "readings": [],
        }
