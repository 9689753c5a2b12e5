"""The part of a worker that outlives a life of its node: its memory, and what the device has in it.

A life that a head has declared over ends with its sequences, flights, leases, routes and links. What they made can serve the
next life in the same process: packed parameters, with the claims of applications on them; cached pages, which are named by
their tokens and by what computed them, so they are as good for any life; composed runs, compiled grammars, proofs. The next
life reports the claims, and the controller says which are still wanted.

Numbers that tell lives apart go on: of plans, runs and deltas as the device knows them. Leases, batches of pages and flights
are numbered anew from the incarnation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...gpu.backend import Backend
from ...gpu.executor import Executor
from ...policies.cluster.worker_size import WorkerReading
from ...policies.sweep.events import Event
from ...policies.sweep.state import SweepState
from .block_loader import KnownSpecs
from .composed_runs import ComposedRuns
from .device_thread import DeviceQueue, LayOut, OnFatal, OnSwept
from .grammar_compiler import GrammarCompiler
from .messages import WorkerConfig
from .proofs import Proofs

WORKER, READING = "worker", "reading"  # names in the legacy of a node


@dataclass(frozen=True, slots=True)
class FormerLife:
    """See the module. claims: ids of components and deltas in memory, by holder."""

    config: WorkerConfig
    backend: Backend
    state: SweepState
    device: DeviceQueue
    composed: ComposedRuns
    grammars: GrammarCompiler
    proofs: Proofs
    specs: KnownSpecs

    @property
    def claims(self) -> dict[str, list[bytes]]:
        return self.state.parts.memory.residence.claims()

    def turn_to(
        self,
        do: Callable[[Callable[[Executor], object]], None],
        apply: Callable[[Event], None],
        on_device: tuple[OnSwept, OnFatal, LayOut],
    ) -> None:
        """Serve the next life from now on."""
        self.device.turn_to(*on_device)
        self.composed.turn_to(do)
        self.grammars.turn_to(apply)
        self.proofs.turn_to(apply)

    def close(self) -> None:
        """End the device: no life follows."""
        self.grammars.stop()
        self.device.stop()


def reading_of(legacy: dict[str, Any] | None) -> WorkerReading | None:
    """Return what a former life has read of its machine, whose memory this process holds now."""
    found: WorkerReading | None = (legacy or {}).get(READING)
    return found


def take_over(legacy: dict[str, Any] | None, config: WorkerConfig) -> FormerLife | None:
    """Return the former life, once; None if there was none, or if it was configured in another way, which ends it."""
    former: FormerLife | None = (legacy or {}).pop(WORKER, None)
    if former is not None and former.config != config:
        former.close()
        return None
    return former


def close_legacy(legacy: dict[str, Any]) -> None:
    """End what no life has taken over."""
    former: FormerLife | None = legacy.pop(WORKER, None)
    if former is not None:
        former.close()
