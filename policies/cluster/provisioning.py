"""Autoscaling: when a worker is started, and when one is drained, by preemptive or relief provisioning.

After Da and Kalyvianaki's paper on predictive scheduling (Block, later Astrolabe), its section on scaling, with our
answers to what it leaves open. *Preemptive*: a worker starts when for some request even the least forecast over the active
workers reaches the limit; without any forecast for that long (predictors are late or dead), as in relief. *Relief*: when a
measured latency is above the limit; the age of a request that has not ended counts as measured too.

While one worker starts no other does, nor within a cool-down after it is up. One is drained when for a while every
latency, measured or forecast, would have stayed below half the limit with one worker less. For that, latency is assumed to
grow like the load of each worker, n / (n - 1); where it grows faster, the other half of the limit has to make up for it.

Where an engine starts and stops workers by itself (Kubernetes, Slurm), the same rules give a *wish*: the number of workers
that the engine should run. Workers that join count as if they had been started from here. The wish grows by one
when a worker would be started, and not again before as many are there; it shrinks by one when a worker would be drained, or
when a wished worker does not come and is not missed any more. Which worker ends is the engine's choice.
Owns the stage of each worker and the observations. Starts and stops nothing; time comes in as an argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

MODES = ("off", "preemptive", "relief")
GIVE_UP = 3  # deaths of a new worker that never served, after which it is given up
CALM = 0.5  # fraction of the limit that one worker less must not exceed
AGAIN = 1.0  # seconds between searches for a worker to spare, which look at all routes


class WorkerStage(StrEnum):
    """The stage of a worker."""

    OFF = "off"
    STARTING = "starting"  # or dead, and being restarted
    ACTIVE = "active"
    DRAINING = "draining"  # takes nothing new, until ``gone``


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningRules:
    """The settings.

    limit: seconds. least: fewest workers. cool_down: seconds without a start after one is up. window: calm seconds before
    one goes. overlap: whether others may start while one is starting. floor: workers that run always; those beyond
    ``least`` are started, or wished, without a reason. places: workers are started and drained from here; else there is only
    a wish, for at most ``most`` workers with the ``least``.
    """

    mode: str = "off"
    limit: float = 0.0
    least: int = 1
    cool_down: float = 0.0
    window: float = 60.0
    overlap: bool = False
    floor: int = 0
    places: bool = True
    most: int = 0

    @property
    def always(self) -> int:
        """The number of workers below which none is drained."""
        return max(self.least, self.floor)


@dataclass(frozen=True, slots=True)
class StartOne:
    """The decision to start a worker, with the reason."""

    worker: str
    why: str


@dataclass(frozen=True, slots=True)
class DrainOne:
    """The decision to drain a worker and stop it once it is empty, with the reason."""

    worker: str
    why: str


@dataclass(frozen=True, slots=True)
class Wish:
    """The decision that an engine should run this many workers beside the ``least``, with the reason."""

    workers: int
    why: str


Decision = StartOne | DrainOne | Wish


class Provisioning:
    """The autoscaler (see the module). ``workers``: all possible ones; the first ``least`` exist from the beginning. Where
    there is only a wish, others are there from ``entered`` to ``left``.
    """

    def __init__(self, rules: ProvisioningRules, workers: Sequence[str]) -> None:
        self.rules = rules
        self.stage = {name: WorkerStage.STARTING if n < rules.least else WorkerStage.OFF for n, name in enumerate(workers)}
        self._counts = Counter(self.stage.values())
        self.draining: dict[str, None] = {}  # workers in that stage
        self._fresh: dict[str, int] = {}  # started workers that have not served yet -> their deaths
        self._order: dict[str, int] = {}  # active worker -> order in which it became active
        self._ups = 0
        self._lacking = ""  # why memory is lacking, since the last decision
        self._over, self._seen = 0.0, ""  # worst latency above the limit since the last decision, and its source
        self._forecast = float("-inf")  # time of the last forecast
        self._rest = self._calm = float("-inf")  # no start before; calm since, with these workers
        self._next_look = float("-inf")  # no worker can be spared before, as far as is known
        self._wished = rules.always - rules.least  # workers that an engine should run, where it places them
        self._entered: set[str] = set()  # its workers that are there
        self._missed = float("-inf")  # when a worker was missed at last

    @property
    def wanted(self) -> int:
        """The number of workers wanted beside the ``least``."""
        if not self.rules.places:
            return self._wished
        return max(self.count(WorkerStage.STARTING) + self.count(WorkerStage.ACTIVE) - self.rules.least, 0)

    def count(self, stage: WorkerStage) -> int:
        """Return the number of workers in a stage."""
        return self._counts[stage]

    def _enter(self, worker: str, stage: WorkerStage) -> None:
        self._counts[self.stage[worker]] -= 1
        self._counts[stage] += 1
        self.stage[worker] = stage
        if stage is WorkerStage.DRAINING:
            self.draining[worker] = None
        else:
            self.draining.pop(worker, None)

    def up(self, worker: str, now: float) -> None:
        """Note that a worker serves."""
        if self.stage[worker] is WorkerStage.STARTING:
            self._enter(worker, WorkerStage.ACTIVE)
            self._ups += 1
            self._order[worker], self._calm = self._ups, now
            if self._fresh.pop(worker, None) is not None or worker in self._entered:
                self._rest = now + self.rules.cool_down

    def down(self, worker: str, now: float) -> None:
        """Note that a worker died; its supervisor restarts it."""
        if worker in self._fresh:
            self._fresh[worker] += 1
        if self.stage[worker] is WorkerStage.ACTIVE:
            self._enter(worker, WorkerStage.STARTING)
            self._calm = now

    def gone(self, worker: str, now: float) -> None:
        """Note that a drained worker has been stopped."""
        if self._fresh.pop(worker, None) is not None:
            self._rest = now + self.rules.cool_down
        self._enter(worker, WorkerStage.OFF)
        self._calm = now

    def entered(self, worker: str) -> None:
        """Note that a worker of the engine has joined, and will serve."""
        self._entered.add(worker)
        self.stage[worker] = WorkerStage.STARTING
        self._counts[WorkerStage.STARTING] += 1

    def left(self, worker: str, now: float) -> None:
        """Note that a worker of the engine takes nothing any more."""
        if worker in self._entered:
            self._entered.discard(worker)
            self._counts[self.stage.pop(worker)] -= 1
            self._order.pop(worker, None)
            self._calm = now

    def observe(self, now: float, *, measured: float = 0.0, predicted: float = 0.0) -> None:
        """Record the worst latencies, in seconds, observed together; 0: none.

        measured: of an ended request, or the age of an active one. predicted: least forecast of a request over the active
        workers.
        """
        limit, active = self.rules.limit, self.count(WorkerStage.ACTIVE)
        if predicted:
            self._forecast = now
        if self.rules.mode == "preemptive" and predicted >= limit:
            self._over, self._seen = max(self._over, predicted), "forecast on every active worker"
        elif measured > limit and (self.rules.mode == "relief" or now - self._forecast > limit):
            self._over, self._seen = max(self._over, measured), "measured"
        if max(measured, predicted) * active >= CALM * limit * (active - 1):
            self._calm = now

    def lacking(self, why: str) -> None:
        """Note that memory is lacking, so that a worker starts whatever the latencies are."""
        self._lacking = why

    def decide(self, now: float, work: Callable[[], Mapping[str, float]]) -> Decision | None:
        """Return the action to take now, which counts as begun.

        ``work``: returns the load of each worker that may go, in any unit; called only if one goes.
        """
        over = self._over
        self._over = 0.0
        lacking = self._lacking
        self._lacking = ""
        if (missing := self._start_missing(now)) is not None or self.rules.mode == "off":
            return missing
        late = f"{over:.3g} s {self._seen}, the limit is {self.rules.limit:g} s" if over else ""
        if not self.rules.places:
            return self._change_wish(now, late or lacking)
        if (late or lacking) and (found := self._start(now, late or lacking)) is not None:
            return found
        for worker, deaths in self._fresh.items():
            if deaths >= GIVE_UP and self.stage[worker] is WorkerStage.STARTING:
                self._enter(worker, WorkerStage.DRAINING)
                return DrainOne(worker, f"it died {deaths} times before it served")
        return self._drain(now, work)

    def _start(self, now: float, why: str) -> StartOne | None:
        worker = next((name for name, stage in self.stage.items() if stage is WorkerStage.OFF), None)
        if worker is None or now < self._rest or (self._fresh and not self.rules.overlap):
            return None
        if not self.count(WorkerStage.ACTIVE):
            return None  # another worker is not what is lacking
        self._enter(worker, WorkerStage.STARTING)
        self._fresh[worker] = 0
        return StartOne(worker, why)

    def _start_missing(self, now: float) -> StartOne | None:
        """Return the start of a worker that runs always and is not there, all at once and without a reason but that."""
        there = self.count(WorkerStage.STARTING) + self.count(WorkerStage.ACTIVE)
        if not self.rules.places or there >= self.rules.floor or now < self._rest or not self.count(WorkerStage.ACTIVE):
            return None
        worker = next((name for name, stage in self.stage.items() if stage is WorkerStage.OFF), None)
        if worker is None:
            return None
        self._enter(worker, WorkerStage.STARTING)
        self._fresh[worker] = 0
        return StartOne(worker, f"{self.rules.floor} workers run always")

    def _change_wish(self, now: float, why: str) -> Wish | None:
        """Return the wish if it changes. ``why``: a worker more is missing, or empty."""
        rules, coming = self.rules, self._wished > len(self._entered)
        if why:
            self._missed = now
        room = rules.least + self._wished < rules.most and self.count(WorkerStage.ACTIVE) > 0
        if why and room and now >= self._rest and (not coming or rules.overlap):
            self._wished += 1
            return Wish(self._wished, why)
        if self._wished <= rules.always - rules.least:
            return None
        half = f"{CALM * rules.limit:g} s"
        if coming and now - max(self._missed, self._rest) >= rules.window:
            why = f"none came, and for {rules.window:g} s no latency was above the limit"
        elif not coming and now - self._calm >= rules.window:
            why = f"one worker less would have kept latencies below {half} for {rules.window:g} s"
        else:
            return None
        self._wished -= 1
        self._calm = self._missed = now
        return Wish(self._wished, why)

    def _drain(self, now: float, ask: Callable[[], Mapping[str, float]]) -> DrainOne | None:
        busy = self._fresh or self.draining or now < self._next_look
        if busy or self.count(WorkerStage.ACTIVE) <= self.rules.always or now - self._calm < self.rules.window:
            return None
        work = ask()
        active = [name for name in work if self.stage[name] is WorkerStage.ACTIVE]
        if not active:
            self._next_look = now + AGAIN
            return None
        worker = min(active, key=lambda name: (work[name], -self._order[name]))
        self._enter(worker, WorkerStage.DRAINING)
        half = f"{CALM * self.rules.limit:g} s"
        return DrainOne(worker, f"one worker less would have kept latencies below {half} for {self.rules.window:g} s")
