"""The record of one request, all that the gateway knows of it: its stage, tokens, placement and history.

Reports of a worker about the current attempt are applied here: a token that the request already has is not repeated after
a failover. Never decides where a request goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...model.chain import Route
from ...model.lineage import page_hashes
from ...prediction.lengths import Features
from ...sweep.events import Preempted, Progressed, Submission, TokensEmitted
from ..account import offline_account
from ..admission import YIELDED
from ..dispatch import RouteQuery
from ..poison import Deaths
from ..queue import Key
from ..routing_table import RoutingTable
from ..turned_away import TurnedAway
from ..urgency import CLASSES, offline_urgency, risen_by, service_class
from .auto_choice import AutoChoice, HeldAnswer, likely_tokens
from .decision import Decision
from .history import ChainSwitch, RequestHistory
from .lifecycle import OUTCOMES, WAITING, WORDS, LifeEvent, LifeStage, following
from .placement import RequestPlacement
from .token_progress import TokenProgress
from .values import Generation


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request from its arrival to its end."""

    generation: Generation
    order: int  # arrival order; kept over all attempts
    arrival: float  # seconds on the gateway's clock
    model: str  # as requested, or the tier that was chosen; ``application`` is what served that name then
    progress: TokenProgress
    features: Features | None = None  # input of the length estimate; None if estimates are off
    expected: int = 0  # estimated tokens of its answer at arrival; 0: unknown
    stage: LifeStage = LifeStage.QUEUED  # changed by ``apply`` alone
    outcome: str = ""  # "finished", "cancelled" or "failed", once it has ended
    placement: RequestPlacement = field(default_factory=RequestPlacement)
    history: RequestHistory = field(default_factory=RequestHistory)
    deaths: Deaths = field(default_factory=Deaths)
    variant: str = ""  # the application that serves in the place of its own
    variants: dict[str, None] = field(default_factory=dict)  # the variants that gave tokens
    hashed: list[bytes] = field(default_factory=list)  # hashes of its full pages; empty: not needed so far
    choice: AutoChoice | None = None  # of the tier that answers; None: the request names its model
    held: HeldAnswer | None = None  # news that wait for this choice; None: it is made, or there is none

    def __post_init__(self) -> None:
        self.history.begin_wait(self.arrival)
        expected = {"expected_tokens": self.expected} if self.expected else {}
        asked = {"prompt_tokens": len(self.progress.prompt), "max_tokens": self.progress.limit}
        self.history.note(self.arrival, "arrived", **asked, **expected)

    # who it is -------------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self.generation.id

    @property
    def application(self) -> str:
        """The application that serves it: its own, or a variant."""
        return self.variant or self.generation.application

    @property
    def applications(self) -> tuple[str, ...]:
        """Its own application, its variant, and the one that may serve it after the choice of its tier."""
        own = self.generation.application
        if self.variant:
            return (own, self.variant)
        return (own,) if self.held is None or self.choice is None else (own, self.choice.application)

    @property
    def stand_ins(self) -> str:
        """The variants that serve it or gave tokens, separated by commas."""
        return ", ".join(dict.fromkeys([*self.variants, *filter(None, [self.variant])]))

    @property
    def varies(self) -> bool:
        """True if a variant may serve it at all."""
        generation = self.generation
        plain = generation.auto is None and not (generation.offline or generation.pooled or self.deaths.suspect)
        return generation.adaptive and plain

    @property
    def adaptive(self) -> bool:
        """True if its next attempt may begin on a variant, whatever its own chain has. A variant that has begun is kept."""
        return self.varies and not self.variant and not self.progress.emitted

    @property
    def continues(self) -> bool:
        """True if it goes on with the answer of an earlier request, and has not started anywhere."""
        return bool(self.generation.known) and self.placement.attempt == 0

    @property
    def account(self) -> str:
        return self.generation.account

    @property
    def offline(self) -> bool:
        """True if the request belongs to a batch, so that no client waits for it."""
        return self.generation.offline

    @property
    def state(self) -> str:
        """The stage in the words of ``RequestView``, and "held"."""
        return self.outcome or WORDS[self.stage]

    @property
    def waiting(self) -> bool:
        """True while it waits at the gateway for a route."""
        return self.stage in WAITING

    def runs(self, attempt: int) -> bool:
        """Return whether this is its current attempt, which is at a worker or on its way there."""
        return bool(self.placement.workers) and self.placement.attempt == attempt

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

    def wanted(self, now: float, variants: Sequence[str] = ()) -> RouteQuery:
        """Return the facts that decide its route. ``variants``: the other chains that may serve it."""
        placement = self.placement
        avoid = placement.avoid if now < placement.avoid_until else ""
        total, suspect = self.progress.total, self.deaths.suspect
        others = tuple(variants)
        near = placement.route.home if others and placement.route is not None else ""
        known = len(self.progress.tokens)
        return RouteQuery(
            self.id, self.application, total, suspect, avoid, placement.refused, placement.room, others, known, near,
            numerics=placement.numerics if self.progress.emitted else "",
            waited=self.history.waiting_time(now) if others else 0.0,
        )  # fmt: skip

    def hashes(self, page_size: int) -> list[bytes]:
        """Return the hashes of its full pages."""
        tokens = self.progress.tokens
        if len(self.hashed) != len(tokens) // page_size:
            self.hashed = page_hashes(tokens, page_size, self.generation.salt)
        return self.hashed

    def cost(self) -> int:
        """Return the tokens still to compute (as ``outstanding`` of ``policies/requests/dispatch.py``).

        Offline requests count as 0, since they keep no other request waiting. So does a request that has ended on a tier
        which is not chosen yet.
        """
        if self.generation.offline or self.stage is LifeStage.HELD:
            return 0
        progress = self.progress
        known, left = len(progress.tokens), progress.begins + progress.limit
        return max(known - progress.computed, 0) + max(left - known, 0)

    # its life --------------------------------------------------------------------------------------------------------

    def apply(self, event: LifeEvent) -> None:
        """Go to the next stage. Raises AssertionError for an event that cannot come now."""
        self.stage = following(self.generation.id, self.stage, event)

    def start(self, route: Route, now: float, decision: Decision | None = None, numerics: str = "") -> None:
        """Start a new attempt on ``route``. ``numerics``: of its workers; empty if they have not said."""
        placement, note = self.placement, self.history.note
        if numerics and placement.numerics not in ("", numerics) and self.progress.emitted:
            note(now, "numerics", source=placement.numerics, target=numerics, tokens=len(self.progress.tokens))
        placement.numerics = numerics or placement.numerics
        placement.start(route, decision, self.deaths.suspect)
        self.progress.begin_attempt()
        if decision is not None:
            found = {"seconds": decision.seconds, "policy": decision.chosen.policy, "fell_back": decision.reason}
            note(now, "asked", candidates=len(decision.chosen.candidates), **found)
        hops = [{"worker": hop.worker, "first": hop.first, "last": hop.last} for hop in route.hops]
        note(now, "dispatched", attempt=placement.attempt, route=route.id, hops=hops)

    def wait(self, now: float) -> None:
        """Return to waiting after an attempt; only its tokens and its waits still count."""
        self.placement.leave()
        self.history.begin_wait(now)
        self.progress.begin_attempt()

    def vary(self, application: str, now: float, why: str, estimates: tuple[float, float] | None = None) -> None:
        """Go over to a variant, or back to its own application. estimates: here and there, if it runs and gains by it."""
        source, position = self.application, self.progress.emitted
        self.variant = "" if application == self.generation.application else application
        detail: dict[str, Any] = {}
        if self.switches(estimates):
            stay, go = estimates or (None, None)
            self.history.switches.append(ChainSwitch(now, source, application, position, why, stay, go))
            detail = {"position": position}
        self.history.note(now, "chain", used=application, listed=self.generation.application, why=why, **detail)

    def switches(self, estimates: tuple[float, float] | None) -> bool:
        """Return whether a change of its chain is a switch: it runs, or its answer has begun, or it has switched before."""
        return bool(estimates is not None or self.progress.emitted or self.history.switches)

    def park(self) -> None:
        """Keep a sequence that has ended on its first tier, until the tier of its request is chosen."""
        self.placement.leave()
        self.progress.requeued = False

    def go_up(self, now: float) -> None:
        """Begin anew on the top tier: as at its arrival, but for its attempts, its waits and the deaths of workers."""
        auto, choice = self.generation.auto, self.choice
        assert auto is not None, "who goes up has a tier to go to"
        assert choice is not None, "who goes up has a tier to go to"
        self.generation = replace(self.generation, application=choice.application, drafts=auto.drafts)
        self.model = auto.top
        self.hashed = []
        self.progress.begin_anew(choice.virtual)
        self.placement.begin_anew()
        self.history.begin_anew()
        self.wait(now)

    def end(self, event: LifeEvent, now: float, reason: str) -> None:
        """End the request."""
        self.outcome = OUTCOMES[event]
        self.placement.workers = ()
        self.history.ended = now if self.outcome == "finished" else None
        detail: dict[str, Any] = {"reason": reason}
        if self.expected:
            detail |= {"expected_tokens": self.expected, "tokens": self.progress.emitted}
        self.history.events.append((now, self.outcome, detail))

    # what its home reports -------------------------------------------------------------------------------------------

    def plan_seen(self, now: float, swept: float) -> None:
        """Note the first report of the current attempt: the home must have planned the request, ``swept`` seconds ago."""
        history, placement = self.history, self.placement
        self.progress.planned = True
        began = max(now - swept, history.events[-1][0])
        history.begun = began if history.begun is None else history.begun
        self.deaths.planned()
        history.end_wait(began)
        attempt = placement.attempt
        history.note(began, "first_plan" if attempt == placement.anew else "resumed", attempt=attempt)
        if self.stage is LifeStage.SENT:
            self.apply(LifeEvent.PLAN)

    def progressed(self, news: Progressed, now: float, swept: float) -> None:
        """Note the tokens whose KV its home has, and how many of them it found in its cache."""
        progress = self.progress
        computed, cached = news.computed, news.cached
        if news.risen > self.placement.risen:  # it has risen by service classes on its home, where it now starts
            self.history.note(now, "risen", to=CLASSES[service_class(risen_by(self.urgency, news.risen))])
            self.placement.risen = news.risen
        begun = progress.planned
        if not begun:
            self.plan_seen(now, swept)
        if progress.requeued and computed == cached:  # it starts; else it ends the chunk in which it was preempted
            progress.requeued = False
            self.history.end_wait(now)
        progress.computed = computed
        if self.placement.attempt == 1:
            progress.cached = max(progress.cached, cached)
        if begun or cached:
            counts = {"computed": computed, "cached": cached, "of": len(progress.tokens)}
            self.history.note(now, "prefill", **{name: progress.seen(count) for name, count in counts.items()})
        self.history.arrived(progress.seen(cached), progress.seen(len(progress.tokens)), now)

    def extend(self, news: TokensEmitted, now: float) -> TokensEmitted | None:
        """Add new tokens, and return the new part; None if nothing is new."""
        progress = self.progress
        first = len(progress.tokens) == progress.begins
        added = progress.add(news)
        if added is not None and added.tokens:
            if self.variant:
                self.variants[self.variant] = None
            if first:
                self.history.note(now, "vector" if self.generation.pooled else "first_token")
            decision = self.placement.decision
            if decision is not None and decision.first_token is None:
                decision.first_token = now
        return added

    def preempted(self, news: Preempted, now: float) -> None:
        """Note that its home preempted it."""
        history = self.history
        history.preemptions += 1
        history.yielded += news.urgent
        self.progress.requeued = True
        history.begin_wait(now)
        history.note(now, "preempted", **({"for": "urgent"} if news.urgent else {}))

    def given_back(self, reason: str, now: float, table: RoutingTable) -> TurnedAway:
        """Note that its home returned the request; the result says where it may go next."""
        self.history.note(now, "returned", reason=reason)
        self.history.preemptions += reason == YIELDED
        return self.placement.turn_away(self.wanted(now), reason, now, table)

    # what its home gets ----------------------------------------------------------------------------------------------

    def submission(self, gateway: str, page_size: int, timeout: float, now: float) -> Submission:
        """Return the next attempt as its home gets it. It resumes after the tokens that the request already has.

        The route is left out, since it is not known yet.

        ``timeout``: as in ``Submission``.
        """
        generation, progress = self.generation, self.progress
        sampling = generation.sampling
        if not progress.unscored and sampling.prompt_logprobs >= 0:
            sampling = replace(sampling, prompt_logprobs=-1)  # an earlier attempt has delivered them all
        if self.held is not None and generation.auto is not None:
            sampling = replace(sampling, logprobs=max(sampling.logprobs, likely_tokens(generation.auto)))
        return Submission(
            request=self.id,
            attempt=self.placement.attempt + 1,
            gateway=gateway,
            route="",
            route_version=0,
            tokens=list(progress.tokens),
            prompt_length=progress.begins,
            page_hashes=[*self.hashes(page_size)]
            if self.hashed
            else page_hashes(progress.tokens, page_size, generation.salt),
            max_length=progress.total,
            stop_tokens=generation.stop_tokens,
            sampling=sampling,
            tenant=offline_account(generation.side) if self.offline else self.account,
            priority=self.urgency,
            arrival=self.arrival,
            timeout=timeout,
            salt=generation.salt,
            trace=generation.trace,
            expected=self.expected,
            waited=self.history.waiting_time(now),
            drafts=None if self.offline else generation.drafts,
        )
