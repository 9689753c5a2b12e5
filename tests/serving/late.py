"""Late answers in a seed: what was said of an attempt, a hold, a lease or a life that is over is heard once more.

Any of it may come so late: an answer waits in a mailbox or on a link while a request moves, or a worker begins a new life.
After an event of the seed a random one of these is put to the same state machine. It must change nothing, and cause nothing
but what gives back memory that the sender may still hold; else the seed fails with ``late``. Owns what is planted and how
often; since it changes nothing, the seed goes on as it would have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from random import Random
from typing import Any, TypeVar

from blockwright.actors.worker.event_recorder import Machine
from blockwright.actors.worker.messages import GatewayNews
from blockwright.policies.plan.sweep_plan import SweepPlan, SweepResult
from blockwright.policies.requests.book import messages as m
from blockwright.policies.requests.book.book import RequestBook
from blockwright.policies.requests.book.delivery import settle_choices
from blockwright.policies.requests.book.dispatch_messages import Chosen
from blockwright.policies.requests.book.record import RequestRecord
from blockwright.policies.requests.book.reports import heed
from blockwright.policies.requests.book.settling import settle_due
from blockwright.policies.requests.book.sweep_report import SweepReport
from blockwright.policies.requests.book.switching import settle_moves
from blockwright.policies.sweep.columns import Status
from blockwright.policies.sweep.events import (
    Effects,
    Event,
    FlightDone,
    GivenBack,
    GrowthGranted,
    GrowthWanted,
    LeaseGranted,
    LeaseReturned,
    LeaseRevoked,
    PeerMessage,
    Preempted,
    Progressed,
    PromptScored,
    TokensEmitted,
)
from blockwright.policies.sweep.offline_capacity import OfflineCapacity
from blockwright.policies.sweep.page_events import (
    Export,
    Exported,
    HoldPages,
    PagesTaken,
    PagesUnsent,
    PageTarget,
    Unhold,
)
from blockwright.policies.sweep.state import SweepState

OFTEN = 0.2  # of the events of a gateway or worker that a late answer follows
MOST = 2  # of a kind in a seed: each costs a comparison of all that a gateway or worker knows
KEPT = 24  # messages of leases that a worker remembers, to hear them again
LOW = (1 << 32) - 1  # what numbers a lease within a life
GONE = 1 << 20  # a number that nothing has
T = TypeVar("T")
# What many seeds of a kind must have planted.
OF_ATTEMPTS = {
    "TokensEmitted", "Progressed", "PromptScored", "GivenBack", "GivenBack, waiting", "Preempted", "unsent",
    "unsent, waiting", "hold, where a later attempt is", "exported, asked again", "pages taken", "pages unsent",
}  # fmt: skip
OF_LIVES = {"report", "joined", "ended", "heard", "revoked, of a life before"}
OF_LEASES = {
    "granted", "granted, and goes", "revoked", "returned", "growth granted", "growth wanted", "growth wanted, and revoked",
    "flight done",
}  # fmt: skip
OF_HOLDS = {"hold answered, leaving", "hold, where a later one is", "unhold", "export"}
PLAIN = {type(None), bool, int, float, str, bytes}
AtGateway = m.Event | tuple[GatewayNews, SweepReport]
Failed = Callable[[str], None]


class LateAnswer(AssertionError):
    """A late answer that has changed something."""


def picture(value: Any, seen: frozenset[int] = frozenset()) -> Any:
    """Return all that an object consists of, comparable with ``==``; an object inside itself is named by its type."""
    kind = type(value)
    if kind in PLAIN or isinstance(value, Enum | BaseException) or callable(value):
        return value
    if (parameters := getattr(kind, "__dataclass_params__", None)) is not None and parameters.frozen:
        return value  # nothing changes it
    if kind is list and {*map(type, value)} <= PLAIN:
        return value.copy()
    if id(value) in seen:
        return type(value).__name__
    seen |= {id(value)}
    if isinstance(value, dict):
        return [(picture(key, seen), picture(one, seen)) for key, one in value.items()]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple) or hasattr(value, "popleft"):
        return [picture(one, seen) for one in value]
    names = [field.name for field in fields(value)] if is_dataclass(value) else [*getattr(value, "__dict__", ())]
    for parent in kind.__mro__:
        names += [*getattr(parent, "__slots__", ()), *getattr(parent, "__mypyc_attrs__", ())]
    return [(name, picture(getattr(value, name), seen)) for name in dict.fromkeys(names) if hasattr(value, name)]


def rarest(late: list[tuple[str, T]], random: Random, planted: Counter[str]) -> tuple[str, T] | None:
    """Return one of those that were planted least often so far; None where there is none, or all were often enough."""
    least = min((planted[name] for name, _ in late), default=MOST)
    return random.choice([one for one in late if planted[one[0]] == least]) if least < MOST else None


class LateGateway(RequestBook):
    """A gateway's state machine that hears late answers between its events."""

    def doubt(self, random: Random, failed: Failed, planted: Counter[str]) -> None:
        """Plant from now on."""
        self._random = random
        self._failed = failed
        self._planted = planted

    def handle(self, event: m.Event, now: float) -> list[m.Effect]:
        """See ``RequestBook``."""
        effects = super().handle(event, now)
        if not isinstance(event, m.GatewayTick | m.HeartbeatReceived | SweepReport):
            self._perhaps_plant(now)
        return effects

    def accept_report(self, report: SweepReport, now: float) -> list[m.Effect]:
        """See ``RequestBook``."""
        effects = super().accept_report(report, now)
        self._perhaps_plant(now)
        return effects

    def _perhaps_plant(self, now: float) -> None:
        if self._random.random() < OFTEN:
            late = rarest([*self._of_requests(), *self._of_lives()], self._random, self._planted)
            if late is not None:
                self._plant(*late, now)

    def _plant(self, name: str, late: AtGateway, now: float) -> None:
        before = picture(self)
        if isinstance(late, tuple):
            news, report = late
            heed(self.parts, news, report.worker, report.seconds, now)
            settle_moves(self.parts, now)
            settle_due(self.parts, now)
            settle_choices(self.parts, now)
            caused = self.parts.take_effects()
        elif isinstance(late, SweepReport):
            caused = super().accept_report(late, now)
        else:
            caused = super().handle(late, now)
        after = picture(self)
        if caused or after != before:
            self._failed(f"{name}: {late} has caused {caused}, and {_difference(before, after)}")
        self._planted[name] += 1

    def _of_requests(self) -> Iterator[tuple[str, AtGateway]]:
        """Yield answers about earlier attempts of requests that have not ended."""
        parts = self.parts
        gateway = parts.address
        for record in parts.active.values():
            id = record.id
            now = record.placement.attempt
            under = parts.claims.open.get(record.id)
            question = parts.asking.open.get(id)
            asked = question.submission.attempt if question is not None else 0
            yield (
                f"chosen{', asked again' if question is not None else ''}",
                Chosen(request=id, attempt=asked - 1, reason="late"),
            )
            leaves = ", leaving" if id in parts.pauses.leaving else ""
            for expects in (False, True):
                if parts.pauses.leaving.get(id) != now - 1:  # else it is the answer that is awaited
                    yield f"hold answered{leaves}", m.HoldAnswered(id, now - 1, expects, room=expects)
            if under is not None and not under.pauses and not leaves:
                yield "hold answered, gone on", m.HoldAnswered(id, now, expects=True, room=True)
            if record.placement.route is None:
                continue
            home = record.placement.route.home
            asked_for = under.waiting.get(home) if under is not None else None
            name, number = ("exported", GONE) if asked_for is None else ("exported, asked again", asked_for - 1)
            yield name, m.ExportUnsent(home, Exported(gateway, id, number, 3, 5, 1, "late"))
            over = now if not record.placement.workers else now - 1
            yield f"unsent{'' if record.placement.workers else ', waiting'}", m.Unsent(id, over, "late")
            if over >= 1 and home in parts.table.alive:
                report = SweepReport(home, 1, GONE, 1, [])
                for news in _news(gateway, record, over):
                    waits = "" if record.placement.workers else ", waiting"
                    yield f"{type(news).__name__}{waits}", (news, report)

    def _of_lives(self) -> Iterator[tuple[str, AtGateway]]:
        """Yield what lives of workers that have ended would say."""
        for worker in sorted(self.parts.table.alive):
            current = self.parts.workers.incarnation(worker)
            assert current is not None, "a worker that lives has an incarnation"
            if current > 1 and self.parts.workers.has_ended(worker, current - 1):
                news: list[GatewayNews] = [
                    GivenBack(self.parts.address, id, r.placement.attempt, "late") for id, r in self.parts.active.items()
                ]
                yield "report", SweepReport(worker, current - 1, 1, 1, news)
                yield "joined", m.WorkerJoined(worker, current - 1)
                yield "ended", m.WorkerEnded(worker, current - 1, "late")
                yield "heard", m.HeartbeatReceived(worker, current - 1, GONE, [OfflineCapacity(("a",), 3, 50, 100)])


def _news(gateway: str, record: RequestRecord, attempt: int) -> Iterator[GatewayNews]:
    """Yield what a worker says of an attempt."""
    position = len(record.progress.tokens)
    yield TokensEmitted(gateway, record.id, attempt, position, [1], [], "")
    yield TokensEmitted(gateway, record.id, attempt, position + 1, [1], [], "")
    yield TokensEmitted(gateway, record.id, attempt, position, [1], [], "stop")
    yield Progressed(gateway, record.id, attempt, position + 3, 2)
    yield PromptScored(gateway, record.id, attempt, 1, [])
    yield GivenBack(gateway, record.id, attempt, "route")
    yield GivenBack(gateway, record.id, attempt, "host-lost")
    yield Preempted(gateway, record.id, attempt)


def _difference(before: Any, after: Any) -> str:
    """Return the first place where two pictures differ."""
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            if one != other:
                inside = _difference(one, other)
                return f"{one[0]}: {inside}" if isinstance(one, tuple) and isinstance(one[0], str) else inside
    if isinstance(before, tuple) and isinstance(after, tuple):
        return _difference(before[-1], after[-1])
    return "changed nothing" if before == after else f"{before} has become {after}"


class LateMachine:
    """A ``Machine`` before a worker's state that lets it hear late answers between its events."""

    def __init__(self, state: SweepState, random: Random, failed: Failed, planted: Counter[str]) -> None:
        self._state = state
        self._random = random
        self._failed = failed
        self._planted = planted
        self._heard: list[Event] = []  # the last messages of leases

    def apply(self, event: Event, now: float) -> None:
        """See ``Machine``."""
        self._state.apply(event, now)
        if isinstance(event, LeaseGranted | LeaseReturned | LeaseRevoked | GrowthGranted | GrowthWanted | FlightDone):
            self._heard = [*self._heard[1 - KEPT :], event]
        if self._random.random() < OFTEN:
            every = [*self._of_requests(), *self._of_leases(), *self._of_pages()]
            late = rarest(every, self._random, self._planted)
            if late is not None:
                self._plant(*late, now)

    def plan(self, now: float) -> SweepPlan | None:
        """See ``Machine``."""
        return self._state.plan(now)

    def commit(self, plan: SweepPlan, result: SweepResult, now: float) -> None:
        """See ``Machine``."""
        self._state.commit(plan, result, now)

    def _plant(self, name: str, late: Event, now: float) -> None:
        state, outgoing = self._state, self._state.parts.outgoing
        effects, before = state.take_effects(), state.snapshot()
        state.apply(late, now)
        caused = _beyond_answers(late, state.take_effects())
        outgoing.emit_all(effects.news)
        for worker, message in _messages(effects):
            outgoing.send(worker, message)
        for order in effects.orders:
            outgoing.order(order)
        after = state.snapshot()
        if caused or after != before:
            changed = {part: (before[part], after[part]) for part in before if before[part] != after[part]}
            self._failed(f"{name}: {late} has caused {caused}, and changed {changed}")
        self._planted[name] += 1

    def _of_requests(self) -> Iterator[tuple[str, Event]]:
        """Yield what gateways ask about earlier attempts than those that are here, or are to come."""
        parts, rows = self._state.parts, self._state.parts.rows
        for s in rows.live():
            of = rows.submission[s]
            late = HoldPages(
                of.gateway, of.request, of.attempt - 1, of.route, of.tenant, of.priority, of.arrival, of.page_hashes, 5.0
            )
            yield "hold, where a later attempt is", late
            yield "hold that expects", replace(late, expects=True)
        for request, hold in parts.page_pins.all():
            route = next((route.id for route in (local.route for local in parts.routes.planned())), "")
            late = HoldPages(hold.gateway, request, hold.attempt - 1, route, hold.account, 0, 0.0, [], 5.0)
            yield "hold, where a later one is", late
            yield "unhold", Unhold(request, hold.attempt - 1)
            everything = [PageTarget("late", 0, GONE)]
            yield (
                "export",
                Export(hold.gateway, request, hold.attempt - 1, GONE, route, hold.account, [], 0, everything),
            )

    def _of_leases(self) -> Iterator[tuple[str, Event]]:
        """Yield what was said of leases that are over, or go."""
        parts = self._state.parts
        rows = self._state.parts.rows
        leases = self._state.parts.leases
        here = parts.config.worker
        for s in [s for s in leases._leases if not rows.is_guest(s)]:
            yield "revoked, of a life before", LeaseRevoked("late", leases.number(s) & LOW)
        for event in self._heard:
            match event:
                case LeaseGranted(_, lease):
                    s = leases.find(here, lease)
                    if s is None or (rows.status[s] != Status.LEASING and not event.refused):
                        yield f"granted{', and goes' if s is not None else ''}", event
                case LeaseRevoked(_, lease):
                    s = leases.find(here, lease)
                    if s is None or rows.status[s] == Status.LEAVING:
                        yield f"revoked{', and goes' if s is not None else ''}", event
                case LeaseReturned(home, lease) if leases.find(home, lease) is None:
                    yield "returned", event
                case GrowthGranted(_, numbers) if all(leases.find(here, number) is None for number in numbers):
                    yield "growth granted", event
                case GrowthWanted(home, numbers):
                    guests = [leases.find(home, number) for number, _ in numbers]
                    if all(s is None or s not in leases.lent() for s in guests):
                        yield f"growth wanted{', and revoked' if any(s is not None for s in guests) else ''}", event
                case FlightDone(_, done):
                    homes = [leases.find(here, row.lease) for row in done]
                    if all(s is None or not leases.flying(s) for s in homes):
                        yield "flight done", event

    def _of_pages(self) -> Iterator[tuple[str, Event]]:
        """Yield answers to batches of pages that nothing waits for."""
        for number in (1, 2, 3):  # of a life before, which began to count where this one would have without its base
            yield "pages taken", PagesTaken("late", number, 3, 1)
            yield "pages unsent", PagesUnsent(number)


def _messages(effects: Effects) -> list[tuple[str, PeerMessage]]:
    return [(worker, message) for worker, messages in effects.messages.items() for message in messages]


def _beyond_answers(late: Event, caused: Effects) -> list[object]:
    """Return the effects of a late answer that do more than return what its sender holds, or say that there is nothing."""
    returned = isinstance(late, LeaseGranted)
    messages = [one for one in _messages(caused) if not (returned and isinstance(one[1], LeaseReturned))]
    news = [one for one in caused.news if not (isinstance(late, Export) and isinstance(one, Exported))]
    return [*caused.orders, *messages, *news]


def before_machine(worker: Any, random: Random, failed: Failed, planted: Counter[str]) -> None:
    """Put a ``LateMachine`` before the state of a worker that has not started."""
    machine: Machine = LateMachine(worker.state, random, failed, planted)
    worker._pass_by(machine)
