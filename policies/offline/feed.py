"""One offline job on several workers: which request goes to which worker next, and on which side of its scanner.

First the requests whose output lengths are sampled run, and their answers are kept ("BlendServe", section "output length
sampling"; our resolution of it is decision 47). What they tell orders the rest: one list of units by density, cut into a part
for each worker, a dual scanner over each part. Meanwhile the room that samples leave is filled by an order over the limits.
Workers join and end at any time, a worker whose part is empty takes from the fullest one, and a request that was given back
comes first on its side again.

A machine of events: the caller owns time, messages and answers, and nothing here is random. Requests are numbers, from 0 in
the caller's order; positions are tokens' KV.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from blockwright.policies.offline.density import Costs

Side = Literal["left", "right"]  # compute-heavy, memory-heavy


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineRequest:
    """What the order knows of a request. ``prompt``: token ids, four bytes each, big endian (``prefix_tree.packed``);
    ``limit``: new tokens at most, of all choices together; ``choices``: sequences that answer it."""

    prompt: bytes
    limit: int
    choices: int = 1
    estimate: float = 0.0  # new tokens that an estimator (the tagger) expects; 0: it said nothing


@dataclass(frozen=True, slots=True)
class Placed:
    """A request that is to be sent now. ``side``: the account that its pages count to."""

    request: int
    worker: str
    side: Side


@dataclass(frozen=True, slots=True, kw_only=True)
class SideUse:
    """Positions of KV of a worker's two sides, as the scanner counts them (estimates), and what they may hold."""

    left: float
    right: float
    left_most: float
    right_most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedProgress:
    """How far a job is. Tokens count a prompt in full; ``sharing`` is of prompt tokens."""

    total: int
    done: int
    running: int
    sampled: int  # requests whose lengths are sampled
    sampling: bool  # not all of these are done yet
    prompt_tokens: int  # of all requests
    done_tokens: int  # of requests that are done, prompts and answers
    remaining_tokens: float  # of the others, estimated
    remaining_seconds: float | None  # None before anything is done
    density: float  # rho of the whole job, by the estimates of its order
    sharing: float  # of the prompts of requests that ended here, found in a cache
    sharing_best: float  # of all prompts, what depth-first order on one worker with endless memory would find
    given_back: int  # requests that a worker gave back, often counted
    sides: Mapping[str, SideUse]  # by worker


class OfflineFeed:
    """See the module.

    ``draws``: for each request a number from 0 to 1, drawn evenly; those below ``share`` are sampled, and where a child of the
    root with many requests has none, its smallest. ``known``: new tokens of requests that are answered already (a job that
    goes on after a restart); these are never placed. ``target``: density that each worker aims for; 0: the job's own.

    Making one and ``reorder`` cost seconds for a hundred thousand requests, every other call microseconds: make it in a
    thread. Raises ValueError for no requests, an empty prompt or a limit below 1, with the number of the request.
    """

    def __init__(
        self,
        requests: Sequence[OfflineRequest],
        costs: Costs,
        *,
        draws: Sequence[float],
        share: float = 0.01,
        known: Mapping[int, int] | None = None,
        target: float = 0.0,
    ) -> None: ...

    # workers

    def joined(self, worker: str, positions: int) -> None:
        """It can be given requests; ``positions``: KV that it holds for this job at most. What was not placed yet is cut
        anew among all workers. A worker that is here already only changes its positions."""

    def ended(self, worker: str) -> None:
        """It takes nothing more, and its part goes to the others (kept, while there are none). What runs there runs on for
        the gateway, which starts it again elsewhere; or the caller tells ``given_back``."""

    # requests

    def take(self, worker: str, rows: int, positions: int) -> list[Placed]:
        """What the worker is to run now besides what it runs: at most so many sequences, and positions by estimate. A worker
        with nothing else to run always gets one request where ``rows`` is above 0, however long it is. Empty: nothing fits
        now, or nothing is left."""

    def finished(self, request: int, output_tokens: int, cached: int = 0) -> None:
        """It was answered, or failed for good (``output_tokens`` 0 then). ``cached``: prompt tokens found in a cache."""

    def given_back(self, request: int) -> None:
        """It was not answered, and is placed again: first on its side."""

    # order

    @property
    def stale(self) -> bool:
        """The samples are done and the order does not know them yet: call ``reorder`` when convenient."""
        return False

    def reorder(self) -> None:
        """Order what was not placed by what is known now. Costs seconds for a hundred thousand requests."""

    # looking

    @property
    def left(self) -> int:
        """Requests that are neither done nor running."""
        return 0

    @property
    def over(self) -> bool:
        """Every request is done."""
        return False

    def progress(self, seconds: float) -> FeedProgress:
        """``seconds``: for which this job has run here."""
        raise NotImplementedError
