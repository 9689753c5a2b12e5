"""The standing of a route for one request: the estimate of its latency there, and what goes before the estimate.

The estimate is the one of BlockLLM: T_queue + T_compute + T_transfer, in seconds where the paces of workers are known, else
in tokens. A route in force is loaded, so nothing is added for loading. Gateways, dispatchers and the simulator compare
routes by ``Standing.key``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..model.chain import Route
from .paces import Paces, WorkerLink

OWNED = 0.5  # part of a request's tokens whose KV a route must hold to go before all others
NUMBER = 4  # bytes of a number of a hidden state

EQUAL = Paces()
Key = tuple[int, bool, int, int, bool, tuple[float, ...], bool, bool, bool]


def queue_time(workers: Sequence[str], work: Mapping[str, int], paces: Paces = EQUAL) -> float:
    """Return the time of the tokens ahead, in tokens of the fastest worker.

    In a pipeline each worker computes a part of every token. Its work is therefore divided by the number of workers;
    otherwise it would get the load of one replica.
    """
    if not paces.slower:
        return sum([work.get(worker, 0) for worker in workers]) / len(workers) ** 2
    return sum([work.get(worker, 0) * paces.of(worker) for worker in workers]) / len(workers) ** 2


def compute_time(workers: Sequence[str], tokens: int, paces: Paces) -> float:
    """Return the time of a request's own tokens, in tokens of the fastest worker."""
    return tokens * sum([paces.of(worker) for worker in workers]) / len(workers)


def transfer_time(hops: int, tokens: int, width: int, link: WorkerLink | None) -> float:
    """Return the seconds for which hidden states of ``tokens`` tokens are on their way between workers; 0: unknown."""
    return 0.0 if link is None else (hops - 1) * link.seconds(tokens * width * NUMBER)


@dataclass(frozen=True, slots=True)
class RouteEstimate:
    """The estimated latency of a request on a route. first: of ``compute`` until its first token.

    exact: in seconds; otherwise in tokens. load: until its chain is loaded, if it is on demand.
    """

    queue: float
    compute: float
    first: float
    transfer: float = 0.0
    exact: bool = True
    load: float = 0.0

    @property
    def start(self) -> float:
        """The time until its first token."""
        return self.load + self.queue + self.first + self.transfer

    @property
    def total(self) -> float:
        """The time until its last token, if its answer is as long as it may be."""
        return self.load + self.queue + self.compute + self.transfer


@dataclass(frozen=True, slots=True)
class Standing:
    """The standing of a route (see the module).

    short: tokens that its memory lacks. rank: place in the order of accuracy, 0 for the listed chain and its equals.
    late: it breaks the request's target. owns: it holds KV of the prompt. near: the request was on its worker last.
    """

    short: int = 0
    rank: int = 0
    detour: int = 0
    late: bool = False
    owns: bool = False
    near: bool = False
    stands_in: bool = False

    def key(self, load: tuple[float, ...]) -> Key:
        """Return what routes are compared by, the least first, given the load of this one.

        Memory goes first. A less accurate chain follows all more accurate ones that have room and keep the target. Then goes
        the owner of KV, then the least load; ties go to the owner, the same worker, and the listed chain.
        """
        poor = self.short > 0 or self.late
        rank = 0 if poor else self.rank
        loaded = (not self.owns or poor, load, not self.owns, not self.near, self.stands_in)
        return self.short, poor, rank, self.detour, *loaded


@dataclass(frozen=True, slots=True)
class RouteView:
    """The facts about one request and the workers on which the standings of routes depend, besides work and memory.

    known: tokens that it has. left: most tokens that it still gets. cached: route id -> leading tokens whose KV is there.
    ranks: application -> place in the order of accuracy. sizes: application -> (bytes of parameters, width of a hidden
    state). near: worker of its last attempt. target: seconds to the first token; 0: none.
    """

    known: int = 0
    left: int = 0
    paces: Paces = field(default_factory=Paces)
    cached: Mapping[str, int] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    near: str = ""
    target: float = 0.0
    link: WorkerLink | None = None

    def estimate(self, route: Route, workers: Sequence[str], work: Mapping[str, int]) -> RouteEstimate:
        """Return the estimated latency on a route with this work on its workers."""
        nbytes, width = self.sizes.get(route.application, (0, 0))
        unit = self.paces.seconds(nbytes)
        missing = self.known - self.cached.get(route.id, 0)
        queue, first = queue_time(workers, work, self.paces), compute_time(workers, missing, self.paces)
        compute = first + compute_time(workers, self.left, self.paces)
        if not unit:
            return RouteEstimate(queue, compute, first, exact=False)
        transfer = transfer_time(len(workers), missing, width, self.link)
        return RouteEstimate(unit * queue, unit * compute, unit * first, transfer)

    def once_loaded(self, application: str, seconds: float) -> RouteEstimate | None:
        """Return the estimate of a chain that is loaded in ``seconds``, with nothing ahead; None: no pace is known."""
        unit = self.paces.seconds(self.sizes.get(application, (0, 0))[0])
        first = unit * self.known
        return RouteEstimate(0.0, first + unit * self.left, first, load=seconds) if unit else None

    def standing(self, route: Route, short: int, detour: int, estimate: RouteEstimate, stands_in: bool) -> Standing:
        """Return the standing of a route; the other arguments are as in ``Standing``."""
        cached = self.cached.get(route.id, 0)
        late = bool(self.target and estimate.exact and estimate.start > self.target)
        return Standing(
            short, self.ranks.get(route.application, 0), detour, late, cached > 0 and cached >= OWNED * self.known,
            self.near == route.home, stands_in,
        )  # fmt: skip
