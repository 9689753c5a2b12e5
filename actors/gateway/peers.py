"""Calls between the processes that answer HTTP: to find requests, to sum counters, to drain.

Each process with a front has one such actor, ``peer`` of its node. A request is looked up here first and then in all other
processes at once, so that any process can answer for any request. A process that does not answer within ``PATIENCE``
counts as not having the request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...policies.measures import Measure
from ...policies.requests.request_ownership import Viewer
from ...policies.requests.retry_claims import RetryClaims, keeper_of
from ...runtime.actor.actor import Actor
from ...runtime.actor.endpoint import endpoint
from ...runtime.base.down import Down
from ...runtime.base.errors import RuntimeFault
from ..load_history import LoadRow, merged
from ..settings.settings import Settings
from .port import ForecastPoint, ModelInfo, MovesBegun, RequestLine, RequestView

log = logging.getLogger(__name__)
PATIENCE = 2.0  # seconds
RUN_SECONDS = 3600.0  # for an answer, whose own limits are those of the gateway that makes it
HEAD = "head"  # its own front answers no requests while there are others


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The configuration of a gateway's process.

    port: the port that all gateways listen on. others: nodes of the other gateways. fronts: nodes of the other fronts.
    """

    settings: Settings
    models: list[ModelInfo]
    port: int
    others: list[str]
    fronts: list[str]
    limiter: str


@dataclass(frozen=True, slots=True)
class TenantUse:
    """One process's counts of a tenant's requests and lines of batches.

    running, waiting: sequences now. requests: that have started. tokens: of prompts and answers. refused: requests by
    error code.
    """

    running: int = 0
    waiting: int = 0
    requests: int = 0
    tokens: int = 0
    refused: dict[str, int] = field(default_factory=dict)

    def beside(self, other: TenantUse) -> TenantUse:
        """Return the sum of two processes."""
        codes = sorted({*self.refused, *other.refused})
        return TenantUse(
            self.running + other.running,
            self.waiting + other.waiting,
            self.requests + other.requests,
            self.tokens + other.tokens,
            {code: self.refused.get(code, 0) + other.refused.get(code, 0) for code in codes},
        )


@dataclass(frozen=True, slots=True)
class RetryAnswer:
    """The answer of a request that another gateway runs. status: of HTTP; 0: it runs here no more. The rest: of an error."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    message: str = ""
    param: str | None = None
    code: str = ""
    retry_after: float | None = None


class LocalFront(Protocol):
    """The front in the peer's own process (``api/http/context.py``)."""

    def describe(self, name: str, viewer: Viewer) -> RequestView | None: ...

    def requests(self, viewer: Viewer, limit: int) -> list[RequestLine]: ...

    def cancel(self, name: str, viewer: Viewer) -> bool: ...

    def move(self, name: str, viewer: Viewer, worker: str, route: str) -> MovesBegun: ...

    def counters(self) -> list[Measure]: ...

    def tenant_uses(self) -> dict[str, TenantUse]: ...

    def forecasts(self) -> list[ForecastPoint]: ...

    def load_rows(self, step: int, after: int) -> list[LoadRow]: ...

    async def drain(self, seconds: float) -> None: ...

    @property
    def retry_window(self) -> float: ...

    def owners(self) -> list[str]: ...

    async def retried(self, owner: str, sent: bytes) -> RetryAnswer: ...


class LocalRelay(Protocol):
    """The way to this machine's files for gateways on other machines (``api/http/relay.py``)."""

    async def begin(self, method: str, target: str, headers: dict[str, str]) -> str: ...

    async def give(self, number: str, piece: bytes) -> None: ...

    def answer(self, number: str) -> AsyncIterator[bytes]: ...

    def drop(self, number: str) -> None: ...

    async def close(self) -> None: ...


def by_recency(line: RequestLine) -> tuple[bool, float]:
    """Return a sort key that puts running and waiting requests before ended ones, the latest first in each group."""
    return (True, line.ended) if line.ended is not None else (False, line.age)


async def _nothing() -> None:
    """Do nothing; the default for ``close``."""


class GatewayPeer(Actor):
    """The peer actor of one process (see the module).

    others: nodes of the other fronts. close: stops listening when the node ends. relay: of the head, if gateways may join.
    """

    def __init__(
        self,
        front: LocalFront,
        others: Sequence[str],
        close: Callable[[], Awaitable[None]] = _nothing,
        relay: LocalRelay | None = None,
    ) -> None:
        self._front = front
        self._others = list(others)
        self._close = close
        self._relay = relay
        self._claims = RetryClaims(front.retry_window)
        self._watched: set[str] = set()  # nodes of fronts

    async def on_stop(self) -> None:
        if self._relay is not None:
            await self._relay.close()
        await self._close()

    @endpoint(concurrent=True)
    async def relay_begin(self, method: str, target: str, headers: dict[str, str]) -> str:
        """Begin to send a request of a gateway on another machine to this server; return its number."""
        if self._relay is None:
            raise ValueError("this server passes on no requests of other machines")
        return await self._relay.begin(method, target, headers)

    @endpoint(concurrent=True)
    async def relay_give(self, number: str, piece: bytes) -> None:
        """Give the next piece of its body, or the end, which is empty."""
        if self._relay is not None:
            await self._relay.give(number, piece)

    @endpoint
    async def relay_answer(self, number: str) -> AsyncIterator[bytes]:
        """Yield its answer (see ``LocalRelay``)."""
        if self._relay is not None:
            async for piece in self._relay.answer(number):
                yield piece

    @endpoint(concurrent=True)
    async def relay_drop(self, number: str) -> None:
        """Forget it."""
        if self._relay is not None:
            self._relay.drop(number)

    @endpoint(urgent=True)
    async def fronts(self, nodes: list[str]) -> None:
        """Note the nodes of all fronts, of which some may be on other machines and come and go."""
        self._others = [name for name in nodes if name != self.node.name]
        self._claim_again()

    # requests with an Idempotency-Key

    @endpoint(concurrent=True)
    async def claim_anywhere(self, owner: str, instead_of: str) -> str:
        """Return the gateway that runs a client's key, or "" if this one is to. See ``RetryClaims.claim``."""
        keeper, mine = self._keeper(owner), self.node.name
        if instead_of and instead_of not in self.node.peers():
            self._claims.forget(instead_of)
        if keeper == mine:
            runner = self._claims.claim(owner, mine, self.node.clock.now(), instead_of)
        else:
            try:
                ref = self.node.ref(f"{keeper}/peer", GatewayPeer)
                runner = await ref.claim(owner, mine, instead_of, timeout=PATIENCE)
            except RuntimeFault:  # the keeper has just died
                return ""
        return "" if runner == mine else runner

    @endpoint(urgent=True)
    async def claim(self, owner: str, gateway: str, instead_of: str) -> str:
        """See ``RetryClaims.claim``; this gateway is the keeper."""
        self._watch(gateway)
        return self._claims.claim(owner, gateway, self.node.clock.now(), instead_of)

    @endpoint(urgent=True)
    async def claim_ended(self, owner: str, kept: bool) -> None:
        """Tell the keeper of the end of a run of this gateway."""
        if (keeper := self._keeper(owner)) == self.node.name:
            self._claims.end(owner, keeper, self.node.clock.now(), kept=kept)
        else:
            self.node.ref(f"{keeper}/peer", GatewayPeer).ended.cast(owner, self.node.name, kept)

    @endpoint(urgent=True)
    async def ended(self, owner: str, gateway: str, kept: bool) -> None:
        """See ``RetryClaims.end``; this gateway is the keeper."""
        self._claims.end(owner, gateway, self.node.clock.now(), kept=kept)

    @endpoint(concurrent=True)
    async def answer_of(self, gateway: str, owner: str, sent: bytes) -> RetryAnswer:
        """Wait for the answer of another gateway."""
        ref = self.node.ref(f"{gateway}/peer", GatewayPeer)
        return await ref.retried(owner, sent, timeout=RUN_SECONDS, returns=RetryAnswer)

    @endpoint(concurrent=True)
    async def retried(self, owner: str, sent: bytes) -> RetryAnswer:
        """Return the answer of a run of this gateway, once it is there."""
        return await self._front.retried(owner, sent)

    def _keeper(self, owner: str) -> str:
        there = [self.node.name, *(name for name in self._others if name in self.node.peers())]
        return keeper_of(owner, [name for name in there if name != HEAD] or there)

    def _claim_again(self) -> None:
        """Claim what runs here at the keepers of now, since others may have been them."""
        for name in self._others:
            self._watch(name)
        for owner in self._front.owners():
            if (keeper := self._keeper(owner)) != self.node.name:
                self.node.ref(f"{keeper}/peer", GatewayPeer).claim.cast(owner, self.node.name, "")
            else:
                self._claims.claim(owner, keeper, self.node.clock.now())

    def _watch(self, gateway: str) -> None:
        if gateway not in self._watched and gateway in self.node.peers():
            self._watched.add(gateway)
            self.node.monitor(gateway, self._gone)

    def _gone(self, down: Down) -> None:
        self._watched.discard(down.node)
        self._claims.forget(down.node)
        self._claim_again()

    @endpoint(concurrent=True)
    async def describe(self, name: str, viewer: Viewer) -> RequestView | None:
        """Return a request of this process's gateway that the viewer may see, by its id or the one its client chose."""
        return self._front.describe(name, viewer)

    @endpoint(concurrent=True)
    async def requests(self, viewer: Viewer, limit: int) -> list[RequestLine]:
        """See ``GatewayPort``."""
        return self._front.requests(viewer, limit)

    @endpoint(concurrent=True)
    async def cancel(self, name: str, viewer: Viewer) -> bool:
        """End a request; return False if no such request is running."""
        return self._front.cancel(name, viewer)

    @endpoint(concurrent=True)
    async def move(self, name: str, viewer: Viewer, worker: str, route: str) -> MovesBegun:
        """Move a request to another route; return no move if no such request is running."""
        return self._front.move(name, viewer, worker, route)

    @endpoint(concurrent=True)
    async def counters(self) -> list[Measure]:
        """Return this process's counters."""
        return self._front.counters()

    @endpoint(concurrent=True)
    async def tenant_uses(self) -> dict[str, TenantUse]:
        """Return this process's counts of each tenant."""
        return self._front.tenant_uses()

    @endpoint(concurrent=True)
    async def forecasts(self) -> list[ForecastPoint]:
        """Return the forecasts for the last requests of this process's gateway."""
        return self._front.forecasts()

    @endpoint(concurrent=True)
    async def load_rows(self, step: int, after: int) -> list[LoadRow]:
        """Return the load history of this process (``load_history.py``)."""
        return self._front.load_rows(step, after)

    @endpoint(concurrent=True)
    async def drain(self, seconds: float) -> None:
        """See ``GatewayPort``."""
        await self._front.drain(seconds)

    @endpoint(concurrent=True)
    async def describe_anywhere(self, name: str, viewer: Viewer) -> RequestView | None:
        """Return a request from the process that has it."""
        return (await self._find(name, viewer))[1]

    @endpoint(concurrent=True)
    async def requests_anywhere(self, viewer: Viewer, limit: int) -> list[RequestLine]:
        """Return the requests of all processes that answer: running and waiting ones, then ended ones; latest first in
        each group.
        """
        found = [self._front.requests(viewer, limit), *(await self._ask("requests", viewer, limit)).values()]
        return sorted((line for lines in found for line in lines), key=by_recency)[:limit]

    @endpoint(concurrent=True)
    async def cancel_anywhere(self, name: str, viewer: Viewer) -> bool:
        """End a request in the process that has it."""
        place, view = await self._find(name, viewer)
        if view is None:
            return False
        if not place:
            return self._front.cancel(view.id, viewer)
        return any((await self._ask("cancel", view.id, viewer, only=place)).values())

    @endpoint(concurrent=True)
    async def move_anywhere(self, name: str, viewer: Viewer, worker: str, route: str) -> MovesBegun:
        """Move a request in the process that has it."""
        place, view = await self._find(name, viewer) if viewer.everything else ("", None)
        id = name if view is None else view.id
        found = [MovesBegun([]) if place else self._front.move(id, viewer, worker, route)]
        if found == [MovesBegun([])]:
            found += (await self._ask("move", id, viewer, worker, route, only=place)).values()
        return next((one for one in found if one.moves or one.refused), found[0])

    @endpoint(concurrent=True)
    async def counters_elsewhere(self) -> list[list[Measure]]:
        """Return the counters of each other process that answers."""
        return [*(await self._ask("counters")).values()]

    @endpoint(concurrent=True)
    async def tenant_uses_elsewhere(self) -> list[dict[str, TenantUse]]:
        """Return the tenant counts of each other process that answers."""
        return [*(await self._ask("tenant_uses")).values()]

    @endpoint(concurrent=True)
    async def forecasts_anywhere(self) -> list[ForecastPoint]:
        """Return the forecasts of all processes that answer."""
        return [point for points in [self._front.forecasts(), *(await self._ask("forecasts")).values()] for point in points]

    @endpoint(concurrent=True)
    async def history_anywhere(self, step: int, after: int) -> list[LoadRow]:
        """Return the load history summed over all processes that answer."""
        return merged([self._front.load_rows(step, after), *(await self._ask("load_rows", step, after)).values()])

    @endpoint(concurrent=True)
    async def drain_all(self, seconds: float) -> None:
        """Drain all processes: not ready anywhere. Return when nothing runs in any process or the time is over."""
        await asyncio.gather(self._front.drain(seconds), self._ask("drain", seconds, patience=seconds + PATIENCE))

    async def _find(self, name: str, viewer: Viewer) -> tuple[str, RequestView | None]:
        """Return the node that has a request ("": this one), and the request.

        A match by request id goes before a match by the id that a client chose, since the latter may belong to another
        key's request at another gateway.
        """
        here = self._front.describe(name, viewer)
        if here is not None and (here.id == name or not viewer.everything):
            return "", here
        found = [("", here), *(await self._ask("describe", name, viewer)).items()]
        known = [(place, view) for place, view in found if view is not None]
        return next((one for one in known if one[1].id == name), next(iter(known), ("", None)))

    async def _ask(self, endpoint: str, *args: Any, patience: float = PATIENCE, only: str = "") -> dict[str, Any]:
        """Return the answers of the other processes that are up, by node; of ``only`` one if it is named."""
        there = [name for name in self._others if name in self.node.peers() and only in ("", name)]
        calls = [getattr(self.node.ref(f"{name}/peer", GatewayPeer), endpoint)(*args, timeout=patience) for name in there]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for name, answer in zip(there, answers, strict=True):
            if isinstance(answer, RuntimeFault):
                log.warning("gateway process %s does not answer: %s", name, answer)
            elif isinstance(answer, BaseException):
                raise answer
        return {name: one for name, one in zip(there, answers, strict=True) if not isinstance(one, BaseException)}
