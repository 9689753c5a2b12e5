"""Outages of a simulated cluster: its head goes away, a part of its workers is cut off, or all are rolled.

While there is no head nothing is loaded, placed or started again, and the controller hears of nothing. Gateways go on by
the routes that they have, and requests of a worker whose connection breaks, or that is silent for too long, go on
elsewhere. The next head adopts by the live policy (``policies/control/adoption.py``), from what members keep and tell.
Workers that were cut off come back as it says, too.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from ..policies.control import events
from ..policies.control.adoption import ToldWorker, adopt, came_back
from ..policies.control.loads import LoadBlock
from ..policies.plain import Plain
from ..policies.sweep.events import Submission
from .control import SimulatedControl
from .control_step import ControlStep
from .outage_spec import SILENCE, CutSpec, DeathSpec, HeadLossSpec, RollSpec
from .simulation import ClusterSimulation

ROLLED = "it is rolled to another release"


class InterruptedControl(SimulatedControl):
    """The control of a simulated cluster with outages (see the module)."""

    def __init__(self, cluster: ClusterSimulation, tape: list[ControlStep] | None = None) -> None:
        scenario = cluster.scenario
        self._away = False  # there is no head
        self._kept: dict[str, Plain] = {}  # the state that members keep for the next head
        self._heads = len(scenario.heads)  # that have not gone away
        self._ends: dict[str, float] = {}  # worker -> when it will have read what it has begun to read
        self._complete: dict[str, list[LoadBlock]] = {}  # worker -> what it has loaded in this life
        self._due: dict[str, float] = {}  # worker that is to be started once there is a head -> seconds that takes
        self._cut: dict[str, list[LoadBlock]] = {}  # worker that is cut off -> what it will come back with
        self._to_roll = deque[str]()
        self._rolling: set[str] = set()  # workers that are drained or started anew
        self._surge: list[str] = []  # workers that have joined for the roll
        super().__init__(cluster, tape)
        for head in scenario.heads:
            cluster.call(head.at, partial(self._lose_head, head))
        for cut in scenario.cuts:
            cluster.call(cut.at, partial(self._cut_off, cut))
        if scenario.roll is not None:
            cluster.call(scenario.roll.at, partial(self._roll, scenario.roll))

    def handle(self, *news: events.Event) -> None:
        """Apply events, unless there is no head that would hear of them."""
        if not self._away:
            super().handle(*news)
            for event in news:
                if isinstance(event, events.Vacated) and event.worker in self._rolling:
                    self._start_anew(event.worker)

    def _perform(self, effect: events.Effect) -> None:
        match effect:
            case events.Publish() if self._heads:
                self._kept = self.state.snapshot()
            case events.ResumeWorker():
                return  # a drained worker here refuses nothing by itself
        super()._perform(effect)

    # what workers hold -----------------------------------------------------------------------------------------------

    def _read(self, what: tuple[str, int, LoadBlock], nbytes: int) -> None:
        """Read parameters, after what the worker reads already."""
        name, now = what[0], self._cluster.now
        disk = self._cluster.scenario.loading.disk if self._began else 0.0
        seconds = nbytes / disk if disk else 0.0
        self._ends[name] = max(self._ends.get(name, now), now) + seconds
        loaded = events.Loaded(*what, nbytes, seconds)
        if self._ends[name] > now:
            self._cluster.call(self._ends[name], partial(self._have_read, loaded))
        else:
            self._have_read(loaded)

    def _have_read(self, loaded: events.Loaded) -> None:
        name, load = loaded.worker, loaded.load
        if self.workers[name].life == loaded.incarnation and self.workers[name].up:
            known = [one for one in self._complete.get(name, ()) if one.holder != load.holder]
            self._complete[name] = [*known, load]
            self.handle(loaded)

    def _renew(self, name: str) -> list[Submission]:
        self._complete.pop(name, None)
        self._ends.pop(name, None)
        return super()._renew(name)

    def _told(self, name: str) -> ToldWorker:
        """Return a worker's account of itself."""
        held = tuple(
            events.HeldBlock(load.holder, depth, depth + 1, (id,))
            for load in self._complete.get(name, ())
            for depth, id in enumerate(load.ids, load.first)
        )
        return ToldWorker(name, self.workers[name].life, 0, self.state.version, None, held)

    # the head --------------------------------------------------------------------------------------------------------

    def _lose_head(self, head: HeadLossSpec) -> None:
        self._away = True
        self._heads -= 1
        self._cluster.record({"at": self._cluster.now, "what": "head lost", "away": head.away})
        self._cluster.call(self._cluster.now + head.away, self._adopt)

    def _adopt(self) -> None:
        """Begin another head with what members keep and tell, and start the workers that died meanwhile."""
        told = [self._told(name) for name, worker in self.workers.items() if worker.up and name not in self._cut]
        adopted = adopt(self.state, self._kept, told, self.state.version)
        self.state, self._away = adopted.state, False
        self._cluster.record({"at": self._cluster.now, "what": "head adopted", "workers": len(told)})
        self.handle(*adopted.events)
        due, self._due = self._due, {}
        for name, seconds in due.items():
            self._up_after(seconds, name)

    def _up_after(self, seconds: float, name: str) -> None:
        """Start a worker; without a head, or while it is cut off, only later."""
        if self._away:
            self._due[name] = seconds
        elif name not in self._cut:
            self._cluster.call(self._cluster.now + seconds, partial(self._start, name))

    def _start(self, name: str) -> None:
        if self._away:
            self._due[name] = 0.0  # its process waits for a head
        elif name in self.state.workers and not self.workers[name].up:
            again = (events.DrainWorker(name, False),) if name in self._rolling else ()
            self.handle(*self._rise(name), *again)

    # workers that are cut off ----------------------------------------------------------------------------------------

    def _cut_off(self, cut: CutSpec) -> None:
        """Cut the first workers off: nothing that they do is heard of any more."""
        names = list(self.workers)[: int(cut.share * len(self.workers))]
        for name in names:
            worker = self.workers[name]
            self._cut[name] = [*self._complete.get(name, ())] if worker.up and cut.warm else []
            if worker.up and worker.place not in self._stuck:
                self._hung.add(name)
                self._cluster.freeze(worker.place)
                self._stuck[worker.place] = []
        now = self._cluster.now
        lives = {name: self.workers[name].life for name in names}
        self._cluster.call(now + SILENCE, partial(self._miss, lives))
        self._cluster.call(now + cut.seconds, partial(self._rejoin, names))

    def _strike(self, death: DeathSpec) -> None:
        if death.instance in self._cut:
            self._cut[death.instance] = []  # it will have nothing when it is reached again
        super()._strike(death)

    def _miss(self, lives: dict[str, int]) -> None:
        """Take workers for lost that have been silent for too long."""
        for name, life in lives.items():
            if self.workers[name].up and self.workers[name].life == life:
                self._die(name, "unreachable", 0.0)

    def _rejoin(self, names: list[str]) -> None:
        """Let workers that were cut off come back, each with its next life and what it holds."""
        for name in names:
            loads, worker = self._cut.pop(name), self.workers[name]
            worker.rise()
            for load in loads:
                refused = worker.load(load)
                assert isinstance(refused, int), "what a worker holds has room in its memory"
            self._complete[name] = loads
            self.handle(*came_back(self._told(name)))

    # a roll ----------------------------------------------------------------------------------------------------------

    def _roll(self, roll: RollSpec) -> None:
        """Begin to roll all workers; the ones that stand by join first."""
        self._surge = [name for name in self.workers if name not in self.state.workers]
        self._to_roll.extend(self.state.workers)
        for name in self._surge:
            self._note("starting", name, ROLLED)
            self.handle(events.WorkerEnters(name))
            self._up_after(roll.start, name)

    def _start_anew(self, name: str) -> None:
        """End a worker that is empty, and start its next release."""
        roll, worker = self._cluster.scenario.roll, self.workers[name]
        assert roll is not None, "a worker is rolled"
        life = worker.life
        for submission in self._renew(name) if worker.up else ():
            self._again(submission)
        self.handle(events.WorkerDown(name, life, ROLLED))
        self._up_after(roll.start, name)

    def _publish(self) -> None:
        super()._publish()
        if self._surge:
            self._cluster.call(self._cluster.now, self._go_on_with_roll)

    def _go_on_with_roll(self) -> None:
        """Drain as many workers as serve beyond the ones needed; let the surge leave once all are rolled."""
        active = {place for places in self._cluster.gateway.active.values() for place in places}
        self._rolling -= {name for name in self._rolling if self.workers[name].up and self._places[name] in active
                          and name not in self.state.scaling.drained}  # fmt: skip
        ready = sum(self._places[name] in active for name in self._surge)
        while self._to_roll and len(self._rolling) < ready:
            name = self._to_roll.popleft()
            self._rolling.add(name)
            self.handle(events.DrainWorker(name, True))
        if not self._to_roll and not self._rolling:
            leaving, self._surge = self._surge, []
            for name in leaving:
                self.handle(events.WorkerLeaves(name, "the roll is over"))
