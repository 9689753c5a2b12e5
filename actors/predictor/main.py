"""Entry of the process where the predictors of a host are: their part of the supervision tree. Loads no torch."""

from __future__ import annotations

import os
from collections.abc import Callable

from blockwright.actors.logs import set_up
from blockwright.actors.predictor.messages import PredictorsConfig
from blockwright.actors.supervision_tree import inside_predictors
from blockwright.runtime.node.node import Node
from blockwright.runtime.tree import start_inside

NICE = 5  # behind the workers where there are too few cores


async def start(node: Node, config: PredictorsConfig) -> None:
    """In a process of its own."""
    set_up(config.log_format, config.log_level, node.name)
    os.nice(NICE)
    await start_in_process(node, config)


async def start_in_process(node: Node, config: PredictorsConfig) -> None:
    """The same beside other nodes in one process (tests). Figures of the predictors go with the node's heartbeats."""
    board: dict[str, Callable[[], dict[str, float]]] = {}
    inside = inside_predictors(config.workers)
    await start_inside(node, inside, {f"predictor-{worker}": (worker, board) for worker in config.workers})
    node.heartbeat = lambda: {"predictors": {worker: figures() for worker, figures in board.items()}}
