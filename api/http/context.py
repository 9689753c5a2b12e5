"""The shared state that every HTTP handler receives: gateway port, models, keys, counters.

There is one ``Front`` for each web application, under the key ``FRONT``. The other keys name values that a request carries
through its handlers. This module also makes request ids.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from aiohttp import web

from ...actors.batches.port import BatchService
from ...actors.gateway.peers import RetryAnswer, TenantUse
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
from ...actors.settings.settings import Settings
from ...policies.measures import Measure
from ...policies.requests.refusal import RequestRefused
from ...policies.requests.request_ownership import ChosenNames, Viewer, request_id
from ...runtime.actor.ref import Ref
from ..constraints.checker import GrammarChecker
from ..errors import ApiError, in_words
from .auth import ApiCaller, Keys, ModelAccess, ServiceClasses
from .body_memory import BodyMemory
from .catalog import Catalog
from .cors import Cors
from .held_tools import HeldToolsMemory
from .hosts import Hosts
from .idempotency import RunsOnce
from .limits import TenantLimits
from .metrics import Meter, Metrics
from .spans import Spans
from .starting import Stages

T = TypeVar("T")


class CallContext(Protocol):
    """The interface of a caller: an HTTP request, or a line of a batch. Its keys are at the end of the module."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    def __getitem__(self, key: web.RequestKey[T], /) -> T: ...

    def __setitem__(self, key: web.RequestKey[T], value: T, /) -> None: ...

    def get(self, key: web.RequestKey[Any], /) -> Any: ...


@dataclass(frozen=True, slots=True)
class OfflinePlace:
    """The place where a line of a batch should run.

    ``home``: a worker. ``side``: the side of its dual scanner, "left" or "right". Both empty: any worker with capacity.
    """

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
    classes: ServiceClasses
    limits: TenantLimits
    cors: Cors
    hosts: Hosts
    names: ChosenNames = field(default_factory=ChosenNames)
    history: LoadHistory = field(default_factory=LoadHistory)
    batch_service: BatchService | None = None  # the batches, if they are enabled
    spans: Spans | None = None  # the exporter of finished requests, if one is configured
    grammars: GrammarChecker = field(default_factory=GrammarChecker)
    held_tools: HeldToolsMemory = field(default_factory=HeldToolsMemory)
    once: RunsOnce = field(default_factory=lambda: RunsOnce(0.0))  # requests with an Idempotency-Key
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="front"))

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run work on a thread that would block the event loop, and return its result.

        One call runs at a time, since each takes interpreter time from the loop.
        """
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    def close(self) -> None:
        """Shut the thread down; work that has begun continues."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        self.grammars.close()

    def describe(self, name: str, viewer: Viewer) -> RequestView | None:
        """Return a request of this process that the viewer may see, by our id or the one that its client chose."""
        view = self.port.describe(self._id(name, viewer))
        return view if view is not None and viewer.may_see(view.key) else None

    def requests(self, viewer: Viewer, limit: int) -> list[RequestLine]:
        """Return the latest requests of this process that the viewer may see."""
        return self.port.requests(viewer, limit)

    def cancel(self, name: str, viewer: Viewer) -> bool:
        """Cancel a request of this process. Return False if no running request of that name is visible to the viewer."""
        id = self._id(name, viewer)
        return self.describe(id, viewer) is not None and self.port.cancel(id)

    def _id(self, name: str, viewer: Viewer) -> str:
        """Return our id of a request.

        A client's chosen id may equal our id of another key's request. An admin key means the latter.
        """
        if viewer.everything and self.port.describe(name) is not None:
            return name
        return self.names.resolve(viewer, name)

    def move(self, name: str, viewer: Viewer, worker: str, route: str) -> MovesBegun:
        """Move a request of this process, of any key. Return no moves if it does not run."""
        try:
            return MovesBegun(self.port.move(self._id(name, viewer), worker, route))
        except RequestRefused as refused:
            return MovesBegun([], RefusedChange(refused.why, refused.message, refused.param))

    def counters(self) -> list[Measure]:
        """Return the counters of this process."""
        return self.metrics.measures()

    def tenant_uses(self) -> dict[str, TenantUse]:
        """Return the counters of this process by tenant."""
        return self.metrics.tenant_uses()

    def load_rows(self, step: int, after: int) -> list[LoadRow]:
        """Return the load history of this process."""
        return self.history.rows(step, after)

    def forecasts(self) -> list[ForecastPoint]:
        """Return forecasts for the latest requests of this process's gateway."""
        return list(self.port.dispatching().points)

    @property
    def retry_window(self) -> float:
        """Seconds for which an answer is kept for retries."""
        return self.once.window

    def owners(self) -> list[str]:
        """Return who owns the requests with an ``Idempotency-Key`` that run here."""
        return self.once.owners

    async def retried(self, owner: str, sent: bytes) -> RetryAnswer:
        """Return the answer of such a request for a retry at another gateway."""
        try:
            run = self.once.known(owner, sent)
            if run is None:
                return RetryAnswer(0)
            given = await run
        except RequestRefused as refused:
            error = in_words(refused)
        except ApiError as raised:
            error = raised
        else:
            return RetryAnswer(200, given.body, given.headers)
        return RetryAnswer(error.status, b"", {}, error.message, error.param, error.code, error.retry_after)

    async def drain(self, seconds: float) -> None:
        """Drain the gateway (see ``GatewayPort``)."""
        await self.port.drain(seconds)

    def name_request(self, request: CallContext, wished: str | None) -> None:
        """Record the client's name for a request, under which ``/v1/requests`` and the log have it.

        ``wished``: the name in its body, which the one in the header precedes.
        """
        if chosen := request.headers.get("x-request-id") or wished:
            request[NAME] = chosen
            self.names.record(request[CALLER].key, chosen, request[CALL_ID])

    def cache_salt(self, tenant: str, wished: str) -> bytes:
        """Return the cache salt; only requests with equal salts share cached prefixes.

        With keys these are requests of one tenant, unless the cache is shared by all.
        """
        apart = self.keys.required and not self.settings.worker_memory.shared_cache
        return f"{len(tenant)} {tenant} {wished}".encode() if apart else wished.encode()

    def model(self, request: CallContext, name: str | None) -> ModelInfo:
        """Return the model that a request names; raise a 404, or a 403 if its key may not use the model."""
        info = self.catalog.info(name)
        request[MODEL] = info.id
        self.access.check(request[CALLER], info.id)
        return info

    async def find(self, request: CallContext, name: str | None) -> ModelInfo:
        """Return the model that a request names, which may be an adapter in the adapter folder that is not served yet.

        Raise the errors of ``model``, and RequestRefused for an adapter that cannot be served.
        """
        if name is not None and self.settings.models.adapters and all(info.id != name for info in self.port.models()):
            self.access.check(request[CALLER], name)
            await self.port.find_application(name)
        return self.model(request, name)

    def new_id(self, prefix: str) -> str:
        """Return a new request id. It contains the gateway's name, so that every gateway knows which one to ask about it."""
        return request_id(prefix, self.port.name, secrets.token_hex(12))


FRONT = web.AppKey("front", Front)
PEER: web.AppKey[list[Ref]] = web.AppKey("peer", list)  # the peer actor of this process; empty until the cluster is up
CALLER = web.RequestKey("caller", ApiCaller)  # the caller
MODEL = web.RequestKey("model", str)  # id of the model that answers
NAME = web.RequestKey("name", str)  # the id that the client chose
TRACE = web.RequestKey("trace", str)  # traceparent of our own span
_anything: Any = object
# progress of the first choice
PROGRESS: web.RequestKey[Callable[[], StreamProgress]] = web.RequestKey("progress", _anything)
ASKED: web.RequestKey[Mapping[str, float]] = web.RequestKey("asked", _anything)  # sampling parameters that the request set
METER = web.RequestKey("meter", Meter)  # counts and times so far
FAULT = web.RequestKey("fault", str)  # reason of the refusal
BEGUN = web.RequestKey("begun", float)  # arrival time on the loop's clock
CALL_ID = web.RequestKey("call_id", str)  # id of the answer, once it is assigned
UNNAMED = web.RequestKey("unnamed", str)  # id of an answer that never got one of ours
IGNORED = web.RequestKey("ignored", tuple[str, ...])  # unknown fields of the body
OFFLINE = web.RequestKey("offline", OfflinePlace)  # set for lines of a batch only
