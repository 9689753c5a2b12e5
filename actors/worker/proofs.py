"""Proofs of a worker's bits: on a card each new shape is proved when a block with it is loaded, before a route leads there.

Before that its kernels are launched once, so that a compiler runs then and not while a request waits.

Owns what is said of it: in the status, for ``/version``; in heartbeats, while a first compilation takes long. Where bits
differ, the numerics become ones that no other worker has, so that no page of what is loaded from then on is exchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from ...gpu.backend import Backend
from ...gpu.executor import Executor
from ...gpu.select import open_prover
from ...policies.control.loads import LoadBlock
from ...policies.sweep.events import Event, NumericsChanged
from .device_thread import DeviceQueue
from .messages import WorkerConfig

log = logging.getLogger(__name__)
DEPEND = "results may depend on the batch: %s"
SHOWN = 1.0  # seconds of proofs from which they are worth a line
VARIANT = "{}-variant-{}-{}"  # numerics, worker, incarnation


class Proofs:
    """The proofs of one worker (see the module). Where nothing is to be proved, as on a CPU, nothing happens here.

    ``device`` runs the proofs, between sweeps. ``apply`` passes an event to the sweep machine. ``numerics`` are what the
    worker says of itself, and what seeds the lineages of pages.
    """

    def __init__(
        self, config: WorkerConfig, backend: Backend, device: DeviceQueue, incarnation: int, apply: Callable[[Event], None]
    ) -> None:
        self.numerics = backend.numerics
        self._prover = open_prover(backend, config.batching.sweep_tokens)
        self._device, self._apply = device, apply
        self._variant = VARIANT.format(backend.numerics, config.name, incarnation)

    def turn_to(self, apply: Callable[[Event], None]) -> None:
        """Serve the next life of the worker from now on."""
        self._apply = apply

    async def prove(self, block: LoadBlock) -> None:
        """Launch what serves a loaded block, and prove its shapes, between sweeps; what cannot be is said, no error."""
        prover = self._prover
        if prover is None:
            return

        def steps(executor: Executor) -> Iterator[None]:
            parameters = executor.parameters
            deltas = [parameters.deltas[id] if id else None for id in block.deltas]
            return prover.prove([parameters.components[id] for id in block.ids], deltas)

        state = prover.outcome
        before, late = state.why, state.late
        await self._device.call_in_steps(steps)
        if state.late != late:
            log.warning("%s", state.late)
        if state.why != before:
            log.warning(DEPEND, state.why)
        if state.differs and self.numerics != self._variant:
            self.numerics = self._variant
            self._apply(NumericsChanged(self._variant))

    @property
    def state(self) -> dict[str, Any]:
        """The state of the proofs as plain data; empty where nothing is to be proved."""
        return {} if self._prover is None else self._prover.outcome.view()

    @property
    def progress(self) -> dict[str, object]:
        """The part of a heartbeat about proofs under way that take long.

        Empty for the others, which are not worth a line.
        """
        state = None if self._prover is None else self._prover.outcome
        if state is None or not state.running or state.seconds_now < SHOWN:
            return {}
        return {"preparing": f"{state.running}, {state.steps} steps in {state.seconds_now:.0f} s"}
