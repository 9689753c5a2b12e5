"""The account of an offline job: requests, tokens, estimated seconds of work, and sharing; done and left."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .order import Unit, Weigher
from .scanner import ScannerUse


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedProgress:
    """The progress of a job. Requests answered before it began here count in the totals and as done only."""

    total: int
    done: int
    running: int
    sampled: int  # requests whose lengths are sampled
    sampling: bool  # some of these are not done yet
    prompt_tokens: int  # of all requests
    done_tokens: int  # tokens of prompts and answers that ended here
    remaining_tokens: float  # estimated tokens of requests not done
    remaining_seconds: float | None  # None before any request has ended here
    density: float  # compute time by memory time of the whole job, by the estimates of its order
    sharing: float  # fraction of prompt tokens found in a cache, of requests that ended here
    sharing_best: float  # the same for all prompts on one worker, in depth-first order with endless memory
    given_back: int  # times a request was given back
    sides: Mapping[str, ScannerUse]  # by worker


@dataclass(frozen=True, slots=True)
class WorkEstimate:
    """Estimates by one order, by request: seconds of compute and memory time ('d'), and tokens of its answer ('d')."""

    seconds: array[float]
    outputs: array[float]

    @classmethod
    def of(cls, units: Iterable[Unit], weigher: Weigher) -> WorkEstimate:
        """Return the estimate for requests in the order of their units.

        Tokens shared with the one before are not its work.
        """
        seconds, before = array("d", bytes(8 * weigher.tree.count)), -1
        for unit in units:
            for request in unit.requests:
                seconds[request] = weigher.comp(request, before) + weigher.mem(request)
                before = request
        return cls(seconds, array("d", weigher.outputs))


@dataclass(frozen=True, slots=True)
class WorkSums:
    """Sums: seconds of the first ``ended`` ended requests; seconds and tokens of those not done."""

    ended: int
    worked: float
    left: float
    tokens: float


class JobAccount:
    """Sums over a job, each request in O(1). lengths: tokens of prompts. known: requests that are done already."""

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
        """Return a function that sums all work by an estimate, as things stand now: slow, and callable in another thread."""
        lengths = self._lengths
        is_open = bytes(self._open)
        ended = [*self._ended]

        def sums(estimate: WorkEstimate) -> WorkSums:
            seconds, outputs = estimate.seconds, estimate.outputs
            still = [request for request, one in enumerate(is_open) if one]
            worked = sum(seconds[request] for request in ended)
            left = sum(seconds[request] for request in still)
            return WorkSums(len(ended), worked, left, sum(lengths[request] + outputs[request] for request in still))

        return sums

    def estimated(self, estimate: WorkEstimate, sums: WorkSums) -> None:
        """Count all work by this estimate from now on, including done work."""
        self._estimate = estimate
        self._worked = sums.worked
        self._left = sums.left
        self._tokens = sums.tokens
        for request in self._ended[sums.ended :]:
            self._counts(request)
        self._begun = sum(estimate.seconds[request] for request in self._running)

    def began(self, request: int) -> None:
        """Record that a request runs."""
        self._running.add(request)
        if self._estimate is not None:
            self._begun += self._estimate.seconds[request]

    def stopped(self, request: int) -> None:
        """Record that a request runs no more."""
        self._running.remove(request)
        if self._estimate is not None:
            self._begun -= self._estimate.seconds[request]

    def ended(self, request: int, output_tokens: int, cached: int) -> None:
        """Record that a running request is done."""
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
        """The number of done requests, including those done before."""
        return self._known + len(self._ended)

    @property
    def remaining_tokens(self) -> float:
        """The tokens of prompts and answers that are left."""
        return max(self._tokens, 0.0) if self.done < len(self._open) else 0.0  # sums of fractions leave crumbs

    def remaining_seconds(self, seconds: float) -> float | None:
        """Return the remaining seconds at the rate of the ``seconds`` so far; None before any request is done.

        On average, running requests are half done. Otherwise all that began first would count as no work until it ends.
        """
        if self.done == len(self._open):
            return 0.0
        half = max(self._begun, 0.0) / 2.0
        return seconds * max(self._left - half, 0.0) / (self._worked + half) if self._worked else None

    @property
    def sharing(self) -> float:
        """The sharing so far, see ``FeedProgress``."""
        return self._cached / self._prompts if self._prompts else 0.0
