"""How the processes that answer HTTP ask each other: for requests of their gateways, for their counters, to drain.

One for each process with a front, as actor ``peer`` of its node. A request is looked for here first and then with all others
at once, so that any process can answer for any request; who does not answer within ``PATIENCE`` has none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from blockwright.actors.config import Settings
from blockwright.actors.gateway.port import ForecastPoint, ModelInfo, MovesBegun, RequestLine, RequestView
from blockwright.actors.load_history import LoadRow, merged
from blockwright.runtime.actor.actor import Actor
from blockwright.runtime.actor.endpoint import endpoint
from blockwright.runtime.base.errors import RuntimeFault

log = logging.getLogger(__name__)
PATIENCE = 2.0  # seconds


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Of a gateway's process. ``port``: where all listen; ``others``: nodes of the other gateways; ``fronts``: of the other
    fronts."""

    settings: Settings
    models: list[ModelInfo]
    port: int
    others: list[str]
    fronts: list[str]
    limiter: str


@dataclass(frozen=True, slots=True)
class Family:
    """Counters of one name, as Prometheus groups them. ``samples``: (name, labels, value)."""

    name: str
    text: str
    kind: str
    samples: list[tuple[str, dict[str, str], float]]


class LocalFront(Protocol):
    """What a peer asks of the front in its own process (``api/http/context.py``)."""

    def describe(self, name: str, key: str) -> RequestView | None: ...

    def requests(self, key: str, most: int) -> list[RequestLine]: ...

    def cancel(self, name: str, key: str) -> bool: ...

    def move(self, name: str, key: str, worker: str, route: str) -> MovesBegun: ...

    def families(self) -> list[Family]: ...

    def forecasts(self) -> list[ForecastPoint]: ...

    def load_rows(self, step: int, after: int) -> list[LoadRow]: ...

    async def drain(self, seconds: float) -> None: ...


async def _nothing() -> None:
    """No-op close."""


class GatewayPeer(Actor):
    """See the module. ``others``: nodes of the other fronts; ``close``: stops listening, when the node ends."""

    def __init__(self, front: LocalFront, others: Sequence[str], close: Callable[[], Awaitable[None]] = _nothing) -> None:
        self._front, self._others, self._close = front, list(others), close

    async def on_stop(self) -> None:
        await self._close()

    @endpoint(concurrent=True)
    async def describe(self, name: str, key: str) -> RequestView | None:
        """A request of this process's gateway, by its id or the one its client chose; None to any other key."""
        return self._front.describe(name, key)

    @endpoint(concurrent=True)
    async def requests(self, key: str, most: int) -> list[RequestLine]:
        """See ``GatewayPort``."""
        return self._front.requests(key, most)

    @endpoint(concurrent=True)
    async def cancel(self, name: str, key: str) -> bool:
        """End it; False when there is none that runs."""
        return self._front.cancel(name, key)

    @endpoint(concurrent=True)
    async def move(self, name: str, key: str, worker: str, route: str) -> MovesBegun:
        """Move it to another route; nothing where there is none that runs."""
        return self._front.move(name, key, worker, route)

    @endpoint(concurrent=True)
    async def counters(self) -> list[Family]:
        """What this process has counted."""
        return self._front.families()

    @endpoint(concurrent=True)
    async def forecasts(self) -> list[ForecastPoint]:
        """Of the last requests of this process's gateway."""
        return self._front.forecasts()

    @endpoint(concurrent=True)
    async def load_rows(self, step: int, after: int) -> list[LoadRow]:
        """How busy this process was (``load_history.py``)."""
        return self._front.load_rows(step, after)

    @endpoint(concurrent=True)
    async def drain(self, seconds: float) -> None:
        """See ``GatewayPort``."""
        await self._front.drain(seconds)

    @endpoint(concurrent=True)
    async def describe_anywhere(self, name: str, key: str) -> RequestView | None:
        """Here, or where it is."""
        found = self._front.describe(name, key)
        if found is None:
            found = next((view for view in await self._ask("describe", name, key) if view is not None), None)
        return found

    @endpoint(concurrent=True)
    async def requests_anywhere(self, key: str, most: int) -> list[RequestLine]:
        """Those of all processes that answer: what runs and waits first."""
        lines = [
            line for found in [self._front.requests(key, most), *await self._ask("requests", key, most)] for line in found
        ]
        return sorted(lines, key=lambda line: line.state not in ("waiting", "running"))[:most]

    @endpoint(concurrent=True)
    async def cancel_anywhere(self, name: str, key: str) -> bool:
        """Here, or where it is."""
        return self._front.cancel(name, key) or any(await self._ask("cancel", name, key))

    @endpoint(concurrent=True)
    async def move_anywhere(self, name: str, key: str, worker: str, route: str) -> MovesBegun:
        """Here, or where it is."""
        found = [self._front.move(name, key, worker, route)]
        if found == [MovesBegun([])]:
            found += await self._ask("move", name, key, worker, route)
        return next((one for one in found if one.moves or one.refused), found[0])

    @endpoint(concurrent=True)
    async def counters_elsewhere(self) -> list[list[Family]]:
        """Of each other process that answers."""
        answers: list[list[Family]] = await self._ask("counters")
        return answers

    @endpoint(concurrent=True)
    async def forecasts_anywhere(self) -> list[ForecastPoint]:
        """Of all processes that answer."""
        return [point for points in [self._front.forecasts(), *await self._ask("forecasts")] for point in points]

    @endpoint(concurrent=True)
    async def history_anywhere(self, step: int, after: int) -> list[LoadRow]:
        """Of all processes that answer, added up."""
        return merged([self._front.load_rows(step, after), *await self._ask("load_rows", step, after)])

    @endpoint(concurrent=True)
    async def drain_all(self, seconds: float) -> None:
        """Not ready anywhere; returns when nothing runs in any process or the time is over."""
        await asyncio.gather(self._front.drain(seconds), self._ask("drain", seconds, patience=seconds + PATIENCE))

    async def _ask(self, endpoint: str, *args: Any, patience: float = PATIENCE) -> list[Any]:
        """The answers of all others that are up and answer."""
        there = [name for name in self._others if name in self.node.peers()]
        calls = [getattr(self.node.ref(f"{name}/peer", GatewayPeer), endpoint)(*args, timeout=patience) for name in there]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for name, answer in zip(there, answers, strict=True):
            if isinstance(answer, RuntimeFault):
                log.warning("gateway process %s does not answer: %s", name, answer)
            elif isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]
