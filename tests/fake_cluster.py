"""The one fake of a cluster that tests share: workers without tensors, a controller's state machine, and a gateway's.

Workers hold components by id, refuse what does not fit, and compute tokens that depend on all earlier ones, so that a wrong
resumption shows. ``FakeCluster`` answers the controller at once, when a test says so, or never; ``ServingCluster`` puts a
gateway and a network that loses reports before it. Deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from blockwright.actors.controller.view import cluster_view
from blockwright.actors.gateway.port import Generation
from blockwright.actors.worker.messages import GatewayNews, Submission
from blockwright.policies.cluster.demand import Use
from blockwright.policies.control import drop_events, events
from blockwright.policies.control.drop_groups import refusal
from blockwright.policies.control.events import Application, Effect, Event
from blockwright.policies.control.loads import LoadBlock, NoCapacity
from blockwright.policies.control.route_switch import SwitchFigures, SwitchRoutes
from blockwright.policies.control.state import ControllerState
from blockwright.policies.model.chain import Component, Hop, Kind, KvLayout
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.requests.book import messages
from blockwright.policies.requests.book.book import RequestBook
from blockwright.policies.requests.book.sweep_report import SweepReport
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.sweep.events import Progressed, TokensEmitted

KV = KvLayout(1, 8, "float32", 16)  # 1,024 bytes a page
SIZE = 100  # bytes of a component
ROOM = 64 * 1024  # bytes for KV, beside the components that have room


def application(name: str, ids: str = "eAmBnh", span: int = 1, *, kv: KvLayout | None = None, **more: Any) -> Application:
    """Return an application of a component for each letter; equal letters are shared.

    ``kv`` is the layout of all components; without it, capital letters alone have KV.
    """
    layouts = [kv or (KV if c.isupper() else None) for c in ids]
    parts = [
        Component(c.encode() * 16, Kind.MLP if layout is None else Kind.ATTENTION, SIZE, 8, 8, layout)
        for c, layout in zip(ids, layouts, strict=True)
    ]
    return Application(name, f"/models/{name}", tuple(parts), 4096, span, **more)


def kinds(effects: Iterable[Any], kind: type[Any]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def generation(name: str = "r", prompt: int = 5, max_tokens: int = 4, application: str = "m", **more: object) -> Generation:
    fields: dict[str, Any] = {"stop_tokens": [], "sampling": SamplingParams(seed=7), **more}
    return Generation(id=name, application=application, prompt=list(range(1, prompt + 1)), max_tokens=max_tokens, **fields)


def stay(state: ControllerState, name: str) -> drop_events.DropParameters:
    """Return the order that a group stays a pipeline: it aborts a restore, or frees what one has loaded.

    It is refused if there is no such group.
    """
    group = state.overload.groups.get(name)
    hops = (Hop(name, 0, 1),) if group is None else group.hops
    return drop_events.DropParameters("" if group is None else ", ".join(group.applications), hops)


def next_token(tokens: list[int], seed: int) -> int:
    """Return the token that every fake worker computes after ``tokens``."""
    return (sum((i + 1) * t for i, t in enumerate(tokens)) * 31 + seed * 17 + len(tokens)) % 997


def reference(g: Generation) -> list[int]:
    """Return the whole answer."""
    tokens = list(g.prompt)
    while len(tokens) < len(g.prompt) + g.max_tokens:
        tokens.append(next_token(tokens, g.sampling.seed))
        if tokens[-1] in g.stop_tokens:
            break
    return tokens[len(g.prompt) :]


@dataclass
class FakeWorker:
    """One life of a worker. room: most components; None: any number. ending: components that running plans still name."""

    name: str
    incarnation: int = 1
    room: int | None = None
    ending: int = 0
    held: dict[bytes, set[str]] = field(default_factory=dict)  # component -> the applications that hold it
    borrowers: set[str] = field(default_factory=set)  # the holders that own nothing which others hold, too
    running: dict[str, tuple[Submission, list[int], int]] = field(default_factory=dict)  # submission, tokens, computed
    unacknowledged: dict[int, SweepReport] = field(default_factory=dict)
    serial: int = 0

    def refusal(self, load: LoadBlock) -> NoCapacity | None:
        """Return why there is no room for a block."""
        ids = _ids(load)
        if self.room is None or (lacking := len(self.held.keys() | ids) + self.ending - self.room) <= 0:
            return None
        return NoCapacity("no room", lacking * SIZE, len(ids) > self.room, self.owned())

    def hold(self, load: LoadBlock) -> None:
        for id in _ids(load):
            self.held.setdefault(id, set()).add(load.holder)
        if load.borrows:
            self.borrowers.add(load.holder)

    def unload(self, holder: str, ids: Iterable[bytes]) -> None:
        for id in ids:
            holders = self.held.get(id, set())
            assert holder in holders, f"{holder} gives up what it does not hold"
            holders.remove(holder)
            if not holders:
                del self.held[id]

    def of(self, holder: str) -> set[bytes]:
        return {id for id, holders in self.held.items() if holder in holders}

    def names(self) -> set[str]:
        return {name for holders in self.held.values() for name in holders}

    def owned(self) -> dict[str, int]:
        owners = [one - self.borrowers or one for one in self.held.values()]
        return {name: SIZE * sum(one == {name} for one in owners) for name in sorted(self.names())}

    def capacity(self, spare: int) -> events.KvCapacity:
        """Return the bytes left to KV, with ``spare`` beside the components that have room."""
        most = spare if self.room is None else spare + SIZE * self.room
        alone = {name: most - SIZE * len(self.of(name)) for name in sorted(self.names())}
        left = spare if self.room is None else most - SIZE * len(self.held)
        return events.KvCapacity(self.name, self.incarnation, left, alone, self.owned())

    def submit(self, submission: Submission) -> None:
        self.running[submission.request] = (submission, list(submission.tokens), 0)

    def cancel(self, requests: Iterable[str]) -> None:
        for request in requests:
            self.running.pop(request, None)

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

    def acknowledge(self, serial: int) -> None:
        self.unacknowledged = {s: report for s, report in self.unacknowledged.items() if s > serial}

    def replay(self, serial: int) -> list[SweepReport]:
        return [report for s, report in self.unacknowledged.items() if s >= serial]


def _ids(load: LoadBlock) -> set[bytes]:
    return {*load.ids, *filter(None, load.deltas)}


@dataclass
class Published:
    """``Publish``, with its content."""

    update: RoutesChanged
    first: tuple[str, ...]


class FakeCluster:
    """A controller's state machine, with workers and gateways that answer.

    room: components that each worker holds. Loads and questions are answered at once, unless ``manual``. The other effects
    that somebody answers are ``asked``, until ``reply``. ``options`` are the controller's.
    """

    def __init__(self, *workers: str, room: int | None = None, manual: bool = False, **options: Any) -> None:
        self.state = ControllerState(workers or ("w0",), stall_timeout=10.0, **options)
        self.workers: dict[str, FakeWorker] = {}  # the living ones
        self.rooms: dict[str, int | None] = {}  # worker -> its room, where it is another one
        self.now = 0.0
        self.spare = ROOM
        self.manual = manual
        self.incarnation = 0  # of the worker that began last
        self.log: list[Effect] = []
        self.asked: list[Effect] = []
        self.broken: dict[str, str] = {}  # application, worker, or application@worker -> why it cannot be loaded
        self.active: dict[str, int] = {}  # application -> its requests
        self.waits: dict[str, int] = {}  # application -> tokens of the longest that waits for it
        self.offline: set[str] = set()  # applications that batches alone ask for
        self.last: dict[str, float] = {}  # application -> when its last request ended
        self._room = room
        self._lives: dict[str, int] = {}  # worker -> its last incarnation

    # the controller --------------------------------------------------------------------------------------------------

    def __call__(self, event: Event, now: float | None = None) -> list[Any]:
        """Tell the controller of an event; return all effects, in order, with those of answers that come at once."""
        self.now = self.now if now is None else now
        done: list[Any] = []
        left: list[Any] = [event]  # the next one last
        while left:
            one = left.pop()
            if isinstance(one, Event):
                effects = self.handle(one)
                done += [self.shown(effect) for effect in effects]
                left += reversed(effects)
            else:
                left += reversed(self.take(one))
        return done

    def shown(self, effect: Effect) -> Any:
        """Return an effect as tests see it."""
        return Published(self.state.publication(), effect.first) if isinstance(effect, events.Publish) else effect

    def handle(self, event: Event) -> list[Effect]:
        """Hand an event to the controller's state, which is checked then."""
        match event:
            case events.WorkerUp(name, life):
                self.workers[name] = FakeWorker(name, life, self.rooms.get(name, self._room))
            case events.WorkerDown(name, life) if self.lives(name, life):
                del self.workers[name]
            case events.Loaded(name, life, load) if self.lives(name, life):
                self.workers[name].hold(load)
        effects = self.state.handle(event, self.now)
        self.state.check()
        self.log += effects
        return effects

    def take(self, effect: Effect) -> list[Event]:
        """Carry out an effect and return its answers, or keep it for later."""
        if isinstance(effect, events.Unload) or (isinstance(effect, AT_ONCE) and not self.manual):
            return self.answers(effect)
        if not isinstance(effect, NEVER):
            self.asked.append(effect)
        return []

    def reply(self, effect: Effect) -> list[Any]:
        """Carry out an effect that was asked; return the effects of its answers."""
        self.asked = [one for one in self.asked if one is not effect]
        return [one for answer in self.answers(effect) for one in self(answer)]

    def answers(self, effect: Effect) -> list[Event]:
        """Carry out an effect; return the events that answer it."""
        match effect:
            case events.Load(worker, life, load) if self.lives(worker, life):
                return [self._loaded(worker, life, load)]
            case events.Unload(worker, life, holder, ids) if self.lives(worker, life):
                self.workers[worker].unload(holder, ids)
            case events.AskCapacity(worker, life) if self.lives(worker, life):
                return [self.capacity(worker)]
            case events.AskUsage():
                return [events.UsageAnswer(self.uses())]
            case events.AwaitQuiet(name):
                return [events.Quiet(name)]
            case events.RecheckLater(seconds, worker, name):
                self.now += 0.0 if worker else seconds
                return [events.Recheck(worker, name)]
            case events.FinishRequests(name):
                return [events.Remove(name)]
            case events.VacateWorker(worker):
                return [events.Vacated(worker)]
            case events.StopWorker(worker):
                return [events.WorkerStopped(worker)]
            case SwitchRoutes(number):
                return [drop_events.RoutesLeft(number, 3)]
            case drop_events.AwaitSwitched(number):
                return [drop_events.RequestsSwitched(number, (SwitchFigures(number, 3, 2, 9, 900, 5, 0.5, 0.25),))]
        return []

    def _loaded(self, worker: str, life: int, load: LoadBlock) -> Event:
        for one in (load.holder, worker, f"{load.holder}@{worker}"):
            if one in self.broken:
                return events.LoadFailed(worker, life, load, self.broken[one])
        if (why := self.workers[worker].refusal(load)) is not None:
            return events.LoadRefused(worker, life, load, why)
        return events.Loaded(worker, life, load)

    def pending(self, *which: type[Any]) -> list[Any]:
        """Return the effects of some kinds that nobody has answered yet."""
        return [effect for effect in self.asked if isinstance(effect, which)]

    # workers ---------------------------------------------------------------------------------------------------------

    def lives(self, worker: str, life: int) -> bool:
        return worker in self.workers and self.workers[worker].incarnation == life

    @property
    def room(self) -> int:
        """The most components of each worker."""
        assert self._room is not None
        return self._room

    @room.setter
    def room(self, room: int) -> None:
        self._room, self.rooms = room, {}
        for worker in self.workers.values():
            worker.room = room

    def capacity(self, worker: str) -> events.KvCapacity:
        return self.workers[worker].capacity(self.spare)

    def serve(self, *applications: Application) -> Any:
        """Serve applications on all workers, which come up."""
        self(events.Serve(applications))
        for name in self.state.workers:
            self.up(name)
        return self

    def starting(self, worker: str, now: float | None = None) -> list[Any]:
        self.incarnation = max(self.state.workers[worker].last, self._lives.get(worker, 0)) + 1
        self._lives[worker] = self.incarnation
        return self(events.WorkerStarting(worker, self.incarnation, 70 + self.incarnation), now)

    def up(self, worker: str, now: float | None = None) -> list[Any]:
        self.starting(worker, now)
        return self(events.WorkerUp(worker, self.incarnation), now)

    def down(self, worker: str, now: float | None = None, cause: str = "killed") -> list[Any]:
        return self(events.WorkerDown(worker, self.state.workers[worker].last, cause), now)

    # requests --------------------------------------------------------------------------------------------------------

    def uses(self) -> Mapping[str, Use]:
        idle = {name: Use(0, self.now - at) for name, at in self.last.items()}
        active = {n: Use(c, 0.0, self.waits.get(n, 0), n in self.offline) for n, c in self.active.items() if c}
        return {**idle, **active}

    def want(self, name: str, tokens: int = 9) -> None:
        self.active[name] = self.active.get(name, 0) + 1
        self(events.ApplicationsWanted({name: tokens}))

    def end(self, name: str) -> None:
        self.active[name] -= 1
        self.last[name] = self.now

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self(events.Recheck())

    # drops of parameters ---------------------------------------------------------------------------------------------

    def order(self, order: drop_events.MemoryOrder, now: float | None = None) -> list[Any]:
        assert refusal(self.state, order) == ""
        return self(order, now)

    def number(self) -> int:
        """Return the number of the last order to gateways of the only group."""
        (group,) = self.state.overload.groups.values()
        return group.order

    def stage(self) -> str:
        return " ".join(group.stage for group in self.state.overload.groups.values())

    def left(self, now: float | None = None) -> list[Any]:
        return self(drop_events.RoutesLeft(self.number(), 3), now)

    def switched(self, now: float | None = None) -> list[Any]:
        (answer,) = self.answers(drop_events.AwaitSwitched(self.number()))
        return self(answer, now)

    # the state -------------------------------------------------------------------------------------------------------

    def routes(self) -> list[str]:
        return sorted(self.state.routes)

    def open(self) -> list[str]:
        """Return the routes that gateways may send requests to, without their numbers."""
        return sorted(route.id.partition("#")[0] for route in self.state.table.news().routes)

    def published(self) -> list[str]:
        """Return the applications that gateways can start requests of, once for each route."""
        return sorted(route.application for route in self.state.table.news().routes)

    def failed(self) -> list[tuple[str, str, bool]]:
        """Return the failures of applications that fit nowhere, as published to gateways."""
        return [(one.application, one.why, one.final) for one in self.state.publication().failed]

    def states(self) -> dict[str, str]:
        return {name: one["state"] for name, one in cluster_view(self.state, {}, {}, [], [])["applications"].items()}

    @property
    def awaited(self) -> list[str]:
        """The applications that are to become quiet."""
        return [effect.application for effect in self.pending(events.AwaitQuiet)]


AT_ONCE = (events.Load, events.AskCapacity, events.AskUsage)
NEVER = (events.Publish, events.Added, events.Fatal, events.ResumeWorker, drop_events.OverloadNote)  # answered


class ServingCluster(FakeCluster):
    """A fake cluster behind a gateway's state machine, and a network that loses reports and doubles them.

    served: applications; none: one whose chain is spread over ``span`` workers. room: components that each worker holds.
    poison: requests that kill whoever decodes them.
    """

    def __init__(
        self,
        seed: int,
        book: RequestBook,
        *workers: str,
        span: int = 1,
        drop: float = 0.0,
        double: float = 0.0,
        served: tuple[Application, ...] = (),
        room: int | None = None,
    ) -> None:
        super().__init__(*workers, room=room)
        self.random = Random(seed)
        self.book = book
        self.drop, self.double = drop, double
        self.in_flight: list[SweepReport] = []  # in order per worker
        self.answered: dict[str, list[int]] = {}
        self.finish: dict[str, str] = {}
        self.failures: dict[str, messages.Fail] = {}
        self.poison: set[str] = set()
        self(events.Serve(served or (application("m", "ABCD", span),)))
        for worker in self.state.workers:
            self.begin(worker)

    def take(self, effect: Effect) -> list[Event]:
        if isinstance(effect, events.Publish):
            self.feed(self.state.table.news())
        return super().take(effect)

    def feed(self, event: Any) -> None:
        """Tell the gateway of an event, and carry out its effects."""
        for effect in self.book.handle(event, self.now):
            self.perform(effect)
        self.book.check()

    def perform(self, effect: object) -> None:
        match effect:
            case messages.Submit(worker, submission) if worker in self.workers:
                self.workers[worker].submit(submission)
            case messages.CancelAt(worker, requests):
                self.workers[worker].cancel(requests)
            case messages.Acknowledge(worker, serial):
                self.workers[worker].acknowledge(serial)
            case messages.Replay(worker, serial):
                for report in self.workers[worker].replay(serial):
                    self.send(report)
            case messages.Deliver(news):
                assert news.request not in self.finish, "news after the end"
                assert isinstance(news, TokensEmitted)
                self.answered.setdefault(news.request, []).extend(news.tokens)
                if news.finish:
                    self.finish[news.request] = news.finish
            case messages.Fail():
                self.failures[effect.request] = effect
            case messages.Closed(request):
                self.finish[request] = "closed"

    def send(self, report: SweepReport) -> None:
        if self.random.random() >= self.drop:
            self.in_flight.append(report)
        if self.random.random() < self.double:
            self.in_flight.append(report)

    def begin(self, name: str) -> None:
        """Start a worker, unless it lives."""
        if name not in self.workers:
            self.starting(name)
            self.feed(messages.WorkerJoined(name, self.incarnation))
            self(events.WorkerUp(name, self.incarnation))

    def kill(self, name: str) -> None:
        """End a worker's life; reports of it may still arrive, before or after the news."""
        if name not in self.workers:
            return
        for report in [r for r in self.in_flight if r.worker == name and self.random.random() < 0.5]:
            self.in_flight.remove(report)
        worker = self.workers.pop(name)
        self.feed(messages.WorkerEnded(name, worker.incarnation, "killed"))
        for other in self.workers.values():  # homes drop what had a hop on the dead worker
            routes = {request: s.route.partition("@")[2].partition("#")[0] for request, (s, _, _) in other.running.items()}
            other.cancel([request for request, workers in routes.items() if name in workers.split("+")])
        self(events.WorkerDown(name, worker.incarnation, "killed"))

    def heartbeats(self) -> None:
        for worker in list(self.workers.values()):
            self.feed(messages.HeartbeatReceived(worker.name, worker.incarnation, worker.serial))

    def step(self) -> None:
        """Let every worker sweep once; then some of what is in flight arrives."""
        self.now += 0.01
        for worker in list(self.workers.values()):
            report = worker.sweep()
            if report is not None and any(isinstance(n, TokensEmitted) and n.request in self.poison for n in report.news):
                self.kill(worker.name)
            elif report is not None:
                self.send(report)
        for _ in range(self.random.randrange(len(self.in_flight) + 1)):
            self.feed(self.in_flight.pop(0))

    def settle(self, steps: int = 2000) -> None:
        """Run without further faults until every request has ended."""
        for i in range(steps):
            if not self.book.parts.active:
                return
            self.step()
            if i % 5 == 0:
                self.heartbeats()
        raise AssertionError(f"still active: {sorted(self.book.parts.active)}")
