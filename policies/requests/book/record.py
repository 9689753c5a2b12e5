"""The gateway's record of one request: its tokens without gap or repetition, its attempts and its history of events.

Owns the bookkeeping inside one request and its public view. Never decides where a request goes and never sends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ...model.chain import VIRTUAL_TOKEN, Route
from ...model.lineage import page_hashes
from ...model.tier_choice import auto_id
from ...plan.sweep_plan import TokenLogprob
from ...prediction.lengths import Features
from ...sweep.events import DraftsVerified, ExitEntered, PromptScored, SatOut, Submission, TokensEmitted
from ..account import offline_account
from ..admission import YIELDED
from ..dispatch import RouteQuery, outstanding, workers_of
from ..poison import Deaths
from ..queue import Key
from ..routing_table import RoutingTable
from ..turned_away import TurnedAway, turned_away
from ..urgency import CLASSES, offline_urgency, risen_by, service_class
from .auto_choice import AutoChoice, HeldAnswer, likely_tokens
from .decision import Decision
from .drafts import draft_view
from .values import DraftCounts, Generation, RequestView, ServiceView, StreamNews

MAX_EVENTS = 128  # events kept for one request; beyond them only the end is added


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request from its arrival to its end."""

    generation: Generation
    order: int  # arrival order; kept over all attempts
    arrival: float  # seconds on the gateway's clock
    model: str  # as requested, or the tier that was chosen; ``application`` is what served that name then
    features: Features | None = None  # input of the length estimate; None if estimates are off
    expected: int = 0  # estimated tokens of its answer at arrival; 0: unknown
    virtual: int = 0  # tokens before the prompt, filled by its deltas; only workers count them
    state: str = "waiting"  # "waiting" | "running" | "held" | "finished" | "cancelled" | "failed"
    tokens: list[int] = field(default_factory=list)  # virtual ones, prompt and all emitted tokens
    attempt: int = 0  # number of the current or last attempt; 0: never placed
    anew: int = 1  # number of the attempt that began with its prompt: the first, or the first on the top tier
    route: Route | None = None  # of the current or last attempt
    decision: Decision | None = None  # the dispatcher's decision for that route, if one was asked
    ended: float | None = None  # time of its last token, or when its text was complete
    workers: tuple[str, ...] = ()  # workers of ``route`` while running, else empty
    counted: int = 0  # tokens still to compute, as last counted (overload, work of workers)
    alone: bool = False  # the current attempt began as a suspect: its route is reserved for it
    planned: bool = False  # the home has reported a first plan of the current attempt
    computed: int = 0  # tokens with KV in the current attempt
    cached: int = 0  # tokens found in the cache in the first attempt
    requeued: bool = False  # its home has preempted it and not restarted it: its KV is gone
    begun: float | None = None  # start of the first reported plan
    preemptions: int = 0
    risen: int = 0  # service classes by which it has risen in the current or last attempt
    waited: float = 0.0  # seconds of its waits that are over, in all attempts
    waits_from: float | None = None  # begin of its present wait; None: it does not wait
    yielded: int = 0  # rows that it gave to urgent requests
    drafts: dict[str, DraftCounts] = field(default_factory=dict)  # verified drafts of all attempts, by source
    parked: int = 0  # steps of lower tiers that it sat out
    parked_seconds: float = 0.0  # the time that these took
    entered: dict[int, int] = field(default_factory=dict)  # prompt tokens that began at an exit, by the layers before it
    entered_to: int = 0  # the position up to which ``entered`` counts; what is recomputed counts once
    no_drafter: str = ""  # why no tier or other model can draft for the current or last attempt
    choice: AutoChoice | None = None  # of the tier that answers; None: the request names its model
    held: HeldAnswer | None = None  # news that wait for this choice; None: it is made, or there is none
    deaths: Deaths = field(default_factory=Deaths)
    scores: list[TokenLogprob] = field(default_factory=list)  # log-probabilities of the prompt received so far
    avoid: str = ""  # route id not to take before ``avoid_until``
    avoid_until: float = 0.0
    refused: set[str] = field(default_factory=set)  # ids of routes whose workers cannot hold it
    room: int = 0  # tokens the next route must hold: the last worker had less than was known
    events: list[tuple[float, str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        prompt = self.generation.prompt
        self.tokens = [VIRTUAL_TOKEN] * self.virtual + prompt
        self.waits_from = self.arrival
        expected = {"expected_tokens": self.expected} if self.expected else {}
        self.note(self.arrival, "arrived", prompt_tokens=len(prompt), max_tokens=self.generation.max_tokens, **expected)

    @property
    def id(self) -> str:
        return self.generation.id

    @property
    def application(self) -> str:
        return self.generation.application

    @property
    def applications(self) -> tuple[str, ...]:
        """The application that serves it, and the one that may after the choice of its tier."""
        if self.held is None or self.choice is None:
            return (self.application,)
        return (self.application, self.choice.application)

    @property
    def account(self) -> str:
        return self.generation.account

    @property
    def offline(self) -> bool:
        """True if the request belongs to a batch, so that no client waits for it."""
        return self.generation.offline

    @property
    def total(self) -> int:
        """The most tokens it may reach: virtual tokens, prompt and answer together."""
        return self.begins + self.generation.max_tokens

    @property
    def begins(self) -> int:
        """The position of the first token of the answer."""
        return self.virtual + len(self.generation.prompt)

    @property
    def emitted(self) -> int:
        return len(self.tokens) - self.begins

    @property
    def shown_tokens(self) -> int:
        """Tokens of the answer so far; 0 for a vector, which counts as one within the server."""
        return 0 if self.generation.pooled else self.emitted

    def seen(self, tokens: int) -> int:
        """Return the number of non-virtual tokens among the first ``tokens``."""
        return max(0, tokens - self.virtual)

    @property
    def waits(self) -> bool:
        """True while it waits: no worker has begun its attempt, or its worker has preempted it and not restarted it.

        A paused request, whose pages are moving, has a new attempt, and so waits. Any other request runs.
        """
        return self.requeued or not self.planned

    @property
    def decodes(self) -> bool:
        """True if all of its tokens but the newest have KV in the current attempt."""
        return self.planned and not self.requeued and self.computed >= len(self.tokens) - 1

    @property
    def reached(self) -> int:
        """Tokens that the current attempt has reached; 0 if it has no KV, not yet or because it was preempted."""
        return 0 if self.requeued else len(self.tokens) if self.decodes else self.computed

    @property
    def unscored(self) -> int:
        """Prompt tokens whose log-probabilities are wanted and have not arrived."""
        wanted = self.generation.sampling.prompt_logprobs >= 0
        return len(self.generation.prompt) - 1 - len(self.scores) if wanted else 0

    @property
    def key(self) -> Key:
        """The place in the waiting queue."""
        return (self.urgency, self.order)

    @property
    def by_credit(self) -> bool:
        """True if it goes only to workers with offline credit. A suspect goes where it runs alone."""
        return self.offline and not self.deaths.suspect

    @property
    def urgency(self) -> int:
        """See ``policies/requests/urgency.py``."""
        generation = self.generation
        return offline_urgency(generation.priority) if self.offline else generation.priority

    def wanted(self, now: float) -> RouteQuery:
        """Return the facts that decide its route."""
        avoid = self.avoid if now < self.avoid_until else ""
        return RouteQuery(self.id, self.application, self.total, self.deaths.suspect, avoid, self.refused, self.room)

    def note(self, now: float, event: str, **detail: Any) -> None:
        """Add an event to the history."""
        if len(self.events) < MAX_EVENTS:
            self.events.append((now, event, detail))

    def cost(self) -> int:
        """Return the tokens still to compute (``policies.dispatch.outstanding``).

        Offline requests count as 0, since they keep no other request waiting. So does a request that has ended on a tier
        which is not chosen yet.
        """
        return 0 if self.offline or self.state == "held" else outstanding(len(self.tokens), self.computed, self.total)

    def start(self, route: Route, now: float, decision: Decision | None = None) -> None:
        """Start a new attempt on ``route``."""
        self.attempt += 1
        self.decision = decision
        if decision is not None:
            found = {"seconds": decision.seconds, "policy": decision.chosen.policy, "fell_back": decision.reason}
            self.note(now, "asked", candidates=len(decision.chosen.candidates), **found)
        self.state = "running"
        self.route = route
        self.workers = workers_of(route)
        self.alone = self.deaths.suspect
        self.planned = False
        self.computed = 0
        self.room = 0
        self.risen = 0  # the worker knows how long it has waited, and lets it rise again
        self.requeued = False
        hops = [{"worker": hop.worker, "first": hop.first, "last": hop.last} for hop in route.hops]
        self.note(now, "dispatched", attempt=self.attempt, route=route.id, hops=hops)

    def wait(self, now: float) -> None:
        """Return to waiting after an attempt; only its tokens and its waits still count."""
        self.state, self.workers = "waiting", ()
        self._begin_wait(now)
        self.alone = False
        self.planned = False
        self.requeued = False
        self.computed = 0

    def park(self) -> None:
        """Keep a sequence that has ended on its first tier, until the tier of its request is chosen."""
        self.state = "held"
        self.workers = ()
        self.alone = False
        self.requeued = False

    def go_up(self, now: float) -> None:
        """Begin anew on the top tier: as at its arrival, but for its attempts, its waits and the deaths of workers."""
        auto, choice = self.generation.auto, self.choice
        assert auto is not None, "who goes up has a tier to go to"
        assert choice is not None, "who goes up has a tier to go to"
        self.generation = replace(self.generation, application=choice.application, drafts=auto.drafts)
        self.model, self.virtual = auto.top, choice.virtual
        self.tokens = [VIRTUAL_TOKEN] * choice.virtual + self.generation.prompt
        self.scores = []
        self.drafts = {}
        self.entered = {}
        self.entered_to = 0
        self.anew = self.attempt + 1
        self.avoid = ""
        self.refused = set()
        self.room = 0
        self.wait(now)

    def end(self, state: str, now: float, event: str, **detail: Any) -> None:
        self.state, self.workers = state, ()
        self.ended = now if state == "finished" else None
        if self.expected:
            detail |= {"expected_tokens": self.expected, "tokens": self.emitted}
        self.events.append((now, event, detail))

    def plan_seen(self, now: float, swept: float) -> None:
        """Note a report of the current attempt: the home must have planned the request, ``swept`` seconds ago."""
        if not self.planned:
            self.planned = True
            began = max(now - swept, self.events[-1][0])
            self.begun = began if self.begun is None else self.begun
            self.deaths.planned()
            self._end_wait(began)
            self.note(began, "first_plan" if self.attempt == self.anew else "resumed", attempt=self.attempt)

    def progressed(self, computed: int, cached: int, now: float, swept: float) -> None:
        """Note that the home has KV of ``computed`` tokens, ``cached`` of them found in its cache."""
        begun = self.planned
        self.plan_seen(now, swept)
        if self.requeued and computed == cached:  # it starts; else it ends the chunk in which it was preempted
            self.requeued = False
            self._end_wait(now)
        self.computed = computed
        if self.attempt == 1:
            self.cached = max(self.cached, cached)
        if begun or cached:
            counts = {"computed": computed, "cached": cached, "of": len(self.tokens)}
            self.note(now, "prefill", **{name: self.seen(count) for name, count in counts.items()})

    def given_back(self, reason: str, now: float, table: RoutingTable) -> TurnedAway:
        """Note that its home returned the request; the result says where it may go next.

        The route is avoided for a while, unless the request waits for credit or room is about to come there.
        """
        assert self.route is not None
        self.note(now, "returned", reason=reason)
        self.preemptions += reason == YIELDED
        verdict = turned_away(self.wanted(now), self.route.id, reason, table)
        self.room = verdict.room
        if verdict.comes:
            self.avoid = ""
        elif verdict.avoid:
            self.avoid, self.avoid_until = self.route.id, now + verdict.avoid
        if verdict.refused:
            self.refused.add(self.route.id)
        return verdict

    def preempted(self, now: float, *, urgent: bool = False) -> None:
        """Note that its home preempted it. ``urgent``: for an urgent request."""
        self.preemptions += 1
        self.yielded += urgent
        self.requeued = True
        self._begin_wait(now)
        self.note(now, "preempted", **({"for": "urgent"} if urgent else {}))

    def rise(self, risen: int, now: float) -> None:
        """Note that it has risen by ``risen`` service classes on its home, where it now starts."""
        if risen > self.risen:
            to = CLASSES[service_class(risen_by(self.urgency, risen))]
            self.note(now, "risen", to=to)
        self.risen = max(self.risen, risen)

    @property
    def service(self) -> ServiceView:
        """The service class and the account."""
        family = self.generation.family
        return ServiceView(
            asked=CLASSES[service_class(self.urgency)],
            risen=self.risen,
            account=offline_account(self.generation.side) if self.offline else self.account,
            tier=self.model if family else "",
            yielded=self.yielded,
        )

    def verified(self, news: DraftsVerified) -> None:
        """Count a round of drafts, or several that were reported together."""
        counts = self.drafts.get(news.source, DraftCounts())
        self.drafts[news.source] = counts.plus(news.rounds, news.drafted, news.accepted)

    def sat_out(self, news: SatOut) -> None:
        """Count steps of lower tiers that it sat out."""
        self.parked += news.sweeps
        self.parked_seconds += news.seconds

    def entered_at(self, news: ExitEntered) -> None:
        """Count prompt tokens that began at an exit. Virtual tokens, and those of the answer, do not count."""
        start, end = max(news.start, self.entered_to, self.virtual), min(news.end, self.begins)
        if start < end:
            self.entered[news.layers] = self.entered.get(news.layers, 0) + end - start
            self.entered_to = end

    def waiting_time(self, now: float) -> float:
        """Return the seconds that it has waited in all, at its gateway and on workers."""
        return self.waited + (0.0 if self.waits_from is None else max(0.0, now - self.waits_from))

    def _begin_wait(self, now: float) -> None:
        if self.waits_from is None:
            self.waits_from = now

    def _end_wait(self, now: float) -> None:
        self.waited, self.waits_from = self.waiting_time(now), None

    def submission(self, gateway: str, page_size: int, timeout: float, now: float) -> Submission:
        """Return the next attempt as its home gets it. It resumes after the tokens that the request already has.

        The route is left out, since it is not known yet.

        ``timeout``: as in ``Submission``.
        """
        generation, sampling = self.generation, self.generation.sampling
        if not self.unscored and sampling.prompt_logprobs >= 0:
            sampling = replace(sampling, prompt_logprobs=-1)  # an earlier attempt has delivered them all
        if self.held is not None and generation.auto is not None:
            sampling = replace(sampling, logprobs=max(sampling.logprobs, likely_tokens(generation.auto)))
        return Submission(
            request=self.id,
            attempt=self.attempt + 1,
            gateway=gateway,
            route="",
            route_version=0,
            tokens=list(self.tokens),
            prompt_length=self.begins,
            page_hashes=page_hashes(self.tokens, page_size, generation.salt),
            max_length=self.total,
            stop_tokens=generation.stop_tokens,
            sampling=sampling,
            tenant=offline_account(generation.side) if self.offline else self.account,
            priority=self.urgency,
            arrival=self.arrival,
            timeout=timeout,
            salt=generation.salt,
            trace=generation.trace,
            expected=self.expected,
            waited=self.waiting_time(now),
            drafts=None if self.offline else generation.drafts,
        )

    def score(self, news: PromptScored) -> PromptScored | None:
        """Add new log-probabilities of the prompt; return all of them once they are complete, else None.

        Entries of virtual tokens, and of the first token, are dropped.
        """
        skip = len(self.scores) - (news.position - 1 - self.virtual)
        new = news.entries[skip:] if skip >= 0 else []
        self.scores += new
        return replace(news, position=1, entries=self.scores) if new and not self.unscored else None

    def extend(self, news: TokensEmitted, now: float) -> TokensEmitted | None:
        """Add the new tokens of ``news``, and return them; return None if nothing is new.

        Tokens that the request already has, repeated by a report, are dropped. ``news`` must leave no gap.
        """
        skip = len(self.tokens) - news.position
        if skip:
            if skip > len(news.tokens) or (skip == len(news.tokens) and not news.finish):
                return None
            news = replace(news, position=len(self.tokens), tokens=news.tokens[skip:], logprobs=news.logprobs[skip:])
        if news.tokens and not self.emitted:
            self.note(now, "vector" if self.generation.pooled else "first_token")
        if news.tokens and self.decision is not None and self.decision.first_token is None:
            self.decision.first_token = now
        self.tokens.extend(news.tokens)
        self.computed = max(len(self.tokens) - 1, 0)  # the newest token has no KV yet
        return news

    def shown(self, news: StreamNews) -> StreamNews:
        """Return news as the client gets them: without log-probabilities that only the choice of the tier needed."""
        asked = self.generation.sampling.logprobs
        if self.choice is None or self.choice.up or isinstance(news, PromptScored):
            return news
        return replace(news, logprobs=[replace(one, top=one.top[:asked]) for one in news.logprobs] if asked >= 0 else [])

    def view(self) -> RequestView:
        # a waiting request is nowhere, whatever its last route
        route = self.route if self.state not in ("waiting", "held") else None
        hops = route.hops if route else ()
        return RequestView(
            id=self.id,
            state="running" if self.state == "held" else self.state,
            attempt=self.attempt,
            home=route.home if route else None,
            route=[{"worker": hop.worker, "first": hop.first, "last": hop.last} for hop in hops],
            prompt_tokens=len(self.generation.prompt),
            computed_tokens=self.seen(self.computed),
            emitted_tokens=self.shown_tokens,
            events=[{"at": at - self.arrival, "event": event, **detail} for at, event, detail in self.events],
            dispatch=None if self.decision is None else self.decision.view(self.arrival, self.ended),
            key=self.generation.key,
            arrival=self.arrival,
            tenant=self.generation.tenant,
            model=self.model if self.choice is None else auto_id(self.choice.auto.top),
            drafts=draft_view(self.generation, self.drafts, self.no_drafter),
            tier=None if self.choice is None else self.choice.view(),
            service=self.service,
            parked_steps=self.parked,
            parked_seconds=self.parked_seconds,
            entered={str(layers): tokens for layers, tokens in sorted(self.entered.items())},
        )
