"""Entry point of a worker process: joins with what its machine has, opens the back end, starts its supervision tree."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ...gpu.backend import Backend
from ...gpu.errors import BackendError
from ...gpu.select import open_backend
from ...gpu.speed import measure_speed
from ...policies.cluster.worker_size import SizeRules, WorkerReading, WorkerReport, threads_of
from ...runtime import Node
from ...runtime.base.errors import RemoteError
from ...runtime.tree import start_inside
from ..device_choice import read_machine, this_machine
from ..logs import set_up
from ..member_calls import JoinRefused
from ..settings.errors import SettingsError
from ..settings.workers import MOST_THREADS, WorkerSettings
from ..sizing import sized
from ..source_checks import check_store
from ..supervision_tree import HEAD, inside_worker
from .former_life import READING, reading_of, take_over
from .messages import WorkerConfig

CONTROLLER = f"{HEAD}/controller"
log = logging.getLogger(__name__)
Read = Callable[[WorkerConfig], WorkerReading]
SWITCH_INTERVAL = 1e-4  # seconds; by default the device thread would wait 5 ms to get the interpreter back from the loop


def read(config: WorkerConfig) -> WorkerReading:
    """Return what this machine has for its workers. Raises SettingsError if a setting cannot be had here."""
    return read_machine(config.worker, config.sharing)


def read_and_measure(config: WorkerConfig) -> WorkerReading:
    """Return the same with the speeds of one worker. Device auto takes the CPU if torch cannot use the card."""
    found = read(config)
    rules = SizeRules(threads=config.worker.threads, workers=config.sharing, most_threads=MOST_THREADS)
    try:
        speed = measure_speed(found.device, threads_of(found.cores, rules))
    except BackendError as error:
        if config.worker.device != "auto":
            raise
        found = read_machine(config.worker, config.sharing, unusable=str(error))
        speed = measure_speed(found.device, threads_of(found.cores, rules))
    return replace(found, bandwidth=speed.bandwidth, products=speed.products)


async def join(
    node: Node, config: WorkerConfig, controller: str, read: Read, machine: str = ""
) -> tuple[WorkerConfig, WorkerReport]:
    """Report what this worker has, and return its configuration with the size that it gets, and the whole report.

    ``machine``: the identity, if it is not this one's. Raises SettingsError and RemoteError if a setting cannot be had here.
    """
    ref, known_as = node.ref(controller), machine or this_machine()
    kind: Any = WorkerReading | None
    reading = reading_of(node.legacy)  # what is free now lacks what this process holds
    if reading is None and not config.joined:
        reading = await ref.machine(known_as, returns=kind)
    if reading is None:
        reading = await asyncio.to_thread(read, config)
    if node.legacy is not None:
        node.legacy[READING] = reading
    report: WorkerReport = await ref.join(config.name, node.incarnation, reading, returns=WorkerReport)
    return sized(config, report), report


async def start(node: Node, config: WorkerConfig) -> None:
    """Spawn the worker actor. If the device thread fails, the process ends and its supervisor starts another."""
    set_up(config.logs.log_format, config.logs.log_level, config.name)
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        config, report = await join(node, config, CONTROLLER, read_and_measure)
        check_store(config.sources)
        torch.set_num_threads(max(1, config.worker.threads))  # by default one per core, and these would wait for one another
        former = take_over(node.legacy, config)
        backend = former.backend if former is not None else _open(config.worker)
        here = {"worker": (config, backend, _end, former), "blocks": (CONTROLLER, report, config.joined)}
        await start_inside(node, inside_worker(overload=config.overload), here)
    # faults of this machine: another life would fare no better
    except (BackendError, SettingsError, RemoteError, OSError, MemoryError) as error:
        why = error.text if isinstance(error, RemoteError) else str(error)
        if config.joined:
            raise JoinRefused(why or "there is not enough memory") from None  # the process ends, which its starter sees
        await node.ref(CONTROLLER).unfit(config.name, node.incarnation, why or "there is not enough memory")
        await asyncio.Event().wait()  # the controller, notified just before, ends this process


async def start_in_process(node: Node, config: WorkerConfig) -> None:
    """Spawn the worker actor beside others in one process (for tests). It measures no speed.

    A failed device thread raises its error in the event loop.
    """
    config, report = await join(node, config, CONTROLLER, read)
    backend = _open(config.worker)

    def fail(error: BaseException) -> None:
        raise RuntimeError(f"the device thread of {config.name} failed") from error

    here = {"worker": (config, backend, fail), "blocks": (CONTROLLER, report, config.joined)}
    await start_inside(node, inside_worker(overload=config.overload), here)


def _open(worker: WorkerSettings) -> Backend:
    name = worker.backend if worker.device == "cpu" else worker.device
    return open_backend(name, worker.dtype, worker.threads, worker.instruction_set, worker.bits)


def _end(error: BaseException) -> None:
    log.critical("the device thread failed", exc_info=error)
    logging.shutdown()
    os._exit(70)
