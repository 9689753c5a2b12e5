"""Absent requests: conversations that have had an answer and are expected back. Their KV is copied ahead, moved or dropped.

``T_int`` is how long a conversation has been away; it is expected to stay away about as long again (InferCept; BlockLLM,
5.3). Two decisions follow from it, each off unless it is wanted:

- *Proactive copies.* If the owner of its KV has more to do than another worker, so that the request would not go back there
  or would have to wait, the KV is copied to that worker, provided that this takes less than ``T_int``.
- *Cold KV.* Where a worker's cache is full, what idles is kept, dropped or moved by the least waste in byte-seconds, for C
  tokens of M bytes beside the C_other tokens that run there (M is the same for all three and left out):
  keep ``T_int * C * M``; drop ``T_fwd(C) * C * M / 2 + T_fwd(C) * C_other * M``, in chunks; move
  ``2 * T_copy(C) * C_other * M``.

What few conversations share goes first, then what is expected back soonest. Pure; work follows the conversations away.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from ..model.chain import Route
from ..model.runs import LocalRoute
from .chain_switch import gains

LRU = "lru"
LEAST_WASTE = "least-waste"
COLD = (LRU, LEAST_WASTE)  # what a full cache gives up
MOST = 1024  # conversations that are remembered; beyond them the one away longest is forgotten
PERIOD = 1.0  # seconds between decisions


class AbsentStep(Enum):
    """The next step for the KV of an absent conversation."""

    KEEP = auto()
    DROP = auto()  # its pages go before others
    COPY = auto()  # ahead of its return
    MOVE = auto()  # a copy, and the pages at its owner go before others


@dataclass(frozen=True, slots=True)
class AbsentConversation:
    """A conversation whose last request has ended. ``route``: where its KV is. ``hashes``: of its full pages."""

    request: str
    account: str
    route: Route
    hashes: tuple[bytes, ...]
    tokens: int
    left: float

    @property
    def key(self) -> tuple[str, bytes]:
        return self.route.application, self.hashes[-1]


@dataclass(frozen=True, slots=True)
class HomeLoad:
    """The load of a worker with whole routes, by application.

    queue: seconds of the work ahead. token: seconds of a token. held: tokens of running requests. room: tokens of KV that
    fit.
    """

    worker: str
    routes: Mapping[str, Route]
    queue: float
    token: float
    held: int
    room: int


@dataclass(frozen=True, slots=True)
class AbsentOrder:
    """A step for a conversation. ``target``: the route to which pages are copied; None: nowhere."""

    conversation: AbsentConversation
    step: AbsentStep
    target: Route | None = None


def wastes(away: float, tokens: int, forward: float, copy: float, others: int, *, movable: bool) -> dict[AbsentStep, float]:
    """Return the waste of each step for a cold conversation (see the module).

    forward, copy: seconds in which a token is computed, and copied. others: tokens that run on its worker.
    """
    found = {AbsentStep.KEEP: away * tokens, AbsentStep.DROP: forward * tokens * (tokens / 2 + others)}
    return found | {AbsentStep.MOVE: 2 * copy * tokens * others} if movable else found


class AbsentConversations:
    """The conversations away, as one gateway knows them (see the module).

    proactive: copies are made ahead. cold: KV is kept, dropped or moved.
    """

    def __init__(self, *, proactive: bool = False, cold: bool = False) -> None:
        self.proactive, self.cold = proactive, cold
        self._away: OrderedDict[tuple[str, bytes], AbsentConversation] = OrderedDict()
        self._sharers: dict[tuple[str, bytes], int] = {}  # page -> conversations with it
        self._copying: dict[str, AbsentOrder] = {}  # by worker that sends; one at a time
        self._copied: set[tuple[str, bytes]] = set()  # conversations that have been copied since they left
        self._next = 0.0  # time of the next decision

    @property
    def wanted(self) -> bool:
        """True if anything is decided."""
        return self.proactive or self.cold

    def __len__(self) -> int:
        return len(self._away)

    def leave(self, conversation: AbsentConversation) -> None:
        """Take a conversation whose request has ended."""
        self._forget(conversation.key)
        self._away[conversation.key] = conversation
        self._count(conversation, 1)
        if len(self._away) > MOST:
            self._forget(next(iter(self._away)))

    def come(self, application: str, hashes: Sequence[bytes]) -> None:
        """Note a new request: the conversation that it continues is away no longer."""
        for one in reversed(hashes):
            if (application, one) in self._away:
                self._forget((application, one))
                return

    def lose(self, worker: str) -> None:
        """Forget what a worker held that has ended."""
        for key in [key for key, one in self._away.items() if one.route.home == worker]:
            self._forget(key)
        ended = [home for home, order in self._copying.items() if order.target is not None and order.target.home == worker]
        for home in {*ended, worker}:
            self._copying.pop(home, None)

    def current(self, worker: str) -> AbsentOrder | None:
        """Return what a worker is copying for a conversation that is away."""
        return self._copying.get(worker)

    def arrived(self, worker: str, *, whole: bool) -> AbsentOrder | None:
        """Take a worker's answer: the pages that it was to copy are there, or not; return the order that is done.

        A conversation that has moved is away from its new worker.
        """
        order = self._copying.pop(worker, None)
        if order is None or not whole:
            return None
        key = order.conversation.key
        if order.step is AbsentStep.MOVE and order.target is not None and key in self._away:
            self._away[key] = replace(self._away[key], route=order.target)
        return order

    def decide(self, homes: Mapping[str, HomeLoad], copy: Mapping[str, float], now: float) -> list[AbsentOrder]:
        """Return what is to be done now, at most every ``PERIOD`` seconds.

        homes: by worker. copy: application -> seconds in which KV of a token is copied; 0: unknown.
        """
        if not (self._away and self.wanted) or now < self._next:
            return []
        self._next = now + PERIOD
        orders = list[AbsentOrder]()
        order = sorted(self._away.values(), key=lambda one: (self._shared(one), now - one.left, one.request))
        if self.cold:
            orders += self._cold(order, homes, copy, now)
        if self.proactive:
            orders += self._ahead(order, homes, copy, now)
        return orders

    def _ahead(
        self, order: Sequence[AbsentConversation], homes: Mapping[str, HomeLoad], copy: Mapping[str, float], now: float
    ) -> list[AbsentOrder]:
        """Return the copies to begin: at most one from each worker."""
        found = list[AbsentOrder]()
        for one in order:
            here, key = homes.get(one.route.home), one.key
            if here is None or one.route.home in self._copying or key in self._copied or key not in self._away:
                continue
            others = [other for other in _others(one, homes) if gains(here.queue, other.queue)]
            target = min(others, key=lambda other: (other.queue, other.worker), default=None)
            seconds = copy.get(one.route.application, 0.0) * one.tokens
            if target is not None and 0 < seconds < now - one.left:
                found.append(self._begin(AbsentOrder(one, AbsentStep.COPY, target.routes[one.route.application])))
        return found

    def _cold(
        self, order: Sequence[AbsentConversation], homes: Mapping[str, HomeLoad], copy: Mapping[str, float], now: float
    ) -> list[AbsentOrder]:
        """Return what becomes of KV on workers whose caches are full."""
        full = {worker: home.held for worker, home in homes.items()}
        for one in order:
            if one.route.home in full:
                full[one.route.home] += one.tokens
        choices = list[tuple[float, float, str, AbsentConversation, dict[AbsentStep, float]]]()
        for one in order:
            here = homes.get(one.route.home)
            if here is not None and full[one.route.home] > here.room:
                rate = copy.get(one.route.application, 0.0)
                found = wastes(now - one.left, one.tokens, here.token, rate, here.held, movable=rate > 0)
                saved = (found[AbsentStep.KEEP] - min(found.values())) / one.tokens
                choices.append((self._shared(one), -saved, one.request, one, found))
        return [
            made
            for *_, one, found in sorted(choices, key=lambda choice: choice[:3])
            if full[one.route.home] > homes[one.route.home].room and (made := self._relieve(one, found, homes, full))
        ]

    def _relieve(
        self, one: AbsentConversation, found: Mapping[AbsentStep, float], homes: Mapping[str, HomeLoad], full: dict[str, int]
    ) -> AbsentOrder | None:
        """Return the step with the least waste; None: it stays. ``full``: tokens by worker, which change with it."""
        others = [other for other in _others(one, homes) if full[other.worker] + one.tokens <= other.room]
        free = min(others, key=lambda other: (full[other.worker], other.worker), default=None)
        step = min((step for step in found if free is not None or step is not AbsentStep.MOVE), key=found.__getitem__)
        if step is AbsentStep.KEEP or (step is AbsentStep.MOVE and one.route.home in self._copying):
            return None  # one after the other
        full[one.route.home] -= one.tokens
        if step is AbsentStep.MOVE and free is not None:
            full[free.worker] += one.tokens
            return self._begin(AbsentOrder(one, step, free.routes[one.route.application]))
        self._forget(one.key)
        return AbsentOrder(one, AbsentStep.DROP)

    def _begin(self, order: AbsentOrder) -> AbsentOrder:
        self._copying[order.conversation.route.home] = order
        self._copied.add(order.conversation.key)
        return order

    def _shared(self, one: AbsentConversation) -> float:
        """Return how many conversations share a page of this one, on average."""
        application = one.route.application
        return sum(self._sharers[application, page] for page in one.hashes) / len(one.hashes)

    def _count(self, one: AbsentConversation, change: int) -> None:
        application = one.route.application
        for page in one.hashes:
            key = application, page
            self._sharers[key] = self._sharers.get(key, 0) + change
            if not self._sharers[key]:
                del self._sharers[key]

    def _forget(self, key: tuple[str, bytes]) -> None:
        if (one := self._away.pop(key, None)) is not None:
            self._count(one, -1)
            self._copied.discard(key)


def page_keys(local: LocalRoute, hashes: Sequence[bytes]) -> list[tuple[bytes, bytes, int]]:
    """Return the keys of cached pages on a worker's route (``policies/memory/prefix_index.py``)."""
    return [(one, span.lineage, span.layer) for one in hashes for span in local.spans]


def _others(one: AbsentConversation, homes: Mapping[str, HomeLoad]) -> list[HomeLoad]:
    """Return the other workers with a route of its chain that can hold it."""
    others = [home for worker, home in homes.items() if worker != one.route.home]
    return [home for home in others if one.route.application in home.routes and home.room >= one.tokens]
