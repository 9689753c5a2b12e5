"""What the gateway knows of one request: its tokens, its attempts and its story.

Owns the bookkeeping inside one request and its public view. Never decides where a request goes and never sends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ...policies.model.chain import VIRTUAL_TOKEN, Route
from ...policies.model.lineage import page_hashes
from ...policies.plan.sweep_plan import TokenLogprob
from ...policies.prediction.lengths import Features
from ...policies.requests.account import account_of, offline_account
from ...policies.requests.admission import YIELDED
from ...policies.requests.dispatch import Wanted, outstanding, workers_of
from ...policies.requests.poison import Deaths
from ...policies.requests.queue import Key
from ...policies.requests.routing_table import RoutingTable
from ...policies.requests.turned_away import TurnedAway, turned_away
from ...policies.requests.urgency import offline_urgency
from ...policies.sweep.events import PromptScored, Submission, TokensEmitted
from .decision import Decision
from .port import Generation, RequestView

MAX_EVENTS = 128  # of one request's story; beyond it only the end is added


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request from its arrival to its end."""

    generation: Generation
    order: int  # of arrival; kept over all attempts
    arrival: float  # seconds on the gateway's clock
    model: str  # that was asked for; ``application`` is what served it then
    features: Features | None = None  # what its length was estimated from; None where nobody wants to know
    expected: int = 0  # tokens of its answer, as they were estimated when it came; 0: unknown
    virtual: int = 0  # tokens before the prompt, which its deltas fill: workers count them, nobody else hears of them
    state: str = "waiting"  # "waiting" | "running" | "finished" | "cancelled" | "failed"
    tokens: list[int] = field(default_factory=list)  # virtual ones, prompt and all emitted tokens
    attempt: int = 0  # of the current or last placing; 0: never placed
    route: Route | None = None  # of the current or last attempt
    decision: Decision | None = None  # by which it took that route, where a dispatcher was asked
    ended: float | None = None  # when its last token came, or its text was complete
    workers: tuple[str, ...] = ()  # of ``route`` while running, else empty
    counted: int = 0  # tokens still to compute, as they were counted last (overload, work of workers)
    alone: bool = False  # the current attempt began as a suspect's: its route is kept for it
    planned: bool = False  # the current attempt's home has reported a first plan
    computed: int = 0  # tokens with KV in the current attempt
    cached: int = 0  # tokens found and not computed in the first attempt
    requeued: bool = False  # its home has preempted it and not started it again: its KV is gone
    begun: float | None = None  # when the first plan that was reported began
    preemptions: int = 0
    deaths: Deaths = field(default_factory=Deaths)
    scores: list[TokenLogprob] = field(default_factory=list)  # of the prompt, as far as they have come
    avoid: str = ""  # route id not to take before ``avoid_until``
    avoid_until: float = 0.0
    refused: set[str] = field(default_factory=set)  # ids of routes whose workers cannot hold it
    room: int = 0  # tokens that a route must hold for the next attempt: its worker has found less than was known
    events: list[tuple[float, str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        prompt = self.generation.prompt
        self.tokens = [VIRTUAL_TOKEN] * self.virtual + prompt
        expected = {"expected_tokens": self.expected} if self.expected else {}
        self.note(self.arrival, "arrived", prompt_tokens=len(prompt), max_tokens=self.generation.max_tokens, **expected)

    @property
    def id(self) -> str:
        return self.generation.id

    @property
    def application(self) -> str:
        return self.generation.application

    @property
    def account(self) -> str:
        return account_of(self.generation.tenant, self.model)

    @property
    def offline(self) -> bool:
        """Whether it is of a batch, so that nobody waits for it."""
        return self.generation.offline

    @property
    def total(self) -> int:
        """Most tokens, prompt and answer together, and virtual ones."""
        return self.begins + self.generation.max_tokens

    @property
    def begins(self) -> int:
        """Position of the first token of the answer."""
        return self.virtual + len(self.generation.prompt)

    @property
    def emitted(self) -> int:
        return len(self.tokens) - self.begins

    def seen(self, tokens: int) -> int:
        """How many of the first so many tokens are no virtual ones."""
        return max(0, tokens - self.virtual)

    @property
    def waits(self) -> bool:
        """True while it waits: no worker has begun its attempt, or its worker has preempted it and not begun again. A
        request that pauses while its pages travel has a new attempt, and so waits. Any other request runs."""
        return self.requeued or not self.planned

    @property
    def decodes(self) -> bool:
        """Whether all of its tokens but the newest have KV in the current attempt."""
        return self.planned and not self.requeued and self.computed >= len(self.tokens) - 1

    @property
    def reached(self) -> int:
        """Tokens that the current attempt has come to; 0: it has no KV, not yet or because it was preempted."""
        return 0 if self.requeued else len(self.tokens) if self.decodes else self.computed

    @property
    def unscored(self) -> int:
        """Prompt tokens whose log-probabilities are wanted and have not come."""
        wanted = self.generation.sampling.prompt_logprobs >= 0
        return len(self.generation.prompt) - 1 - len(self.scores) if wanted else 0

    @property
    def key(self) -> Key:
        """The place in the waiting queue."""
        return (self.urgency, self.order)

    @property
    def by_credit(self) -> bool:
        """Whether it goes only where offline requests are taken; a suspect goes where it is alone."""
        return self.offline and not self.deaths.suspect

    @property
    def urgency(self) -> int:
        """See ``policies/requests/urgency.py``."""
        generation = self.generation
        return offline_urgency(generation.priority) if self.offline else generation.priority

    def wanted(self, now: float) -> Wanted:
        """What decides where it goes."""
        avoid = self.avoid if now < self.avoid_until else ""
        return Wanted(self.id, self.application, self.total, self.deaths.suspect, avoid, self.refused, self.room)

    def note(self, now: float, event: str, **detail: Any) -> None:
        """Add to the story."""
        if len(self.events) < MAX_EVENTS:
            self.events.append((now, event, detail))

    def cost(self) -> int:
        """Tokens still to compute, see ``policies.dispatch.outstanding``. Those of offline requests keep nobody waiting."""
        return 0 if self.offline else outstanding(len(self.tokens), self.computed, self.total)

    def start(self, route: Route, now: float, decision: Decision | None = None) -> None:
        """A new attempt begins on ``route``."""
        self.attempt += 1
        self.decision = decision
        if decision is not None:
            found = {"seconds": decision.seconds, "policy": decision.chosen.policy, "fell_back": decision.reason}
            self.note(now, "asked", candidates=len(decision.chosen.candidates), **found)
        self.state, self.route, self.workers = "running", route, workers_of(route)
        self.alone, self.planned, self.computed, self.room = self.deaths.suspect, False, 0, 0
        self.requeued = False
        hops = [{"worker": hop.worker, "first": hop.first, "last": hop.last} for hop in route.hops]
        self.note(now, "dispatched", attempt=self.attempt, route=route.id, hops=hops)

    def wait(self) -> None:
        """The attempt is over and nothing of it counts any more but its tokens."""
        self.state, self.workers = "waiting", ()
        self.alone, self.planned, self.requeued, self.computed = False, False, False, 0

    def end(self, state: str, now: float, event: str, **detail: Any) -> None:
        self.state, self.workers = state, ()
        self.ended = now if state == "finished" else None
        if self.expected:
            detail |= {"expected_tokens": self.expected, "tokens": self.emitted}
        self.events.append((now, event, detail))

    def plan_seen(self, now: float, swept: float) -> None:
        """The home has reported something of the current attempt, so it has planned the request: so many seconds ago."""
        if not self.planned:
            self.planned = True
            began = max(now - swept, self.events[-1][0])
            self.begun = began if self.begun is None else self.begun
            self.deaths.planned()
            self.note(began, "first_plan" if self.attempt == 1 else "resumed", attempt=self.attempt)

    def progressed(self, computed: int, cached: int, now: float, swept: float) -> None:
        """The home has KV of ``computed`` tokens, ``cached`` of them found and not computed."""
        begun = self.planned
        self.plan_seen(now, swept)
        self.requeued = self.requeued and computed != cached  # it starts, or a chunk ends in which it was preempted
        self.computed = computed
        if self.attempt == 1:
            self.cached = max(self.cached, cached)
        if begun or cached:
            told = {"computed": computed, "cached": cached, "of": len(self.tokens)}
            self.note(now, "prefill", **{name: self.seen(count) for name, count in told.items()})

    def given_back(self, reason: str, now: float, table: RoutingTable) -> TurnedAway:
        """Its home does not run it: not tried again at once, but for what waits for credit or where room comes."""
        assert self.route is not None
        self.note(now, "returned", reason=reason)
        self.preemptions += reason == YIELDED
        told = turned_away(self.wanted(now), self.route.id, reason, table)
        self.room = told.room
        if told.comes:
            self.avoid = ""
        elif told.avoid:
            self.avoid, self.avoid_until = self.route.id, now + told.avoid
        if told.refused:
            self.refused.add(self.route.id)
        return told

    def preempted(self, now: float) -> None:
        self.preemptions += 1
        self.requeued = True
        self.note(now, "preempted")

    def submission(self, gateway: str, page_size: int, timeout: float) -> Submission:
        """The attempt to come as its home gets it, but for the route, which is not known yet; ``timeout`` as there."""
        generation, sampling = self.generation, self.generation.sampling
        if not self.unscored and sampling.prompt_logprobs >= 0:
            sampling = replace(sampling, prompt_logprobs=-1)  # an earlier attempt has told all
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
        )

    def score(self, news: PromptScored) -> PromptScored | None:
        """Take what is new of the prompt's log-probabilities; all of them where they are complete with this. Those of
        virtual tokens, and of the first token, are dropped."""
        skip = len(self.scores) - (news.position - 1 - self.virtual)
        new = news.entries[skip:] if skip >= 0 else []
        self.scores += new
        return replace(news, position=1, entries=self.scores) if new and not self.unscored else None

    def extend(self, news: TokensEmitted, now: float) -> TokensEmitted | None:
        """Take the new tokens of ``news`` (no gap before them), which are returned; None where there is nothing new."""
        skip = len(self.tokens) - news.position
        if skip:
            if skip > len(news.tokens) or (skip == len(news.tokens) and not news.finish):
                return None
            news = replace(news, position=len(self.tokens), tokens=news.tokens[skip:], logprobs=news.logprobs[skip:])
        if news.tokens and not self.emitted:
            self.note(now, "first_token")
        if news.tokens and self.decision is not None and self.decision.first_token is None:
            self.decision.first_token = now
        self.tokens.extend(news.tokens)
        self.computed = max(len(self.tokens) - 1, 0)  # the newest token has no KV yet
        return news

    def view(self) -> RequestView:
        route = self.route if self.state != "waiting" else None  # who waits is nowhere, wherever it was before
        hops = route.hops if route else ()
        return RequestView(
            id=self.id,
            state=self.state,
            attempt=self.attempt,
            home=route.home if route else None,
            route=[{"worker": hop.worker, "first": hop.first, "last": hop.last} for hop in hops],
            prompt_tokens=len(self.generation.prompt),
            computed_tokens=self.seen(self.computed),
            emitted_tokens=self.emitted,
            events=[{"at": at - self.arrival, "event": event, **detail} for at, event, detail in self.events],
            dispatch=None if self.decision is None else self.decision.view(self.arrival, self.ended),
            key=self.generation.key,
            arrival=self.arrival,
            tenant=self.generation.tenant,
            model=self.model,
        )
