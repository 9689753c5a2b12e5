"""The predictors of one process beyond those of the server's own workers: of workers that joined, as the head says.

Owns their actors. The table of all predictors' processes is shared with the dispatchers and predictors of this process,
which read it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ...policies.prediction.machines import LinkTimes
from ...runtime.actor.actor import Actor
from ...runtime.actor.endpoint import endpoint
from ...runtime.actor.ref import Ref
from ...runtime.base.down import Down
from ...runtime.node.node import Node
from ...runtime.tree import start_inside
from ..cost_file import read_links
from ..settings.settings import Settings
from ..supervision_tree import dispatchers, inside_predictors
from .actor import Predictor
from .messages import CoverageAccount, name_of

log = logging.getLogger(__name__)
AGAIN = 1.0  # seconds until a predictor that ended is started again

Board = dict[str, Callable[[], dict[str, float]]]


class Coverage(Actor):
    """See the module. board, links: as for ``Predictor``. places: worker -> the process with its predictor. own: workers
    that have one here for ever. labels: of this process, its starter's.
    """

    def __init__(
        self,
        board: Board,
        places: dict[str, str],
        links: LinkTimes | None = None,
        own: Collection[str] = (),
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._labels = dict(labels or {})
        self._own = frozenset(own)
        self._board = board
        self._places = places
        self._links = links
        self._mine: dict[str, Ref | None] = {}  # by worker

    @endpoint
    async def cover(self, places: dict[str, str]) -> None:
        """Have predictors for the workers that are this process's, and know where the others are."""
        self._places.clear()
        self._places.update(places)
        wanted = [worker for worker, node in places.items() if node == self.node.name and worker not in self._own]
        for worker in [worker for worker in self._mine if worker not in wanted]:
            ref = self._mine.pop(worker)
            self._board.pop(worker, None)
            if ref is not None:
                await self.node.stop_actor(ref, drain=0.0)
        for worker in wanted:
            if worker not in self._mine:
                await self._begin(worker)

    @endpoint(concurrent=True)
    async def tell(self) -> CoverageAccount:
        """Tell a new head what the one before knew of this process."""
        return CoverageAccount(self._labels, dict(self._places))

    async def on_down(self, down: Down) -> None:
        worker = next((worker for worker, ref in self._mine.items() if ref is not None and str(ref) == down.ref), "")
        if not worker:
            return
        log.warning("the predictor of %s has ended: %s", worker, down.cause)
        self._mine[worker] = None
        self.node.clock.call_at(self.node.clock.now() + AGAIN, lambda: self.node.post(self.ref.address, self._again))

    async def _again(self) -> None:
        for worker in [worker for worker, ref in self._mine.items() if ref is None]:
            await self._begin(worker)

    async def _begin(self, worker: str) -> None:
        actor = Predictor(worker, self._board, self._links, self._places)
        self._mine[worker] = ref = (await self.node.spawn(actor, name=name_of(worker), owner=self.ref.address)).ref
        self.monitor(ref)


async def start_predictors(
    node: Node, settings: Settings, workers: list[str], labels: Mapping[str, str] | None = None
) -> None:
    """Start with the predictors of these workers. Figures of the predictors go with the node's heartbeats.

    labels: of this process.
    """
    board: Board = {}
    places: dict[str, str] = {}
    links = read_links(settings.worker.profile)
    values: dict[str, Any] = {f"predictor-{worker}": (worker, board, links, places) for worker in workers}
    asked = dispatchers(settings.dispatching)
    values |= {name: (settings.dispatching, number, places) for number, name in enumerate(asked)}
    values["coverage"] = (board, places, links, workers, labels)
    await start_inside(node, inside_predictors(settings, workers), values)
    node.heartbeat = lambda: {"predictors": {worker: figures() for worker, figures in board.items()}}
