"""The entry of the process with the predictors and dispatchers of a host: its part of the supervision tree.

It loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...runtime.node.node import Node
from ...runtime.tree import start_inside
from ..cost_file import read_links
from ..logs import set_up
from ..settings.settings import Settings
from ..sizing import worker_names
from ..supervision_tree import dispatchers, inside_predictors


async def start(node: Node, settings: Settings) -> None:
    """Start in a process of its own."""
    set_up(settings.logs.log_format, settings.logs.log_level, node.name)
    await start_in_process(node, settings)


async def start_in_process(node: Node, settings: Settings) -> None:
    """Do the same beside other nodes in one process (tests). Figures of the predictors go with the node's heartbeats."""
    board: dict[str, Callable[[], dict[str, float]]] = {}
    workers = worker_names(settings)
    links = read_links(settings.worker.profile)
    values: dict[str, Any] = {f"predictor-{worker}": (worker, board, links) for worker in workers}
    values |= {name: (settings.dispatching, number) for number, name in enumerate(dispatchers(settings.dispatching))}
    await start_inside(node, inside_predictors(settings), values)
    node.heartbeat = lambda: {"predictors": {worker: figures() for worker, figures in board.items()}}
