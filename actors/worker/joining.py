"""Joining: a worker reads what its machine has, reports it to the controller, and is told its size.

What another worker of the same machine reported counts for this one too, so it is asked for first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...gpu.speed import measure_speed
from ...policies.cluster.worker_size import SizeRules, WorkerReading, WorkerReport, threads_of
from ...runtime import Node
from ..device_choice import read_machine, this_machine
from ..settings.workers import MOST_THREADS
from ..sizing import sized
from .messages import WorkerConfig

Read = Callable[[WorkerConfig], WorkerReading]


def read(config: WorkerConfig) -> WorkerReading:
    """Return what this machine has for its workers. Raises SettingsError if a setting cannot be had here."""
    return read_machine(config.worker, config.sharing)


def read_and_measure(config: WorkerConfig) -> WorkerReading:
    """Return the same with the speeds of one worker."""
    found = read(config)
    rules = SizeRules(threads=config.worker.threads, workers=config.sharing, most_threads=MOST_THREADS)
    speed = measure_speed(found.device, threads_of(found.cores, rules))
    return replace(found, bandwidth=speed.bandwidth, products=speed.products)


async def join(node: Node, config: WorkerConfig, controller: str, read: Read, machine: str = "") -> WorkerConfig:
    """Report what this worker has, and return its configuration with what it was told.

    ``machine``: the identity, if it is not this one's. Raises SettingsError and RemoteError if a setting cannot be had here.
    """
    ref, known_as = node.ref(controller), machine or this_machine()
    kind: Any = WorkerReading | None
    reading: WorkerReading | None = await ref.machine(known_as, returns=kind)
    if reading is None:
        reading = await asyncio.to_thread(read, config)
    report: WorkerReport = await ref.join(config.name, node.incarnation, reading, returns=WorkerReport)
    return sized(config, report)
