"""The feed of one offline job to several workers: which request goes to which worker and scanner side next.

After BlendServe (sections on sampling, the dual scanner and data parallelism). First the requests whose output lengths are
sampled run. Their answers then order the rest: one list of units by density, cut into a part for each worker, with a dual
scanner over each part. Until then an order by limits fills the room that samples leave. Workers join and end at any time;
one whose part is empty takes half of the fullest (work stealing); a request that was given back is the first on its side.

A machine of events: the caller owns time, messages and answers, and nothing here is random. Requests are numbers, from 0
in the caller's order; positions are tokens' KV.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..plan.coefficients import Coefficients
from . import arranging
from .arranging import DONE, RUNNING, WAITING, Arrangement, JobOrder
from .density import Costs
from .estimates import PROBABILITY, Estimates, choose_samples
from .fed_worker import FedWorker
from .job_account import FeedProgress, JobAccount
from .order import OrderRules
from .prefix_tree import PrefixTree
from .scanner import DualScanner, Side

RULES = OrderRules()
FEW = 1000  # up to this many requests are cut in the call itself; more are an errand


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineRequest:
    """A request, as far as the order needs it.

    prompt: token ids as made by ``prefix_tree.packed``. limit: most new tokens, of all choices together. choices: number
    of sequences that answer it. hint: new tokens that a tagger expects, if known.
    """

    prompt: bytes
    limit: int
    choices: int = 1
    hint: float = 0.0


@dataclass(frozen=True, slots=True)
class PlacedRequest:
    """A request to send now, as ``sequences`` sequences, which need ``positions`` additional positions by estimate.

    ``side``: the account that its pages count for.
    """

    request: int
    worker: str
    side: Side
    sequences: int
    positions: float


class OfflineFeed:
    """The feed of one job (see the module).

    draws: for each request a uniform random number from 0 to 1; requests below ``share`` are sampled, see
    ``choose_samples``. known: new tokens of requests that were answered already (a job that continues after a restart);
    these are never placed. rules: of the order. memory: positions of KV of one worker, which bound the size of units (0:
    no bound). target: density that each worker aims for; 0: the job's own.

    Making one costs seconds for a hundred thousand requests: make it in a thread. Other slow work is an ``errand``, and
    until it is done the feed continues with what it has; every other call costs microseconds, or a few milliseconds if at
    most ``FEW`` requests wait. Raises ValueError for no requests, an empty prompt or a limit below 1, with the number of
    the request.
    """

    def __init__(
        self,
        requests: Sequence[OfflineRequest],
        costs: Costs,
        *,
        draws: Sequence[float],
        share: float = PROBABILITY,
        known: Mapping[int, int] | None = None,
        rules: OrderRules = RULES,
        memory: int = 0,
        target: float = 0.0,
    ) -> None:
        _check(requests)
        self._costs = costs
        self._rules = rules
        self._memory = memory
        self._target = target
        self._knows_costs = False
        self._tree = PrefixTree([one.prompt for one in requests])
        hints = [one.hint or one.limit for one in requests] if any(one.hint for one in requests) else ()
        self._estimates = Estimates(self._tree, [one.limit for one in requests], hints=hints)
        self._choices = array("I", (one.choices for one in requests))
        self._status = bytearray(len(requests))
        for request, tokens in (known or {}).items():
            self._status[request] = DONE
            self._estimates.finished(request, tokens)
        self._account = JobAccount(self._tree.length, known or ())
        drawn = choose_samples(self._tree, draws, share) if share else []
        self._sampled, self._samples = len(drawn), {one for one in drawn if self._status[one] == WAITING}
        self._workers: dict[str, FedWorker] = {}
        self._where: dict[int, FedWorker] = {}  # request -> worker, for requests that run on a present worker
        self._running = self._given_back = 0
        self._version = 0  # version of the parts; results for another version are not adopted
        self._uncut = False  # some waiting requests are in no part of the present workers
        self._halving: tuple[str, str] | None = None  # (giver, taker) of half a part
        self._started: set[int] | None = None  # requests started since the open errand was made; None: there is none
        self._order = self._ordering()()
        self._account.estimated(self._order.work, self._account.summing()(self._order.work))

    # workers

    def joined(self, worker: str, positions: int) -> None:
        """Add a worker with ``positions`` of KV for this job; unplaced requests are cut anew among all workers.

        For a worker that is here already, only its positions change.
        """
        if worker in self._workers:
            self._workers[worker].scanner.resize(positions)
            return
        self._workers[worker] = FedWorker(DualScanner([], self._need_on(worker), positions, self._aim))
        self._recut()

    def ended(self, worker: str) -> None:
        """Remove a worker; its part goes to the others (it is kept while there are none).

        Its running requests go on elsewhere, or the caller reports ``given_back``.
        """
        gone = self._workers.pop(worker)
        for request in [one for one, where in self._where.items() if where is gone]:
            del self._where[request]
        self._recut()

    @property
    def workers(self) -> frozenset[str]:
        """The workers that joined and did not end."""
        return frozenset(self._workers)

    # requests

    def pull(self, worker: str, rows: int, positions: float, sweeps: int = 0) -> list[PlacedRequest]:
        """Return the requests that the worker is to run now in addition, within ``rows`` sequences and ``positions``.

        A worker without requests of this job gets one if ``rows`` is above 0, however large it is. ``sweeps``: its own
        count of sweeps, in each of which its sequences grow.
        """
        here, placed = self._workers[worker], list[PlacedRequest]()
        here.ran(sweeps)
        while rows > 0 and (here.scanner.waiting or self._refilled(worker)):
            ahead, idle = here.scanner.peek(), here.idle
            if ahead is not None and self._choices[ahead] > rows and not idle:
                break
            here.free = positions
            admission = here.scanner.admit(positions)
            if admission is None:
                break
            request = admission.request
            self._begins(request, here)
            here.last[admission.side] = request
            placed.append(PlacedRequest(request, worker, admission.side, self._choices[request], admission.need))
            rows -= placed[-1].sequences
            positions -= admission.need
        here.full = here.scanner.waiting > 0
        return placed

    def finished(self, request: int, output_tokens: int, cached: int = 0) -> None:
        """Record a request that was answered, or failed for good (``output_tokens`` 0).

        ``cached``: prompt tokens found in a cache.
        """
        here = self._stopped(request, DONE)
        if here is not None:
            here.scanner.finished(request)
        if output_tokens:
            self._estimates.finished(request, output_tokens)
        self._samples.discard(request)
        self._account.ended(request, output_tokens, cached)

    def given_back(self, request: int) -> None:
        """Take back an unanswered request; it is placed again, first on its side if its worker is still here."""
        here = self._stopped(request, WAITING)
        self._given_back += 1
        self._account.stopped(request)
        if here is not None:
            here.scanner.retracted(request)
        elif self._workers:
            min(self._workers.values(), key=lambda worker: worker.left).scanner.returned("left", request)

    # order

    @property
    def stale(self) -> bool:
        """True if enough better knowledge than the order's has come: an errand orders again."""
        return not self._samples and (not self._order.informed or self._order.costs != self._costs) and self.waiting > 0

    def measured(self, found: Coefficients | None) -> None:
        """Take the measured costs of this machine. The first ones make the order stale, later ones do not.

        A fit to few sweeps may lack the terms that density needs, and is ignored.
        """
        if not self._knows_costs and found is not None and found.context > 0 and found.token + found.beyond > 0:
            self._costs, self._knows_costs = Costs.of_coefficients(found), True

    def errand(self) -> Callable[[], Arrangement] | None:
        """Return the next slow computation; None: there is none, or one is open.

        It may be called in another thread while the feed goes on; its result is for ``adopt``.
        """
        if self._started is not None:
            return None
        status, names = bytes(self._status), [*self._workers]
        made: Callable[[], Arrangement]
        if self.stale:
            made = arranging.ordering(self._ordering(), self._account, self._version, names, status)
        elif self._uncut and self._workers:
            made = self._cutting()
        elif self._halving is not None and self._workers.keys() >= {*self._halving}:
            made = self._halved(*self._halving)
        else:
            return None
        self._halving, self._started = None, set()
        return made

    def adopt(self, made: Arrangement) -> None:
        """Adopt the result of an errand; running and done requests stay so."""
        started, self._started = self._started or set(), None
        if made.order is not None and made.sums is not None:
            self._order = made.order
            self._account.estimated(made.order.work, made.sums)
            for worker in self._workers.values():
                worker.scanner.target = self._aim
        if made.version != self._version:
            self._recut()  # workers came or went meanwhile
            return
        gone = {one for one in started if made.cut[one] and self._status[one] != WAITING}
        for name, part in made.parts.items():
            worker = self._workers[name]
            worker.part = arranging.without(part.units, gone) if gone else part.units
            worker.scanner.replace(
                worker.part, first=[one for one in part.first if one not in gone], kept=lambda one: not made.cut[one]
            )
        self._version += 1
        self._uncut = self._uncut and {*made.parts} != {*self._workers}

    def settle(self) -> None:
        """Do all errands at once, for a small job."""
        while (errand := self.errand()) is not None:
            self.adopt(errand())

    # looking

    @property
    def waiting(self) -> int:
        """The number of requests that are neither done nor running."""
        return len(self._status) - self._account.done - self._running

    @property
    def over(self) -> bool:
        """True if every request is done."""
        return self._account.done == len(self._status)

    def progress(self, seconds: float) -> FeedProgress:
        """Return the progress. ``seconds``: how long this job has run here."""
        tree, account = self._tree, self._account
        return FeedProgress(
            total=len(self._status),
            done=account.done,
            running=self._running,
            sampled=self._sampled,
            sampling=bool(self._samples),
            prompt_tokens=tree.tokens,
            done_tokens=account.done_tokens,
            remaining_tokens=account.remaining_tokens,
            remaining_seconds=account.remaining_seconds(seconds),
            density=self._order.density,
            sharing=account.sharing,
            sharing_best=tree.sharing,
            given_back=self._given_back,
            sides={name: worker.scanner.use() for name, worker in self._workers.items()},
        )

    def check(self) -> None:
        """Raise AssertionError unless every waiting request, and no other, is in exactly one part."""
        waiting = [one for worker in self._workers.values() for one in worker.scanner.pending()]
        assert len(waiting) == len({*waiting}), "a request is in two parts"
        assert self._uncut or not self._workers or len(waiting) == self.waiting, "a request is in no part"
        assert all(self._status[one] == WAITING for one in waiting), "a request that does not wait is in a part"
        for worker in self._workers.values():
            worker.scanner.check()

    # parts of workers

    @property
    def _aim(self) -> float:
        return self._target or self._order.density

    def _ordering(self) -> Callable[[], JobOrder]:
        known, informed = self._estimates.fork(), not self._samples
        tree = self._tree
        costs = self._costs
        rules = self._rules
        memory = self._memory
        return lambda: arranging.first_order(tree, costs, known, rules, memory, informed=informed)

    def _recut(self) -> None:
        """Cut the waiting requests anew for the present workers."""
        self._version += 1
        self._uncut = True
        if self._workers and self.waiting <= FEW and self._started is None:
            self._at_once(self._cutting())

    def _cutting(self) -> Callable[[], Arrangement]:
        first = () if self._order.informed else self._samples
        return arranging.cutting(self._order, self._version, [*self._workers], bytes(self._status), first)

    def _at_once(self, errand: Callable[[], Arrangement]) -> None:
        self._started = set()
        self.adopt(errand())

    def _refilled(self, taker: str) -> bool:
        """Give a worker with nothing left half of what another has no room for: now, or soon by an errand."""
        if self._uncut or self._started is not None:
            return False
        full = {name: worker for name, worker in self._workers.items() if worker.full and name != taker}
        giver = max(full, key=lambda name: full[name].left, default=taker)
        if giver == taker or not full[giver].left:
            return False
        if full[giver].left > FEW:
            self._halving = giver, taker
            return False
        self._at_once(self._halved(giver, taker))
        return True

    def _halved(self, giver: str, taker: str) -> Callable[[], Arrangement]:
        full = self._workers[giver]
        return arranging.halving(
            self._order, self._version, giver, taker, full.part, full.scanner.ahead(), bytes(self._status)
        )  # fmt: skip

    # requests

    def _need_on(self, name: str) -> Callable[[int], float]:
        """Return a function for the positions of a request that would start on a worker; cached tokens take none."""

        def need(request: int) -> float:
            here = self._workers[name]
            held = max(round(here.scanner.memory - here.free), 0)
            new, more = self._length_on(here, request), round(self._estimates.output(request))
            return here.admission.need(new, more, held, here.sweeps, alone=here.idle)

        return need

    def _length_on(self, here: FedWorker, request: int) -> int:
        """Return the tokens of its prompt that are not in the cache."""
        return self._tree.length[request] - max((self._tree.shared(one, request) for one in here.last.values()), default=0)

    def _begins(self, request: int, here: FedWorker) -> None:
        """Record that a request is placed there."""
        self._status[request], self._where[request] = RUNNING, here
        self._running += 1
        self._account.began(request)
        here.admission.started(
            request, self._length_on(here, request), round(self._estimates.output(request)), here.sweeps
        )  # fmt: skip
        if self._started is not None:
            self._started.add(request)

    def _stopped(self, request: int, status: int) -> FedWorker | None:
        """Return the worker on which it ran, if that is here."""
        if self._status[request] != RUNNING:
            raise ValueError(f"request {request} of an offline job does not run")
        self._status[request] = status
        self._running -= 1
        if (here := self._where.pop(request, None)) is not None:
            here.admission.ended(request)
        return here


def _check(requests: Sequence[OfflineRequest]) -> None:
    if not requests:
        raise ValueError("an offline job has no requests; give at least one")
    for number, one in enumerate(requests):
        if not one.prompt or one.limit < 1 or one.choices < 1:
            raise ValueError(
                f"request {number} of an offline job has {len(one.prompt)} bytes of prompt, a limit of {one.limit} tokens "
                f"and {one.choices} choices; give at least one of each"
            )
