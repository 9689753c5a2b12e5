"""Entry of a worker process: its part of the supervision tree, with the back end that this machine gives it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

import torch

from ...gpu.errors import BackendError
from ...gpu.select import open_backend
from ...runtime import Node
from ...runtime.tree import start_inside
from ..logs import set_up
from ..supervision_tree import HEAD, inside_worker
from .messages import WorkerConfig

CONTROLLER = f"{HEAD}/controller"
log = logging.getLogger(__name__)
SWITCH_INTERVAL = 1e-4  # seconds: the device thread must not wait 5 ms to get the interpreter back from the loop


async def start(node: Node, config: WorkerConfig) -> None:
    """Spawn the worker actor. A failed device thread ends the process: its supervisor starts another."""
    set_up(config.log_format, config.log_level, config.name)
    sys.setswitchinterval(SWITCH_INTERVAL)
    torch.set_num_threads(max(1, config.threads))  # else as many as there are cores, which wait for one another
    try:
        backend = open_backend(config.backend, config.dtype, config.threads, config.instruction_set)
        here = {"worker": (config, backend, _end), "blocks": (CONTROLLER,)}
        await start_inside(node, inside_worker(overload=config.overload), here)
    except (BackendError, OSError, MemoryError) as error:  # of this machine: another life would fare no better
        await node.ref(CONTROLLER).unfit(config.name, node.incarnation, str(error) or "there is not enough memory")
        await asyncio.Event().wait()  # whoever was told ends this process


async def start_in_process(node: Node, config: WorkerConfig) -> None:
    """The same beside other workers in one process (tests): a failed device thread is raised in the loop."""
    backend = open_backend(config.backend, config.dtype, config.threads, config.instruction_set)

    def fail(error: BaseException) -> None:
        raise RuntimeError(f"the device thread of {config.name} failed") from error

    here = {"worker": (config, backend, fail), "blocks": (CONTROLLER,)}
    await start_inside(node, inside_worker(overload=config.overload), here)


def _end(error: BaseException) -> None:
    log.critical("the device thread failed", exc_info=error)
    logging.shutdown()
    os._exit(70)
