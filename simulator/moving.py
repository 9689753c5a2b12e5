"""Base of simulated clusters in which sequences continue elsewhere, or later, with their KV.

KV takes time on links. When it arrives its pages are published, and held until the sequence has started and lists them
itself, so that all memory is accounted for in pages of the real allocator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..policies.plan.coefficients import Coefficients
from ..policies.prediction.instance import Instance
from ..policies.prediction.machines import LinkTimes
from ..policies.sweep.events import Submission
from .bulk import BulkLinks
from .description import Scenario
from .groups import GroupDevice, Taken, devices, take_one
from .simulation import ClusterSimulation, Note
from .workload import Demand

Held = dict[str, list[int]]  # pages, by worker


class MovingSimulation(ClusterSimulation):
    """Base simulation with moving KV (see the module).

    ``bandwidth`` is of the links that KV moves on, in bytes per second. There is one model, and instances have ``memory``
    bytes and prefix caches.
    """

    def __init__(
        self,
        scenario: Scenario,
        coefficients: Sequence[Coefficients],
        demands: Sequence[Demand],
        *,
        bandwidth: float,
        jumps: bool = True,
        note: Note | None = None,
    ) -> None:
        super().__init__(scenario, coefficients, demands, jumps=jumps, note=note)
        self._spec = scenario.overload
        self._times = LinkTimes(scenario.links.latency, bandwidth)
        self.links = BulkLinks(self._times, bandwidth, self.call, priorities=self._spec.priorities)
        self._places = {instance.name: place for place, instance in enumerate(self.instances)}
        self._at = list(range(len(self.instances)))  # for each place, the place of the instance that its device is in now
        # pages of sequences that continue elsewhere and have not started
        self._kept: dict[str, tuple[Mapping[str, GroupDevice], Held]] = {}
        self._page_bytes = scenario.instances[0].page_size * scenario.models[0].kv_bytes
        self.stalls: list[float] = []  # pauses of sequences, in seconds
        self.moved = 0  # bytes of KV
        self.changes: list[dict[str, Any]] = []

    def _again(self) -> bool:
        """Return whether any request is left, so that instances must be read again after ``PERIOD``."""
        while self._oldest < len(self.requests) and self.requests[self._oldest].ended >= 0:
            self._oldest += 1
        return self._oldest < len(self.requests)

    def _log(self, what: str, group: str, **more: Any) -> None:
        self.changes.append({"at": self.now, "what": what, "group": group, **more})
        if self._note is not None:
            self._note(self.changes[-1])

    def _touch(self, worker: str) -> None:
        """Prepare for a change of a worker's memory: it must not be within a jump."""
        place = self._at[self._places[worker]]
        instance = self.instances[place]
        if not isinstance(instance, Instance):
            instance.wake()
            return
        instance.catch_up(self.now)
        self._schedule(place)

    def _device(self, place: int) -> GroupDevice:
        """Return the memory of an instance of one device."""
        instance = self.instances[place]
        self._touch(instance.name)
        return devices(instance)[instance.name]

    def _take(self, place: int, request: str) -> Taken:
        """Remove a sequence from the instance of one device at a place."""
        instance = self.instances[place]
        assert isinstance(instance, Instance), "one sequence was to leave a pipeline"
        taken, news = take_one(instance, request, self.now)
        self._told(place, news)
        return taken

    def _go_on(self, place: int, taken: Taken, held: list[int]) -> None:
        """Continue a sequence at the instance of one device at a place, where its KV has arrived."""
        device, name = self._device(place), self.instances[place].name
        hashes = taken.submission.page_hashes[: taken.pages]
        self._kept[taken.submission.request] = {name: device}, {name: device.publish(held, hashes)}
        self._deliver(place, taken.submission)

    def _told(self, place: int, news: list[tuple[str, str]]) -> None:
        for request, what in news if self._kept else ():
            if what != "preempted" and request in self._kept:
                devices, held = self._kept.pop(request)
                for worker, handles in held.items():
                    self._touch(worker)
                    devices[worker].release(handles)
        super()._told(place, news)

    def _deliver(self, place: int, submission: Submission) -> None:
        (route,) = self._routes[place].values()
        super()._deliver(place, submission if submission.route == route.id else replace(submission, route=route.id))

    def overload(self) -> dict[str, object]:
        return {
            "dropped_s": 0.0,
            "stale": len(self.stalls),
            "stall_mean": round(sum(self.stalls) / max(len(self.stalls), 1), 6),
            "stall_max": round(max(self.stalls, default=0.0), 6),
            "moved_bytes": self.moved,
            "changes": [{**change, "at": round(change["at"], 6)} for change in self.changes],
            "readings": [],
        }
