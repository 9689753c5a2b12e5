"""Where the HTTP front of one process is asked by those of the others: requests of its gateway, its counters, its end.

One for each process that answers HTTP, as actor ``desk`` on its node. A request is looked for here first and then with all
others at once, so that any process can answer for any request; who does not answer within ``PATIENCE`` has none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from blockwright.actors.gateway.port import RequestView
from blockwright.api.http.context import Front
from blockwright.api.http.metric_sum import Family
from blockwright.runtime.actor.actor import Actor
from blockwright.runtime.actor.endpoint import endpoint
from blockwright.runtime.base.errors import RuntimeFault

log = logging.getLogger(__name__)
PATIENCE = 2.0  # seconds


async def _nothing() -> None:
    """What a process without a listener of its own has to close."""


class Desk(Actor):
    """See the module. ``others``: nodes of the other fronts; ``close``: stops listening, when the node ends."""

    def __init__(self, front: Front, others: Sequence[str], close: Callable[[], Awaitable[None]] = _nothing) -> None:
        self._front, self._others, self._close = front, list(others), close

    async def on_stop(self) -> None:
        await self._close()

    @endpoint(concurrent=True)
    async def describe(self, name: str, key: str) -> RequestView | None:
        """A request of this process's gateway, by its id or the one its client chose; None to any other key."""
        return self._front.describe(name, key)

    @endpoint(concurrent=True)
    async def cancel(self, name: str, key: str) -> bool:
        """End it; False when there is none that runs."""
        return self._front.cancel(name, key)

    @endpoint(concurrent=True)
    async def counters(self) -> list[Family]:
        """What this process has counted."""
        return self._front.metrics.families()

    @endpoint(concurrent=True)
    async def drain(self, seconds: float) -> None:
        """See ``GatewayPort``."""
        await self._front.port.drain(seconds)

    async def describe_anywhere(self, name: str, key: str) -> RequestView | None:
        """Here, or where it is."""
        found = self._front.describe(name, key)
        if found is None:
            found = next((view for view in await self._ask("describe", name, key) if view is not None), None)
        return found

    async def cancel_anywhere(self, name: str, key: str) -> bool:
        return self._front.cancel(name, key) or any(await self._ask("cancel", name, key))

    async def counters_elsewhere(self) -> list[list[Family]]:
        """Of each other process that answers."""
        answers: list[list[Family]] = await self._ask("counters")
        return answers

    async def _ask(self, endpoint: str, *args: str) -> list[Any]:
        """The answers of all others that answer."""
        calls = [getattr(self.node.ref(f"{name}/desk", Desk), endpoint)(*args, timeout=PATIENCE) for name in self._others]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for name, answer in zip(self._others, answers, strict=True):
            if isinstance(answer, RuntimeFault):
                log.warning("gateway process %s does not answer: %s", name, answer)
            elif isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]
