"""One seed: requests of several kinds through several gateways, faults, and what must hold of every request.

Owns the record of what clients were given. A violated property raises ``Violation``, whose text starts with its name:

    device   a position that attention reads is not what its sequence wrote there, or a plan does not fit the device
    tokens   a client got a token that is wrong, repeated, or out of order; or an end too early or too late
    ended    a request has neither ended with its tokens nor with a typed error within ``PATIENCE``
    late     an answer of an attempt, a hold, a lease or a life that is over has changed something (``late.py``)
    leak     when nothing is asked any more, a gateway or a worker still holds something of what is over
    serves   after all faults, a planned route does not come into force within ``WHOLE``, or an application is not served
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from blockwright.actors.controller.actor import Controller
from blockwright.actors.gateway.actor import Gateway
from blockwright.actors.gateway.port import Generation, StreamNews
from blockwright.actors.predictor.messages import NODE
from blockwright.actors.settings.dispatching import OUTSTANDING
from blockwright.actors.worker.actor import Worker
from blockwright.policies.control.events import Application
from blockwright.policies.control.residency import serving
from blockwright.policies.drafts.options import DraftOptions
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.requests.refusal import RequestRefused
from blockwright.runtime import RuntimeFault
from blockwright.runtime.testing import Fault, FaultPlan, Kill, Pause
from blockwright.tests.serving.device import CHUNK, VOCABULARY, answer
from blockwright.tests.serving.house import HEAD, House, Plan, chain, tier
from blockwright.tests.serving.late import LateAnswer
from blockwright.tests.serving.strikes import ACTIONS, ASKED, KINDS, Strike, Strikes

REQUESTS = 10
WITHIN = 1.0  # virtual seconds in which requests come and random faults begin
READY = 20.0  # seconds until applications are first served
PATIENCE = 200.0  # virtual seconds in which a request ends, whatever happens
QUIET = 60.0  # until nothing is left of what is over
LONGEST = 48  # tokens of a sequence
WHOLE = 15.0  # until all that was killed is back and loaded, whatever word of it was lost
BRIEF = 4  # tokens of an answer that shows that an application is served
SETTLED = 1.0  # until all are notified of what the last fault has broken
STRIKES = 3  # of each seed, on kinds of messages
RENEWED = 8  # one seed of so many puts a new version in the place of an application
RENEW_AFTER, GRACE = 0.3, 20.0  # seconds: when, and how long requests of the old version may take
STALLS = 0.1  # of the seeds, in which a device hangs
FAULTS = 1  # besides, of any kind, on everything between two nodes
# And what they ask: there must be a second one.
AMONG_GATEWAYS = {"up", "down", "holds", "admit", "end", "answer to admit", "choose", "answer to choose"}
RARE = {"replay", "unload", "answer to unload", "unfit", "answer to unfit", "up", "down", "cancel", "LeaseRevoked"}
CROWDED = {"LeaseRevoked", "GrowthWanted", "GrowthGranted"}  # kinds that come where long sequences cross full workers
TIERED = 0.25  # of the seeds have a lower tier, which drafts
LOWER = 0.4  # of the requests to the family go to that tier, which keeps hidden states for the top
DRAFTED = 0.5  # of the requests ask for drafts
RIGHT = (1.0, 0.9, 0.6, 0.0)  # chances that a token of a prediction is right
GREEDY = SamplingParams(temperature=0.0)


class Violation(AssertionError):
    def __init__(self, what: str, text: str) -> None:
        super().__init__(f"{what}: {text}")
        self.what = what


@dataclass(slots=True)
class Request:
    """What a client asks, must get, and got."""

    id: str
    gateway: str  # node
    at: float  # seconds after the first
    application: str
    prompt: list[int]
    expected: list[int]
    stop: list[int]
    most: int
    leaves: int  # cancelled after so many tokens; 0: never
    salt: bytes = b""
    priority: int = 0
    drafts: DraftOptions | None = None
    got: list[int] = field(default_factory=list)
    life: Any = None  # identity of the gateway's node once sent
    since: float = 0.0
    outcome: str = ""  # "done" | "cancelled" | a refusal | "connection lost"


class Game:
    """``play`` runs it. ``strikes``: faults at kinds of messages, or those that the seed draws; ``dispatch``: a setting;
    ``profile``: what sweeps cost; ``ends``: how often a worker's life is over, and the next has its memory."""

    def __init__(
        self,
        seed: int,
        *,
        faults: bool = True,
        strikes: list[Strike] | None = None,
        dispatch: str = OUTSTANDING,
        profile: str = "",
        ends: int = 0,
    ) -> None:
        self.seed = seed
        self.ends = ends
        self.random = Random(f"{seed}/game")
        self.dispatch = dispatch
        self.profile = profile
        wanted = self._draw() if strikes is None and faults else strikes or []
        self.kinds = {kind for kind, _, _ in wanted}
        self.house = House(self._plan(), seed, self._broken, self._clients)
        self.sim = self.house.sim
        self.strikes = Strikes(wanted, Random(f"{seed}/strikes"))
        self.sim.strike(self.strikes.choose)
        self.faults = self._random_faults() if faults else []
        self.requests = [self._request(number) for number in range(REQUESTS)]
        self.violation: BaseException | None = None
        self.work: list[asyncio.Task[None]] = []
        self.opened = 0.0  # when requests begin
        self.outcomes: Counter[str] = Counter()
        self.counters: Counter[str] = Counter()  # of all workers' last lives, and routes of three and more hops
        self.attempts: Counter[int] = Counter()  # how many requests needed so many

    def play(self) -> Game:
        self.sim.run(self._scenario)
        return self

    @property
    def renews(self) -> bool:
        """Return whether a new version is put in the place of an application."""
        return self.seed % RENEWED == 5

    # what the seed draws

    def _plan(self) -> Plan:
        random = self.random
        workers = tuple(f"w{i}" for i in range(random.choice((2, 2, 3, 4))))
        gateways = ("g1",) if random.random() < 0.5 or self.kinds & AMONG_GATEWAYS else ()
        span = 3 if len(workers) == 3 else random.choice((2, len(workers)))
        applications = (
            Application("a", "", chain("a", 2, 99), LONGEST, 1),
            Application("b", "", chain("b", 2, 3), LONGEST, 1),
            Application("c", "", chain("c", 2, random.choice((0, 4))), LONGEST, span),
        )
        if has_tier(self.seed):
            applications = (*applications, tier(applications[0], 1))
        parameters = len({c.id for a in applications for c in a.components})
        room = random.choice((13, 13, 15, 24, 100))  # chunks for KV; the longest sequence takes 12
        rows = random.choice((3, 6, 16))
        if self.kinds & CROWDED:
            room, rows = 13, 16
        return Plan(workers, gateways, applications, (parameters + room) * CHUNK, rows,
                    random.choice((5, 16, 64)), dispatch=self.dispatch, profile=self.profile)  # fmt: skip

    def _draw(self) -> list[Strike]:
        """One after the other each action at each kind, over the seeds; the rest by chance."""
        random = Random(f"{self.seed}/draw")
        cells = [(kind, action) for kind in KINDS for action in ACTIONS]
        chosen = [cells[self.seed % len(cells)], *random.choices(cells, k=STRIKES - 1)]
        drawn = [
            (kind, action, random.choice((1, 1, 2) if kind in RARE else (1, 1, 2, 3, 5, 9, 20))) for kind, action in chosen
        ]
        if self.dispatch != OUTSTANDING:
            drawn += [(random.choice(ASKED), random.choice(ACTIONS), random.randint(1, 9)) for _ in range(STRIKES)]
        if any(kind == "replay" for kind, _ in chosen):
            drawn.append(("tokens", "drop", random.randint(1, 4)))
        return drawn

    def _random_faults(self) -> list[Fault]:
        random, plan = Random(f"{self.seed}/faults"), self.house.plan
        nodes = (HEAD, *plan.workers, *plan.gateways, *[NODE] * (self.dispatch != OUTSTANDING))
        faults = list(FaultPlan.random(random, nodes, count=FAULTS, within=WITHIN, links=random.randint(0, 1)).faults)
        worker = random.choice(plan.workers)
        if self.kinds & {"down", "up"}:
            faults.append(Kill(random.uniform(0.1, 1.0), worker))
        if self.kinds & {"unfit", "answer to unfit"}:
            faults.append(Kill(random.uniform(0.1, 1.0), worker))
            self.house.unfit.add((worker, 2))
        return faults

    def _request(self, number: int, gateway: str = "", application: str = "") -> Request:
        random, plan = self.random, self.house.plan
        chance = Random(f"{self.seed}/drafts {number}")  # the other draws are those without drafts and tiers
        if not application:
            usual = "aaaabcc" if has_tier(self.seed) else "aabbccc"
            application = random.choice(usual if not self.kinds & CROWDED else "accccc")
            if application == "a" and has_tier(self.seed) and chance.random() < LOWER:
                application = "a:1"
        stem = [random.randrange(VOCABULARY) for _ in range(3)] if random.random() < 0.2 else [7, 1, 4] * 5
        prompt = stem[: random.randint(1, 15)] + [random.randrange(4) for _ in range(random.randint(0, 6))]
        most = random.randint(1, min(LONGEST - len(prompt), random.choice((6, 24, 40))))
        if self.kinds & CROWDED:
            most = LONGEST - len(prompt)
        expected = answer(plan.components(application), prompt, most, [])
        stop = [random.choice(expected)] if random.random() < 0.3 else []
        expected = answer(plan.components(application), prompt, most, stop)
        at = random.choice((0.0, 0.0, 0.0, 0.4)) + random.uniform(0.0, 0.01)  # in bursts, so that memory is scarce
        leaving = 0.5 if "cancel" in self.kinds else 0.15
        leaves = random.randint(1, most) if random.random() < leaving else 0
        gateway = gateway or random.choice((HEAD, *plan.gateways))
        salt, priority = random.choice((b"", b"", b"", b"salt")), random.choice((0, 0, 1))
        drafts = drafts_of(expected, chance)
        if application == "a" and len(plan.applications) > 3 and chance.random() < 0.7:
            drafts = DraftOptions(chance.random() < 0.2, chance.choice((0, 2, 4)), tiers=["a:1"])
        return Request(f"r{number}", gateway, at, application, prompt, expected, stop, most, leaves, salt, priority, drafts)

    # clients, in the processes of gateways

    def _clients(self, gateway: Gateway) -> list[Coroutine[Any, Any, None]]:
        mine = [r for r in self.requests if r.gateway == gateway.node.name and r.life is None]
        return [self._client(gateway, request) for request in mine]

    async def _client(self, gateway: Gateway, request: Request) -> None:
        while not self.opened:  # noqa: ASYNC110 - the server comes up
            await asyncio.sleep(0.02)
        await asyncio.sleep(max(0.0, self.opened + request.at - self.sim.time))
        if request.life is not None:
            return
        request.life, request.since = gateway.node.id, self.sim.time
        try:
            await self._converse(gateway, request)
        except RequestRefused as refused:
            request.outcome = refused.why.value
        except Exception as error:
            self._broken(error)

    def _generation(self, request: Request) -> Generation:
        return Generation(
            id=request.id, application=request.application, prompt=request.prompt, max_tokens=request.most,
            stop_tokens=request.stop, sampling=GREEDY, salt=request.salt, priority=request.priority, tenant="tenant",
            drafts=request.drafts,
        )  # fmt: skip

    async def _converse(self, gateway: Gateway, request: Request) -> None:
        assert not (verdict := await gateway.charge("tenant", len(request.prompt) + request.most)).refused, verdict
        try:
            stream = gateway.generate(self._generation(request))
            async for news in stream:
                self._take(gateway, request, news)
                if news.finish:
                    request.outcome = "done"
                elif request.leaves and len(request.got) >= request.leaves:
                    stream.cancel()
                    request.outcome = "cancelled"
                    return
        finally:
            gateway.settle("tenant", len(request.prompt) + request.most, len(request.prompt) + len(request.got))
        if not request.outcome:
            raise Violation("tokens", f"{request} ended without an end")

    def _take(self, gateway: Gateway, request: Request, news: StreamNews) -> None:
        """Add what came to the request. Raises Violation if it is not what its model gives."""
        request.got += news.tokens
        if request.got != request.expected[: len(request.got)]:
            raise Violation("tokens", f"{request} got a wrong token")
        if bool(news.finish) != (request.got == request.expected):
            raise Violation("tokens", f"{request} got {news}")

    def _broken(self, error: BaseException) -> None:
        """Keep what a device or a client found wrong, or a late answer changed: the scenario raises it."""
        if self.violation is None:
            what = "late" if isinstance(error, LateAnswer) else "device"
            self.violation = error if isinstance(error, Violation) else Violation(what, repr(error))
            self.violation.__cause__ = None if self.violation is error else error

    # the scenario, on the head

    async def _scenario(self, sim: Any) -> None:
        house = self.house
        await house.open()
        await self._until(self._served, READY)
        self.opened = start = sim.time
        for fault in self.faults:
            sim.loop.call_at(start + fault.at, self._inject, fault)
        if self.kinds & {"unload", "answer to unload"}:
            self.work.append(asyncio.create_task(self._withdraw("b", self.random.uniform(0.1, 0.6))))
        if self.renews:
            self.work.append(asyncio.create_task(self._renew(house.plan.applications[0])))
        if self.random.random() < STALLS and self.faults:
            sim.loop.call_later(self.random.uniform(0.0, WITHIN), self._stall, self.random.choice(house.plan.workers))
        random = Random(f"{self.seed}/ends")
        for _ in range(self.ends):
            sim.loop.call_later(random.uniform(0.0, WITHIN), self._end, random.choice(house.plan.workers))
        await self._until(lambda: sim.time > start + WITHIN and not self._open(), PATIENCE)
        if late := self._open():
            raise Violation(
                "ended", f"{len(late)} requests have not ended after {PATIENCE} s: {late[0]}\n{self._story(late[0])}"
            )
        await sim.until_calm()
        await self._until(lambda: not self._leaks(), QUIET)
        if leak := self._leaks():
            raise Violation("leak", leak)
        self._count()
        await self._serves()

    def _count(self) -> None:
        self.outcomes.update(request.outcome for request in self.requests)
        for worker in self.house.workers.values():
            self.counters.update(worker.state.counters)
        for gateway in self.house.gateways.values():
            views = [view for request in self.requests if (view := gateway.describe(request.id)) is not None]
            self.attempts.update(view.attempt for view in views)
            self.counters["hops of 3"] += sum(len(view.route) >= 3 for view in views)
            figures = gateway.book.parts.asking.figures
            self.counters.update(figures.fallbacks)
            self.counters["fell back"] += sum(figures.fallbacks.values())
            self.counters["asked"] += sum(figures.asked.counts)
            self.counters["forecasts"] += sum(figures.latency_error.counts)

    async def _withdraw(self, application: str, after: float) -> None:
        """Take an application out and back in while it is asked for."""
        await asyncio.sleep(after)
        controller = self.sim.head.ref(f"{HEAD}/controller")
        with contextlib.suppress(RuntimeFault):
            await controller.undeploy(application)
        await controller.deploy(application)

    async def _renew(self, application: Application) -> None:
        """Put a new version in the place of an application that is asked for: of the same components, so that any token of
        either is right."""
        await asyncio.sleep(RENEW_AFTER)
        controller = self.sim.head.ref(f"{HEAD}/controller", Controller)
        again = replace(application, checkpoint="/models/again", model=application.name)
        with contextlib.suppress(RuntimeFault):
            name = await controller.add(again, replace=True, grace=GRACE)
            await controller.settled(name, timeout=WHOLE)

    def _stall(self, worker: str) -> None:
        """What its device runs never ends, so that the controller must kill it."""
        self.house.devices[worker].stalled = True
        self.sim.note("stall", worker)

    def _end(self, worker: str) -> None:
        """Let a worker hear that its life is over."""
        self.sim.note("over", worker)
        self.house.workers[worker].node.peering.follower.end("it was declared down")  # type: ignore[attr-defined]

    async def _serves(self) -> None:
        """Each gateway serves each application that the controller has a route for."""
        house = self.house
        sim = self.sim
        late = list[Request]()
        sim.strike(lambda source, target, lane, body: None)
        await asyncio.sleep(SETTLED)
        await self._until(lambda: all(task.done() for task in self.work) and self._served(), WHOLE)
        parked = all(
            one.parked for one in house.state.served.values()
        )  # of an application that was last, a new version came
        if not self._served() and not parked:
            raise Violation("serves", f"not whole {WHOLE} s after all faults: {self._lacking()}")
        for gateway in house.gateways.values():
            life = sim._launcher.lives[gateway.node.id].context.copy() if gateway.node.name != HEAD else None
            for application in [a for a in house.plan.applications if self._routed(a.name)]:
                request = self._request(len(self.requests), gateway.node.name, application.name)
                self.requests.append(request)
                request.at, request.leaves = 0.0, 0
                request.most, request.expected = min(request.most, BRIEF), request.expected[:BRIEF]
                late.append(request)
                self.work.append(asyncio.get_running_loop().create_task(self._client(gateway, request), context=life))
        await self._until(lambda: all(request.outcome for request in late), PATIENCE)
        for request in late:
            if request.outcome != "done":
                raise Violation("serves", f"after all faults {request}\n{self._story(request)}")

    def _lacking(self) -> str:
        """Who keeps the cluster from being whole."""
        state = self.house.state
        states = {name: (worker.state, state.residency[name].loading) for name, worker in state.workers.items()}
        missing = [route.id for route in state.table.planned.values() if route.id not in state.routes]
        return f"{states}, routes {missing}, gateways {[*self.house.gateways]} of {self.house.plan.gateways}"

    def _routed(self, model: str) -> bool:
        """The controller has a route for it."""
        state = self.house.state
        known = serving(state.served, model)
        return known is not None and state.ready(known.application.name)

    async def _until(self, condition: Any, seconds: float) -> None:
        end = self.sim.time + seconds
        while self.sim.time < end and not condition():
            await asyncio.sleep(0.05)
            if self.violation is not None:
                raise self.violation

    def _served(self) -> bool:
        """Every route is in force, and every gateway's process is there."""
        lives = self.sim._launcher.list()
        up = [name for name, gateway in self.house.gateways.items() if gateway.node.id in lives]
        return self.house.state.whole and set(up) == set(self.house.plan.gateways)

    def _inject(self, fault: Fault) -> None:
        if isinstance(fault, Kill | Pause) and fault.node not in self.sim.cluster.members():
            return
        self.sim.inject(fault)

    def _open(self) -> list[Request]:
        """Requests that have not ended. Those of a gateway's process that is gone have lost their connection."""
        lives = self.sim._launcher.list()
        for request in self.requests:
            if not request.outcome and request.life is not None and request.gateway != HEAD and request.life not in lives:
                request.outcome = "connection lost"
        return [request for request in self.requests if not request.outcome]

    # what is left

    def _leaks(self) -> str:
        lives = self.sim._launcher.list()
        for name, gateway in self.house.gateways.items():
            if name == HEAD or gateway.node.id in lives:
                gateway.book.check()
                if gateway.book.parts.active or gateway._streams or any(gateway.book.parts.table.on.values()):
                    return f"gateway {gateway.node.id} holds {[*gateway.book.parts.active, *gateway._streams]}"
        for worker in self.house.workers.values():
            if worker.node.id in lives and (held := held_by(worker)):
                return f"worker {worker.node.id} holds {held}"
        self.house.state.check()
        return ""

    def _story(self, request: Request) -> str:
        """What the gateway and the workers know of a request, and what was done to messages."""
        lines = [str(hit) for hit in self.strikes.hits] + [str(fault) for fault in self.faults]
        for gateway in self.house.gateways.values():
            record = gateway.book.parts.active.get(request.id)
            if record is not None:
                lines += [f"{at:.3f} {event} {detail}" for at, event, detail in record.history.events]
        lines += [f"{worker.node.id}: {held_by(worker)}" for worker in self.house.workers.values()]
        return "\n".join(lines)


def has_tier(seed: int) -> bool:
    """Return whether a game has a lower tier, which drafts for the application above it."""
    return Random(f"{seed}/tiers").random() < TIERED


def drafts_of(expected: list[int], random: Random) -> DraftOptions | None:
    """Return drafts at random: of the prompt, of a prediction with some wrong tokens, or both, of any length; or none."""
    if random.random() >= DRAFTED:
        return None
    right, tokens = random.choice(RIGHT), random.choice((0, 0, 1, 3, 8, 16))
    predicted = [token if random.random() < right else (token + 1) % VOCABULARY for token in expected]
    if random.random() < 0.3:  # the answer has tokens that the prediction lacks, or the other way round
        at = random.randrange(len(predicted))
        predicted[at : at + random.randint(0, 2)] = [random.randrange(VOCABULARY) for _ in range(random.randint(0, 2))]
    prompt = random.random() < 0.5
    return DraftOptions(prompt, tokens, predicted if not prompt or random.random() < 0.5 else [])


def held_by(worker: Worker) -> str:
    """What a worker holds of sequences; checks its memory when that is nothing."""
    state = worker.state
    held = {
        "open plans": state.open_plans,
        "sequences": len(state.parts.rows.live()),
        "waiting": state.waiting,
        "running": state.running,
        "leases": len(state.parts.leases),
    }
    if any(held.values()):
        return str({name: value for name, value in held.items() if value})
    state.check()
    return ""
