"""What of an offline job is done and what is left: requests, tokens, seconds of work by estimate, sharing."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .order import Unit, Weigher
from .scanner import ScannerUse


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedProgress:
    """How far a job is. Requests that were answered before it began here count as done, and in nothing else but totals."""

    total: int
    done: int
    running: int
    sampled: int  # requests whose lengths are sampled
    sampling: bool  # not all of these are done yet
    prompt_tokens: int  # of all requests
    done_tokens: int  # of the prompts and answers of those that ended here
    remaining_tokens: float  # of those that are not done, estimated
    remaining_seconds: float | None  # None before anything has ended here
    density: float  # compute by memory time of the whole job, by the estimates of its order
    sharing: float  # of the prompts of requests that ended here, the share that was found in a cache
    sharing_best: float  # of all prompts, what is found on one worker in depth-first order with endless memory
    given_back: int  # times that a request was given back
    sides: Mapping[str, ScannerUse]  # by worker


@dataclass(frozen=True, slots=True)
class WorkEstimate:
    """By request: seconds of compute and memory time ('d'), tokens of its answer ('d'), as one order sees them."""

    seconds: array[float]
    outputs: array[float]

    @classmethod
    def of(cls, units: Iterable[Unit], weigher: Weigher) -> WorkEstimate:
        """Of requests in the order of their units; what a request shares with the one before is not its work."""
        seconds, before = array("d", bytes(8 * weigher.tree.count)), -1
        for unit in units:
            for request in unit.requests:
                seconds[request] = weigher.comp(request, before) + weigher.mem(request)
                before = request
        return cls(seconds, array("d", weigher.outputs))


@dataclass(frozen=True, slots=True)
class WorkSums:
    """Of the first ``ended`` requests that ended their seconds; of those that are not done seconds and tokens."""

    ended: int
    worked: float
    left: float
    tokens: float


class JobAccount:
    """Sums over a job, each request in O(1). ``lengths``: tokens of prompts; ``known``: requests that are done already."""

    def __init__(self, lengths: Sequence[int], known: Iterable[int]) -> None:
        self._lengths = lengths
        self._open = bytearray(b"\1" * len(lengths))
        for request in known:
            self._open[request] = 0
        self._ended: list[int] = []  # here
        self._known = len(lengths) - sum(self._open)
        self._running: set[int] = set()
        self.done_tokens = 0
        self._prompts = self._cached = 0  # tokens of the requests that ended here
        self._worked = self._left = self._tokens = self._begun = 0.0
        self._estimate: WorkEstimate | None = None

    def summing(self) -> Callable[[WorkEstimate], WorkSums]:
        """How to count all work by an estimate, as things stand now: takes long, and may be called in another thread."""
        lengths, is_open, ended = self._lengths, bytes(self._open), [*self._ended]

        def sums(estimate: WorkEstimate) -> WorkSums:
            seconds, outputs = estimate.seconds, estimate.outputs
            still = [request for request, one in enumerate(is_open) if one]
            worked = sum(seconds[request] for request in ended)
            left = sum(seconds[request] for request in still)
            return WorkSums(len(ended), worked, left, sum(lengths[request] + outputs[request] for request in still))

        return sums

    def estimated(self, estimate: WorkEstimate, sums: WorkSums) -> None:
        """From now on work is counted so, what is done included."""
        self._estimate = estimate
        self._worked, self._left, self._tokens = sums.worked, sums.left, sums.tokens
        for request in self._ended[sums.ended :]:
            self._counts(request)
        self._begun = sum(estimate.seconds[request] for request in self._running)

    def began(self, request: int) -> None:
        """It runs."""
        self._running.add(request)
        if self._estimate is not None:
            self._begun += self._estimate.seconds[request]

    def stopped(self, request: int) -> None:
        """It runs no more."""
        self._running.remove(request)
        if self._estimate is not None:
            self._begun -= self._estimate.seconds[request]

    def ended(self, request: int, output_tokens: int, cached: int) -> None:
        """A request that ran is done."""
        self.stopped(request)
        self._open[request] = 0
        self._ended.append(request)
        self.done_tokens += self._lengths[request] + output_tokens
        self._prompts += self._lengths[request]
        self._cached += cached
        self._counts(request)

    def _counts(self, request: int) -> None:
        if self._estimate is not None:
            self._worked += self._estimate.seconds[request]
            self._left -= self._estimate.seconds[request]
            self._tokens -= self._lengths[request] + self._estimate.outputs[request]

    @property
    def done(self) -> int:
        """Requests, those that were done before included."""
        return self._known + len(self._ended)

    @property
    def remaining_tokens(self) -> float:
        """Of prompts and answers."""
        return max(self._tokens, 0.0) if self.done < len(self._open) else 0.0  # sums of fractions leave crumbs

    def remaining_seconds(self, seconds: float) -> float | None:
        """If work goes on as fast as in the ``seconds`` so far; None before any is done. Of what runs half is done, in the
        mean: without it, all that began first would count as no work until it ends."""
        if self.done == len(self._open):
            return 0.0
        half = max(self._begun, 0.0) / 2.0
        return seconds * max(self._left - half, 0.0) / (self._worked + half) if self._worked else None

    @property
    def sharing(self) -> float:
        """See ``FeedProgress``."""
        return self._cached / self._prompts if self._prompts else 0.0
