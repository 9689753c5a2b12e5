"""Paces: how long the workers take for a token, by the measured costs of their sweeps or by the speeds they joined with.

Measurements are rough, so paces are rounded to parts of the fastest worker's speed: equal workers count as equally fast.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ..plan.coefficients import Coefficients
from ..plan.cost import KNEE

BATCH = 32  # rows of the sweep by whose cost workers are compared
STEPS = 8  # of the fastest worker's speed, to which speeds are rounded


@dataclass(frozen=True, slots=True)
class WorkerLink:
    """The link between two workers. ``latency``: seconds. ``bandwidth``: bytes per second; 0: unlimited."""

    latency: float
    bandwidth: float

    def seconds(self, nbytes: float) -> float:
        """Return the seconds until bytes that are sent now have arrived."""
        return self.latency + (nbytes / self.bandwidth if self.bandwidth else 0.0)


@dataclass(frozen=True, slots=True)
class Paces:
    """The paces of workers.

    slower: by worker, how many times the fastest worker's time it takes for a token; empty: all are alike, or unknown.
    unit: seconds that the fastest takes for a token; 0: unknown. per_byte: ``unit`` is for each byte of parameters.
    """

    slower: Mapping[str, float] = field(default_factory=dict)
    unit: float = 0.0
    per_byte: bool = False

    def of(self, worker: str) -> float:
        """Return how many times the fastest worker's time a worker takes for a token."""
        return self.slower.get(worker, 1.0)

    def seconds(self, nbytes: int) -> float:
        """Return the seconds of a token on the fastest worker. nbytes: of the chain's parameters. 0: unknown."""
        return self.unit * nbytes if self.per_byte else self.unit


def token_seconds(costs: Coefficients) -> float:
    """Return the seconds of a token in a sweep of ``BATCH`` decoding rows, without the positions that they attend to."""
    sweep = costs.base + costs.step + costs.read + costs.beyond * (BATCH - KNEE)
    return sweep / BATCH + costs.token + costs.row


def compared(times: Mapping[str, float], *, per_byte: bool = False) -> Paces:
    """Return the paces of workers, given the time that each takes for a token."""
    fastest = min(times.values(), default=0.0)
    if fastest <= 0:
        return Paces()
    slower = {worker: STEPS / max(round(STEPS * fastest / time), 1) for worker, time in times.items()}
    return Paces(slower if len({*slower.values()}) > 1 else {}, fastest, per_byte)


class WorkerPaces:
    """The paces of a gateway's workers, by what it has heard of their speeds and costs.

    joined: by the speeds with which workers joined. measured: by their costs, or as ``joined`` while one's are unknown.
    """

    def __init__(self) -> None:
        self._costs: dict[str, Coefficients] = {}
        self._speeds: dict[str, float] = {}
        self.joined = self.measured = Paces()

    def hear(self, worker: str, speed: float, costs: Coefficients | None, alive: Collection[str]) -> None:
        """Take a live worker's word. speed: bytes of parameters that tokens pass there in a second; 0: unknown."""
        costs = costs or self._costs.get(worker)
        if self._speeds.get(worker) == speed and self._costs.get(worker) == costs:
            return
        self._speeds[worker] = speed
        if costs is not None:
            self._costs[worker] = costs
        self.compare(alive)

    def lose(self, worker: str, alive: Collection[str]) -> None:
        """Forget a worker that has ended."""
        self._costs.pop(worker, None)
        self._speeds.pop(worker, None)
        self.compare(alive)

    def compare(self, alive: Collection[str]) -> None:
        """Compare the live workers anew. While one is unknown, nothing is compared."""
        speeds = {worker: self._speeds.get(worker, 0.0) for worker in alive}
        times = {worker: 1.0 / speed for worker, speed in speeds.items() if speed}
        self.joined = compared(times, per_byte=True) if len(times) == len(speeds) else Paces()
        costs = {worker: token_seconds(self._costs[worker]) for worker in alive if worker in self._costs}
        found = compared(costs) if len(costs) == len(speeds) else Paces()
        self.measured = found if found.unit else self.joined
