"""A fake fleet for the gateway's state machine: workers that compute a known function, and a network that loses reports.

Tokens depend on every earlier token of the sequence, so that a wrong resumption shows. Deterministic by its seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from blockwright.actors.gateway.port import Generation, ModelInfo, StreamNews
from blockwright.actors.worker.messages import GatewayNews, Submission
from blockwright.policies.model.chain import Block, Chain, Component, Hop, Kind, Route
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.requests.admission_limit import AdmissionLimit
from blockwright.policies.requests.book.book import RequestBook
from blockwright.policies.requests.book.messages import (
    Acknowledge,
    CancelAt,
    Closed,
    Deliver,
    Fail,
    HeartbeatReceived,
    Replay,
    Submit,
    WorkerEnded,
    WorkerJoined,
)
from blockwright.policies.requests.book.parts import BookParts
from blockwright.policies.requests.book.sweep_report import SweepReport
from blockwright.policies.requests.request_timeout import RequestTimeout
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.sweep.events import Progressed, TokensEmitted

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
) -> RequestBook:
    models = [ModelInfo(name, "/models/" + name, 4096, 0, False) for name in applications]
    timeouts, overload = RequestTimeout(worker_wait, request_timeout), AdmissionLimit(max_waiting, 0, 1)
    return RequestBook(BookParts(GATEWAY, models, page_size=4, timeouts=timeouts, overload=overload, asks=asks))


def generation(name: str = "r", prompt: int = 5, max_tokens: int = 4, application: str = "m", **more: object) -> Generation:
    fields: dict[str, object] = {"stop_tokens": [], "sampling": SamplingParams(seed=7), **more}
    return Generation(id=name, application=application, prompt=list(range(1, prompt + 1)), max_tokens=max_tokens, **fields)


def next_token(tokens: list[int], seed: int) -> int:
    """The token that every fake worker computes after ``tokens``."""
    return (sum((i + 1) * t for i, t in enumerate(tokens)) * 31 + seed * 17 + len(tokens)) % 997


def reference(g: Generation) -> list[int]:
    """The whole answer."""
    tokens = list(g.prompt)
    while len(tokens) < len(g.prompt) + g.max_tokens:
        tokens.append(next_token(tokens, g.sampling.seed))
        if tokens[-1] in g.stop_tokens:
            break
    return tokens[len(g.prompt) :]


@dataclass
class FakeWorker:
    name: str
    incarnation: int
    running: dict[str, tuple[Submission, list[int], int]] = field(default_factory=dict)  # submission, tokens, computed
    unacknowledged: dict[int, SweepReport] = field(default_factory=dict)
    serial: int = 0

    def submit(self, submission: Submission) -> None:
        self.running[submission.request] = (submission, list(submission.tokens), 0)

    def sweep(self) -> SweepReport | None:
        """Prefill up to 3 tokens of each new sequence, or decode one."""
        news: list[GatewayNews] = []
        for name, (s, tokens, computed) in list(self.running.items()):
            computed = min(computed + 3, len(tokens))
            if computed < len(tokens):
                news.append(Progressed(s.gateway, name, s.attempt, computed, 0))
                self.running[name] = (s, tokens, computed)
                continue
            token = next_token(tokens, s.sampling.seed)
            finish = "stop" if token in s.stop_tokens else "length" if len(tokens) + 1 == s.max_length else ""
            news.append(TokensEmitted(s.gateway, name, s.attempt, len(tokens), [token], [], finish))
            self.running[name] = (s, [*tokens, token], computed)
            if finish:
                del self.running[name]
        if not news:
            return None
        self.serial += 1
        report = SweepReport(self.name, self.incarnation, self.serial, self.serial, news)
        self.unacknowledged[self.serial] = report
        return report


class Fleet:
    """Drives one gateway and some fake workers; ``poison`` names requests that kill whoever decodes them."""

    def __init__(self, seed: int, routes: list[Route], drop: float = 0.0, double: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.state = gateway()
        self.routes = routes
        self.drop = drop
        self.double = double
        self.now, self.version = 0.0, 0
        self.workers: dict[str, FakeWorker] = {}
        self.incarnations: dict[str, int] = {}
        self.in_flight: list[SweepReport] = []  # in order per worker
        self.answers: dict[str, list[int]] = {}
        self.finish: dict[str, str] = {}
        self.failures: dict[str, Fail] = {}
        self.poison: set[str] = set()

    def feed(self, event: object) -> None:
        for effect in self.state.handle(event, self.now):  # type: ignore[arg-type]
            self.perform(effect)
        self.state.check()

    def perform(self, effect: object) -> None:
        match effect:
            case Submit(worker, submission):
                if worker in self.workers:
                    self.workers[worker].submit(submission)
            case CancelAt(worker, requests):
                for request in requests:
                    self.workers[worker].running.pop(request, None)
            case Acknowledge(worker, serial):
                kept = self.workers[worker].unacknowledged
                self.workers[worker].unacknowledged = {s: r for s, r in kept.items() if s > serial}
            case Replay(worker, serial):
                for s, report in self.workers[worker].unacknowledged.items():
                    if s >= serial:
                        self.send(report)
            case Deliver(news):
                self.deliver(news)
            case Fail():
                self.failures[effect.request] = effect
            case Closed(request):
                self.finish[request] = "closed"

    def deliver(self, news: StreamNews) -> None:
        assert news.request not in self.finish, "news after the end"
        assert isinstance(news, TokensEmitted)
        self.answers.setdefault(news.request, []).extend(news.tokens)
        if news.finish:
            self.finish[news.request] = news.finish

    def send(self, report: SweepReport) -> None:
        if self.random.random() >= self.drop:
            self.in_flight.append(report)
        if self.random.random() < self.double:
            self.in_flight.append(report)

    def start(self, name: str) -> None:
        self.incarnations[name] = self.incarnations.get(name, 0) + 1
        self.workers[name] = FakeWorker(name, self.incarnations[name])
        self.feed(WorkerJoined(name, self.incarnations[name]))
        self.publish()

    def kill(self, name: str) -> None:
        """The worker dies; what it sent may still arrive, before or after the news."""
        worker = self.workers.pop(name, None)
        if worker is None:
            return
        for report in [r for r in self.in_flight if r.worker == name and self.random.random() < 0.5]:
            self.in_flight.remove(report)
        self.feed(WorkerEnded(name, worker.incarnation, "killed"))
        for other in self.workers.values():  # homes drop what had a hop on the dead worker
            for request, (s, _, _) in list(other.running.items()):
                if name in s.route.partition("@")[2].split("+"):
                    del other.running[request]
        self.publish()

    def publish(self) -> None:
        self.version += 1
        routes = [r for r in self.routes if all(h.worker in self.workers for h in r.hops)]
        self.feed(RoutesChanged(self.version, [chain()], routes, self.routes))

    def heartbeats(self) -> None:
        for worker in list(self.workers.values()):
            self.feed(HeartbeatReceived(worker.name, worker.incarnation, worker.serial))

    def step(self) -> None:
        """One sweep of every worker, then some of what is in flight arrives."""
        self.now += 0.01
        for worker in list(self.workers.values()):
            report = worker.sweep()
            if report is not None and any(isinstance(n, TokensEmitted) and n.request in self.poison for n in report.news):
                self.kill(worker.name)
                continue
            if report is not None:
                self.send(report)
        for _ in range(self.random.randrange(len(self.in_flight) + 1)):
            self.feed(self.in_flight.pop(0))

    def settle(self, steps: int = 2000) -> None:
        """Run without further faults until every request has ended."""
        for i in range(steps):
            if not self.state.parts.active:
                return
            self.step()
            if i % 5 == 0:
                self.heartbeats()
        raise AssertionError(f"still active: {sorted(self.state.parts.active)}")
