"""The entry of the process with the predictors and dispatchers of a host: its part of the supervision tree.

It loads no torch. One that joins from another machine has predictors for workers that joined alone.
"""

from __future__ import annotations

from typing import Any

from ...runtime.node.node import Node
from ...runtime.tree import start_inside
from ..cost_file import read_links
from ..logs import set_up
from ..settings.settings import Settings
from ..sizing import worker_names
from ..supervision_tree import dispatchers, inside_predictors
from .coverage import Board


async def start(node: Node, settings: Settings) -> None:
    """Start in a process of its own."""
    set_up(settings.logs.log_format, settings.logs.log_level, node.name)
    await start_in_process(node, settings)


async def start_in_process(node: Node, settings: Settings) -> None:
    """Do the same beside other nodes in one process (tests)."""
    await start_predictors(node, settings, worker_names(settings))


async def start_predictors(node: Node, settings: Settings, workers: list[str]) -> None:
    """Start with the predictors of these workers. Figures of the predictors go with the node's heartbeats."""
    board: Board = {}
    places: dict[str, str] = {}
    links = read_links(settings.worker.profile)
    values: dict[str, Any] = {f"predictor-{worker}": (worker, board, links, places) for worker in workers}
    asked = dispatchers(settings.dispatching)
    values |= {name: (settings.dispatching, number, places) for number, name in enumerate(asked)}
    values["coverage"] = (board, places, links, workers)
    await start_inside(node, inside_predictors(settings, workers), values)
    node.heartbeat = lambda: {"predictors": {worker: figures() for worker, figures in board.items()}}
