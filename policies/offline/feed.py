"""One offline job on several workers: which request goes to which worker next, and on which side of its scanner.

After BlendServe (sections on sampling, the dual scanner and data parallelism). First the requests whose output lengths are
sampled run, and their answers are kept. What they tell orders the rest: one list of units by density, cut into a part for
each worker, a dual scanner over each part. Until then an order by limits fills the room that samples leave. Workers join and
end at any time; one whose part is empty takes half of the fullest; a request that was given back is the first on its side.

A machine of events: the caller owns time, messages and answers, and nothing here is random. Requests are numbers, from 0 in
the caller's order; positions are tokens' KV.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from blockwright.policies.offline.density import Costs
from blockwright.policies.offline.estimates import PROBABILITY, Estimates, choose_samples
from blockwright.policies.offline.job_account import FeedProgress, JobAccount, SideUse, WorkEstimate
from blockwright.policies.offline.order import OrderRules, Unit, Weigher, density_order
from blockwright.policies.offline.parts import cut, remaining
from blockwright.policies.offline.prefix_tree import PrefixTree
from blockwright.policies.offline.scanner import DualScanner, Side

RULES = OrderRules()
_WAITING, _RUNNING, _DONE = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineRequest:
    """What the order knows of a request. ``prompt``: token ids as ``prefix_tree.packed`` makes them; ``limit``: new tokens
    at most, of all choices together; ``choices``: sequences that answer it; ``hint``: new tokens that a tagger expects, if
    it knows."""

    prompt: bytes
    limit: int
    choices: int = 1
    hint: float = 0.0


@dataclass(frozen=True, slots=True)
class PlacedRequest:
    """A request that is to be sent now, as so many sequences, which need so many positions more than are there by estimate.
    ``side``: the account that its pages count to."""

    request: int
    worker: str
    side: Side
    sequences: int
    positions: float


@dataclass(frozen=True, slots=True)
class JobOrder:
    """All requests in units by density; what they are worth. ``informed``: by the lengths of all samples."""

    units: list[Unit]
    work: WorkEstimate
    density: float
    costs: Costs
    informed: bool


class _Worker:
    """``part``: what its scanner was given; ``after``: what it is given when that is empty; ``last``: what was taken last on
    each side, as what shares a prefix with it finds that in the cache; ``full``: it had no room for what it has left."""

    __slots__ = ("after", "full", "last", "part", "scanner")

    def __init__(self, scanner: DualScanner) -> None:
        self.scanner = scanner
        self.part: list[Unit] = []
        self.after: list[Unit] = []
        self.last: dict[Side, int] = {}
        self.full = False


class OfflineFeed:
    """See the module.

    ``draws``: for each request a number from 0 to 1, drawn evenly; those below ``share`` are sampled, see
    ``choose_samples``. ``known``: new tokens of requests that were answered already (a job that goes on after a restart);
    these are never placed. ``rules``: of the order. ``memory``: positions of KV of one worker, which bound the size of units
    (0: nothing does). ``target``: density that each worker aims for; 0: the job's own.

    Making one, ``ordering`` and ``joined`` cost seconds for a hundred thousand requests, every other call microseconds: make
    it in a thread. Raises ValueError for no requests, an empty prompt or a limit below 1, with the number of the request.
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
        self._costs, self._rules, self._memory, self._target = costs, rules, memory, target
        self._knows_costs = False
        self._tree = PrefixTree([one.prompt for one in requests])
        hints = [one.hint or one.limit for one in requests] if any(one.hint for one in requests) else ()
        self._estimates = Estimates(self._tree, [one.limit for one in requests], hints=hints)
        self._choices = array("I", (one.choices for one in requests))
        self._status = bytearray(len(requests))
        for request, tokens in (known or {}).items():
            self._status[request] = _DONE
            self._estimates.finished(request, tokens)
        self._account = JobAccount(self._tree.length, known or ())
        drawn = choose_samples(self._tree, draws, share) if share else []
        self._sampled, self._samples = len(drawn), {one for one in drawn if self._status[one] == _WAITING}
        self._workers: dict[str, _Worker] = {}
        self._where: dict[int, _Worker] = {}  # of those that run on a worker that is here
        self._running = self._given_back = 0
        self._adopt(self.ordering()(), first=self._samples)

    # workers

    def joined(self, worker: str, positions: int) -> None:
        """It can be given requests; ``positions``: KV that it holds for this job at most. What was not placed yet is cut
        anew among all workers. A worker that is here already only changes its positions."""
        if worker in self._workers:
            self._workers[worker].scanner.resize(positions)
            return
        made = _Worker(DualScanner([], self._need_on(worker), positions, self._aim))
        self._workers[worker] = made
        self._share_out()

    def ended(self, worker: str) -> None:
        """It takes nothing more, and its part goes to the others (it is kept, while there are none). What runs there goes on
        elsewhere, or the caller tells of ``given_back``."""
        gone = self._workers.pop(worker)
        for request in [one for one, where in self._where.items() if where is gone]:
            del self._where[request]
        self._share_out()

    @property
    def workers(self) -> frozenset[str]:
        """Those that joined and did not end."""
        return frozenset(self._workers)

    # requests

    def take(self, worker: str, rows: int, positions: float) -> list[PlacedRequest]:
        """What the worker is to run now besides what it runs: at most so many sequences, and positions by estimate. A worker
        on which nothing of this job runs gets one request where ``rows`` is above 0, however large it is."""
        here, placed = self._workers[worker], list[PlacedRequest]()
        while rows > 0 and (here.scanner.waiting or self._refilled(here)):
            ahead = here.scanner.peek()
            idle = not (here.scanner.running("left") or here.scanner.running("right"))
            if ahead is not None and self._choices[ahead] > rows and not idle:
                break
            admission = here.scanner.admit(positions)
            if admission is None:
                break
            request = admission.request
            here.last[admission.side] = request
            self._status[request], self._where[request] = _RUNNING, here
            self._running += 1
            placed.append(PlacedRequest(request, worker, admission.side, self._choices[request], admission.need))
            rows -= placed[-1].sequences
            positions -= admission.need
        here.full = _left(here) > 0
        return placed

    def finished(self, request: int, output_tokens: int, cached: int = 0) -> None:
        """It was answered, or failed for good (``output_tokens`` is 0 then). ``cached``: prompt tokens found in a cache."""
        self._stopped(request, _DONE)
        here = self._where.pop(request, None)
        if here is not None:
            here.scanner.finished(request)
        if output_tokens:
            self._estimates.finished(request, output_tokens)
        self._samples.discard(request)
        self._account.ended(request, output_tokens, cached)

    def given_back(self, request: int) -> None:
        """It was not answered, and is placed again: first on its side, where its worker is still here."""
        self._stopped(request, _WAITING)
        self._given_back += 1
        here = self._where.pop(request, None)
        if here is not None:
            here.scanner.retracted(request)
            return
        if self._workers:
            least = min(self._workers.values(), key=_left)
            self._give(least, [self._weigher.unit([request]), *self._rest(least)])

    # order

    @property
    def stale(self) -> bool:
        """There is better knowledge than the order has, and enough of it: order again when convenient."""
        return not self._samples and (not self._order.informed or self._order.costs != self._costs) and self.waiting > 0

    def measured(self, costs: Costs) -> None:
        """What this machine takes, as it has been measured. The first such news make the order stale, later ones do not."""
        if not self._knows_costs:
            self._costs, self._knows_costs = costs, True

    def ordering(self) -> Callable[[], JobOrder]:
        """Makes an order by what is known now: may be called in another thread, while this machine goes on."""
        tree, costs, rules, memory = self._tree, self._costs, self._rules, self._memory
        outputs, informed = self._estimates.outputs(), not self._samples

        def made() -> JobOrder:
            weigher = Weigher(tree, costs, outputs)
            units = density_order(weigher, rules, memory)
            work = WorkEstimate.of(units, weigher)
            return JobOrder(units, work, weigher.whole().rho, costs, informed)

        return made

    def adopt(self, order: JobOrder) -> None:
        """Give every worker its part of a new order; what runs and what is done stays so."""
        self._adopt(order, first=())

    def reorder(self) -> None:
        """Both at once, where a job is small."""
        self.adopt(self.ordering()())

    # looking

    @property
    def waiting(self) -> int:
        """Requests that are neither done nor running."""
        return len(self._status) - self._account.done - self._running

    @property
    def over(self) -> bool:
        """Every request is done."""
        return self._account.done == len(self._status)

    def progress(self, seconds: float) -> FeedProgress:
        """``seconds``: for which this job has run here."""
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
            sides={name: _use(worker.scanner) for name, worker in self._workers.items()},
        )

    def check(self) -> None:
        """Raises AssertionError unless every request that waits is in one part, and nothing else is."""
        waiting = [one for worker in self._workers.values() for one in worker.scanner.pending()]
        waiting += [one for worker in self._workers.values() for one in _requests(worker.after)]
        assert not self._workers or len(waiting) == len({*waiting}) == self.waiting, "a request is in no part, or in two"
        assert all(self._status[one] == _WAITING for one in waiting), "a request that does not wait is in a part"
        for worker in self._workers.values():
            worker.scanner.check()

    # parts of workers

    @property
    def _aim(self) -> float:
        return self._target or self._order.density

    def _adopt(self, order: JobOrder, first: Collection[int]) -> None:
        """``first``: requests that every worker takes before the others."""
        self._order, self._first = order, first
        self._weigher = Weigher(self._tree, order.costs, order.work.outputs)
        self._account.estimated(order.work)
        for worker in self._workers.values():
            worker.scanner.target = self._aim
        self._share_out()

    def _share_out(self) -> None:
        """What nobody runs, to all workers alike: parts that their scanners read now, and those that they read then."""
        if not self._workers:
            return
        waiting = {one for one, status in enumerate(self._status) if status == _WAITING}
        early = waiting.intersection(self._first)
        parts, afters = (self._cut(waiting & early), self._cut(waiting - early))
        if not early:
            parts, afters = afters, parts
        for worker, part, after in zip(self._workers.values(), parts, afters, strict=True):
            self._give(worker, part)
            worker.after = after

    def _cut(self, requests: set[int]) -> list[list[Unit]]:
        """In the order of the whole, which keeps neighbours together, a part for each worker."""
        units = self._weigher.units([one for one in unit.requests if one in requests] for unit in self._order.units)
        return cut(units, len(self._workers), self._weigher) if units else [[] for _ in self._workers]

    def _give(self, worker: _Worker, part: list[Unit]) -> None:
        worker.part = part
        worker.scanner.replace(part)

    def _rest(self, worker: _Worker) -> list[Unit]:
        """Of what its scanner reads."""
        waiting = {*worker.scanner.pending()}
        back = waiting.difference(_requests(worker.part))  # ran when the part was made
        gone = {*_requests(worker.part)} - waiting
        return [*map(self._weigher.unit, ([one] for one in sorted(back))), *remaining(worker.part, gone, self._weigher)]

    def _refilled(self, worker: _Worker) -> bool:
        """Give a worker whose scanner is at its end what it reads then, or half of what another one has no room for."""
        if worker.after:
            self._give(worker, worker.after)
            worker.after = []
            return True
        fullest = max((one for one in self._workers.values() if one.full), key=_left, default=worker)
        if not _left(fullest):
            return False
        kept, taken = cut(fullest.after or self._rest(fullest), 2, self._weigher)
        if not taken:
            kept, taken = taken, kept  # there is but one request
        if fullest.after:
            fullest.after = kept
        else:
            self._give(fullest, kept)
        self._give(worker, taken)
        return True

    def _need_on(self, name: str) -> Callable[[int], float]:
        """Positions of a request that would start on a worker: what it finds in the cache takes no more, and its answer is
        half as long as it will be, in the mean."""

        def need(request: int) -> float:
            last = self._workers[name].last
            found = max((self._tree.shared(one, request) for one in last.values()), default=0)
            return self._tree.length[request] - found + self._estimates.output(request) / 2.0

        return need

    def _stopped(self, request: int, status: int) -> None:
        if self._status[request] != _RUNNING:
            raise ValueError(f"request {request} of an offline job does not run")
        self._status[request] = status
        self._running -= 1


def _check(requests: Sequence[OfflineRequest]) -> None:
    if not requests:
        raise ValueError("an offline job has no requests; give at least one")
    for number, one in enumerate(requests):
        if not one.prompt or one.limit < 1 or one.choices < 1:
            raise ValueError(
                f"request {number} of an offline job has {len(one.prompt)} bytes of prompt, a limit of {one.limit} tokens "
                f"and {one.choices} choices; give at least one of each"
            )


def _requests(units: Iterable[Unit]) -> list[int]:
    return [request for unit in units for request in unit.requests]


def _left(worker: _Worker) -> int:
    return worker.scanner.waiting + sum(len(unit.requests) for unit in worker.after)


def _use(scanner: DualScanner) -> SideUse:
    use = scanner.use()
    return SideUse(
        left=use.left,
        right=use.right,
        left_most=use.left_most,
        right_most=use.right_most,
        left_running=use.left_running,
        right_running=use.right_running,
    )
