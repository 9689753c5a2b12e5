"""Autoscaling: when a cluster gets one more worker, and when one goes again, by preemptive or relief provisioning.

After Da and Kalyvianaki's paper on predictive scheduling (Block, later Astrolabe), its section on scaling, with what that
leaves open. *Preemptive*: one more worker starts when for some request even the least forecast over the active workers
reaches the limit; where none was forecast for as long as that (predictors are late or dead), as in relief. *Relief*: when a
measured latency is above it; the age of a request that has not ended is measured, too.
While one starts no further one does, nor within a cool-down after it is there. One goes when for a while every latency,
measured or forecast, would have stayed below half the limit with one worker less. For that it counts as growing like the
load of each worker, n / (n - 1); where it grows faster, the other half of the limit has to make up for it.

Owns what each worker is and what was observed. Starts and stops nothing; time comes in as an argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

MODES = ("off", "preemptive", "relief")
GIVE_UP = 3  # deaths of a worker that was started and never served: it is not wanted any more
CALM = 0.5  # of the limit: what one worker less must not exceed
AGAIN = 1.0  # seconds until it is looked again who can be spared, where nobody could: that costs a look at all routes


class WorkerStage(StrEnum):
    """What a worker is."""

    OFF = "off"
    STARTING = "starting"  # or dead, and being started again
    ACTIVE = "active"
    DRAINING = "draining"  # takes nothing new, until ``gone``


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningRules:
    """``limit``: seconds. ``least``: workers that there are always. ``cool_down``: seconds without a start after one is up.
    ``window``: seconds that must have been calm before one goes. ``overlap``: others may start while one is starting."""

    mode: str = "off"
    limit: float = 0.0
    least: int = 1
    cool_down: float = 0.0
    window: float = 60.0
    overlap: bool = False


@dataclass(frozen=True, slots=True)
class StartOne:
    """One more worker is to be started, and why."""

    worker: str
    why: str


@dataclass(frozen=True, slots=True)
class DrainOne:
    """A worker is to take nothing new, and to be stopped once nothing is there, and why."""

    worker: str
    why: str


class Provisioning:
    """See the module. ``workers``: all that there can be; the first ``least`` are there from the beginning."""

    def __init__(self, rules: ProvisioningRules, workers: Sequence[str]) -> None:
        self.rules = rules
        self.stage = {name: WorkerStage.STARTING if n < rules.least else WorkerStage.OFF for n, name in enumerate(workers)}
        self._counts = Counter(self.stage.values())
        self.draining: dict[str, None] = {}  # those in that stage
        self._fresh: dict[str, int] = {}  # workers that were started and have not served yet: how often they have died
        self._order: dict[str, int] = {}  # active worker: the how manyth it was to become so
        self._ups = 0
        self._lacking = ""  # why memory lacks, since the last decision
        self._over, self._seen = 0.0, ""  # what was above the limit since the last decision, and how it is known
        self._forecast = float("-inf")  # when one came last
        self._rest = self._calm = float("-inf")  # no start before; since when all was calm, with these workers
        self._next_look = float("-inf")  # nobody can be spared before, as far as is known

    def count(self, stage: WorkerStage) -> int:
        """Workers in a stage."""
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
        """It serves."""
        if self.stage[worker] is WorkerStage.STARTING:
            self._enter(worker, WorkerStage.ACTIVE)
            self._ups += 1
            self._order[worker], self._calm = self._ups, now
            if self._fresh.pop(worker, None) is not None:
                self._rest = now + self.rules.cool_down

    def down(self, worker: str, now: float) -> None:
        """It died; its supervisor starts it again."""
        if worker in self._fresh:
            self._fresh[worker] += 1
        if self.stage[worker] is WorkerStage.ACTIVE:
            self._enter(worker, WorkerStage.STARTING)
            self._calm = now

    def gone(self, worker: str, now: float) -> None:
        """What was to be drained has been stopped."""
        if self._fresh.pop(worker, None) is not None:
            self._rest = now + self.rules.cool_down
        self._enter(worker, WorkerStage.OFF)
        self._calm = now

    def observe(self, now: float, *, measured: float = 0.0, predicted: float = 0.0) -> None:
        """Seconds, the worst of what was observed together; 0: nothing. ``measured``: of a request that has ended, or the
        age of one that has not. ``predicted``: of a request, the least forecast over the active workers."""
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
        """Memory lacks, whatever latencies are: so that one more worker starts."""
        self._lacking = why

    def decide(self, now: float, work: Callable[[], Mapping[str, float]]) -> StartOne | DrainOne | None:
        """What is to be done now; it counts as begun. ``work``: of each worker that may go, in any unit, asked for only
        where one goes."""
        over, self._over, lacking, self._lacking = self._over, 0.0, self._lacking, ""
        if self.rules.mode == "off":
            return None
        late = f"{over:.3g} s {self._seen}, the limit is {self.rules.limit:g} s" if over else ""
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
            return None  # what lacks is not one more
        self._enter(worker, WorkerStage.STARTING)
        self._fresh[worker] = 0
        return StartOne(worker, why)

    def _drain(self, now: float, ask: Callable[[], Mapping[str, float]]) -> DrainOne | None:
        busy = self._fresh or self.draining or now < self._next_look
        if busy or self.count(WorkerStage.ACTIVE) <= self.rules.least or now - self._calm < self.rules.window:
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
