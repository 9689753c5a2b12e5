"""What every handler of the HTTP front is given: the gateway port, the models, the keys, the counters.

One ``Front`` for each application, under ``FRONT``; the other keys name what a request carries through its handlers. Makes
request ids.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from aiohttp import web

from ...actors.batches.port import BatchDesk
from ...actors.config import Settings
from ...actors.gateway.peers import Family, TenantUse
from ...actors.gateway.port import (
    ForecastPoint,
    GatewayPort,
    ModelInfo,
    MovesBegun,
    RefusedChange,
    RequestLine,
    RequestView,
    StreamProgress,
)
from ...actors.load_history import LoadHistory, LoadRow
from ...policies.requests.refusal import RequestRefused
from ...policies.requests.request_ownership import ChosenNames, Viewer, request_id
from ...runtime.actor.ref import Ref
from .auth import ApiCaller, Keys, ModelAccess
from .body_memory import BodyMemory
from .catalog import Catalog
from .cors import Cors
from .hosts import Hosts
from .limits import TenantLimits
from .metrics import Meter, Metrics
from .spans import Spans
from .starting import Stages

T = TypeVar("T")


class Asker(Protocol):
    """What answering needs of who asks: an HTTP request, or a line of a batch. Its keys stand at the end of the module."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    def __getitem__(self, key: web.RequestKey[T], /) -> T: ...

    def __setitem__(self, key: web.RequestKey[T], value: T, /) -> None: ...

    def get(self, key: web.RequestKey[Any], /) -> Any: ...


@dataclass(frozen=True, slots=True)
class OfflinePlace:
    """Where a line of a batch is meant to run. ``home``: a worker; ``side``: of its dual scanner, "left" or "right". Both
    empty: wherever there is room."""

    home: str = ""
    side: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    port: GatewayPort
    settings: Settings
    catalog: Catalog
    keys: Keys
    metrics: Metrics
    max_body: int  # bytes
    bodies: BodyMemory
    stages: Stages
    access: ModelAccess
    limits: TenantLimits
    cors: Cors
    hosts: Hosts
    names: ChosenNames = field(default_factory=ChosenNames)
    history: LoadHistory = field(default_factory=LoadHistory)
    desk: BatchDesk | None = None  # of the batches, if there are any
    spans: Spans | None = None  # who is told of requests that are over, if anybody is
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="front"))

    async def aside(self, work: Callable[[], T]) -> T:
        """Return what work on a thread makes that would hold the loop up. One runs at a time: each costs the loop turns."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    def close(self) -> None:
        """End the thread; work that has begun goes on."""
        self.threads.shutdown(wait=False, cancel_futures=True)

    def describe(self, name: str, viewer: Viewer) -> RequestView | None:
        """Return a request of this process that the viewer may see, by our id or the one its client chose."""
        view = self.port.describe(self._id(name, viewer))
        return view if view is not None and viewer.may_see(view.key) else None

    def requests(self, viewer: Viewer, most: int) -> list[RequestLine]:
        """Return the latest requests of this process that the viewer may see."""
        return self.port.requests(viewer, most)

    def cancel(self, name: str, viewer: Viewer) -> bool:
        """End a request of this process; return False if none that the viewer may see runs."""
        id = self._id(name, viewer)
        return self.describe(id, viewer) is not None and self.port.cancel(id)

    def _id(self, name: str, viewer: Viewer) -> str:
        """Return our id of a request. The id that a client chose may be that of another key's request: an admin means it."""
        if viewer.everything and self.port.describe(name) is not None:
            return name
        return self.names.resolve(viewer, name)

    def move(self, name: str, viewer: Viewer, worker: str, route: str) -> MovesBegun:
        """Move a request of this process, of any key; return no move if none runs."""
        try:
            return MovesBegun(self.port.move(self._id(name, viewer), worker, route))
        except RequestRefused as refused:
            return MovesBegun([], RefusedChange(refused.why, refused.message, refused.param))

    def families(self) -> list[Family]:
        """What this process has counted."""
        return self.metrics.families()

    def tenant_uses(self) -> dict[str, TenantUse]:
        """Return this process's counts of each tenant."""
        return self.metrics.tenant_uses()

    def load_rows(self, step: int, after: int) -> list[LoadRow]:
        """How busy this process was."""
        return self.history.rows(step, after)

    def forecasts(self) -> list[ForecastPoint]:
        """Of the last requests of this process's gateway."""
        return list(self.port.dispatching().points)

    async def drain(self, seconds: float) -> None:
        """See ``GatewayPort``."""
        await self.port.drain(seconds)

    def model(self, request: Asker, name: str | None) -> ModelInfo:
        """The model that a request names. Raises a 404, or a 403 for one that its key may not use."""
        info = self.catalog.info(name)
        request[MODEL] = info.id
        self.access.check(request[CALLER], info.id)
        return info

    async def find(self, request: Asker, name: str | None) -> ModelInfo:
        """Return the model that a request names, also an adapter of the folder that nobody has asked for yet. Raise what
        ``model`` raises, and RequestRefused for an adapter that cannot be served."""
        if name is not None and self.settings.adapters and all(info.id != name for info in self.port.models()):
            self.access.check(request[CALLER], name)
            await self.port.find_application(name)
        return self.model(request, name)

    def new_id(self, prefix: str) -> str:
        """Names its gateway, so that any gateway can tell where to ask about it."""
        return request_id(prefix, self.port.name, secrets.token_hex(12))


FRONT = web.AppKey("front", Front)
PEER: web.AppKey[list[Ref]] = web.AppKey("peer", list)  # of this process; empty until the cluster is up
CALLER = web.RequestKey("caller", ApiCaller)  # who asks
MODEL = web.RequestKey("model", str)  # the id of the one that answers
NAME = web.RequestKey("name", str)  # the id that the client chose
TRACE = web.RequestKey("trace", str)  # the traceparent of what is done for it
_anything: Any = object
PROGRESS: web.RequestKey[Callable[[], StreamProgress]] = web.RequestKey("progress", _anything)  # of the first choice
ASKED: web.RequestKey[Mapping[str, float]] = web.RequestKey("asked", _anything)  # sampling that the request named
METER = web.RequestKey("meter", Meter)  # what it has come to so far
FAULT = web.RequestKey("fault", str)  # why it was refused
BEGUN = web.RequestKey("begun", float)  # when the request came, on the loop's clock
CALL_ID = web.RequestKey("call_id", str)  # the id of the answer, once it has one
IGNORED = web.RequestKey("ignored", tuple[str, ...])  # unknown fields of the body
OFFLINE = web.RequestKey("offline", OfflinePlace)  # only of a line of a batch
