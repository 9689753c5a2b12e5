"""A gateway's state machine with workers that say what a test makes them say; every event is followed by a check."""

from typing import Any

from blockwright.actors.gateway.port import ModelInfo
from blockwright.policies.model.chain import Block, Chain, Component, Hop, Kind, Route
from blockwright.policies.requests.admission_limit import AdmissionLimit
from blockwright.policies.requests.book.book import RequestBook
from blockwright.policies.requests.book.messages import Deliver, Submit, WorkerEnded, WorkerJoined
from blockwright.policies.requests.book.parts import BookParts, ChainRules
from blockwright.policies.requests.book.sweep_report import SweepReport
from blockwright.policies.requests.request_timeout import RequestTimeout
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.sweep.events import GivenBack, Preempted, Progressed, PromptScored, TokensEmitted
from blockwright.tests.fake_cluster import generation

GATEWAY = "head/gateway#1"


def chain(application: str = "m", max_length: int = 4096) -> Chain:
    components = tuple(Component(bytes([i]) * 16, Kind.MLP, 100, 8, 8) for i in range(4))
    return Chain(application, (Block(components),), max_length)


def route(*workers: str, application: str = "m", version: int = 1) -> Route:
    hops = tuple(Hop(w, i, i + 1) for i, w in enumerate(workers))
    return Route(f"{application}@{'+'.join(workers)}", version, application, hops)


def gateway(
    worker_wait: float = 30.0,
    max_waiting: int = 4096,
    applications: tuple[str, ...] = ("m",),
    request_timeout: float = 0.0,
    asks: bool = False,
    target: float = 0.0,
    switches: int = 0,
    similarity_share: float = 0.0,
    **kv: Any,
) -> RequestBook:
    models = [ModelInfo(name, "/models/" + name, 4096, 0, False) for name in applications]
    timeouts, overload = RequestTimeout(worker_wait, request_timeout), AdmissionLimit(max_waiting, 0, 1)
    return RequestBook(
        BookParts(
            GATEWAY,
            models,
            page_size=4,
            timeouts=timeouts,
            overload=overload,
            asks=asks,
            rules=ChainRules(target, switches, similarity_share, **kv),
        )
    )


class Bench:
    """A gateway with workers; every event is followed by a check."""

    def __init__(self, *workers, routes=None, chains=None, capacity=None, **options):
        self.state = gateway(**options)
        self.version = 0
        self.serials = {}
        for worker in workers:
            self(WorkerJoined(worker, 1))
        self.publish(routes if routes is not None else [route(w) for w in workers], chains, capacity)

    def __call__(self, event, now=0.0):
        effects = self.state.handle(event, now)
        self.state.check()
        return effects

    def publish(self, routes, chains=None, capacity=None, now=0.0, **more):
        self.version += 1
        chains = [chain(name) for name in self.state.parts.catalogue.configured] if chains is None else chains
        return self(RoutesChanged(self.version, chains, routes, routes, capacity=capacity or {}, **more), now)

    def wants(self):
        """Return the tokens that applications waited for need, and the applications that only offline requests wait for."""
        parts = self.state.parts
        waits, wanted = parts.capacity_waits, (parts.table, parts.queue, parts.active)
        return waits.wants(*wanted), waits.offline(*wanted)

    def off(self, number):
        """Return whether no attempt is left on the routes that a switch ended."""
        parts = self.state.parts
        return parts.switches.off(number, parts.active, parts.pauses.leaving)

    def generate(self, *args, now=0.0, **more):
        return self(generation(*args, **more), now)

    def report(self, worker, *news, incarnation=1, serial=None, now=0.0, swept=0.0):
        last = self.serials.get((worker, incarnation), 0)
        serial = last + 1 if serial is None else serial
        self.serials[worker, incarnation] = max(serial, last)
        return self(SweepReport(worker, incarnation, serial, serial, [*news], seconds=swept), now)

    def die(self, worker, now=0.0, back=True):
        """Down and, unless ``back`` is false, up again with its routes."""
        incarnation = self.state.parts.workers.incarnation(worker)
        effects = self(WorkerEnded(worker, incarnation, "killed"), now)
        if back:
            routes = [r for rs in self.state.parts.table.routes.values() for r in rs]
            self(WorkerJoined(worker, incarnation + 1), now)
            effects += self.publish([*routes, route(worker)], now=now)
        return effects


def emitted(request, attempt, position, tokens, logprobs=(), finish=""):
    return TokensEmitted(GATEWAY, request, attempt, position, tokens, [*logprobs], finish)


def progressed(request, attempt, computed, cached=0):
    return Progressed(GATEWAY, request, attempt, computed, cached)


def scored(request, attempt, position, entries):
    return PromptScored(GATEWAY, request, attempt, position, entries)


def given_back(request, attempt, reason):
    return GivenBack(GATEWAY, request, attempt, reason)


def preempted(request, attempt=1):
    return Preempted(GATEWAY, request, attempt)


def delivered(*args, **more):
    """The effect for tokens that go on as they came."""
    return Deliver(emitted(*args, **more))


def submits(effects):
    return [(e.worker, e.submission.request, e.submission.attempt) for e in effects if isinstance(e, Submit)]
