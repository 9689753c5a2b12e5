"""The entry of the process with the predictors and dispatchers of a host: its part of the supervision tree.

It loads no torch. One that joins from another machine has predictors for workers that joined alone.
"""

from __future__ import annotations

from ...runtime.node.node import Node
from ..logs import set_up
from ..settings.settings import Settings
from ..sizing import worker_names
from .coverage import start_predictors


async def start(node: Node, settings: Settings) -> None:
    """Start in a process of its own."""
    set_up(settings.logs.log_format, settings.logs.log_level, node.name)
    await start_in_process(node, settings)


async def start_in_process(node: Node, settings: Settings) -> None:
    """Do the same beside other nodes in one process (tests)."""
    await start_predictors(node, settings, worker_names(settings))
