"""Candidates of a dispatch: a worker with its load, and the forecast for a request there."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast for a request at a worker, in seconds from the state with which the forecast began.

    Infinite times: the request does not end within the forecast's horizon, or can never run there.
    """

    first_token: float
    last_token: float
    delayed: float  # seconds that others there would lose by it, in total
    preemptions: int  # until its last token
    sweeps: int  # until its last token
    spread: float = 0.0  # error of length estimates there (``LengthSpread``); 0: not known yet


@dataclass(slots=True, kw_only=True)  # not frozen: made for each instance and request, and freezing would double the time
class Candidate:
    """A route and the load of its home. A block is a page of KV: ``block`` tokens on all layers of the route's home."""

    route: str  # id
    home: str  # worker
    running: int = 0  # sequences
    waiting: int = 0  # sequences, including those in flight
    free_blocks: int = 0
    total_blocks: int = 0
    waiting_blocks: int = 0  # blocks that the prompts of waiting sequences need
    sent_last_minute: int = 0  # requests that this dispatcher sent there in the last 60 s
    cached_blocks: int = 0  # blocks of this request's prompt in the worker's prefix cache
    in_flight: int = 0  # requests counted above only because the dispatcher reported them
    forecast: Forecast | None = None  # None: not requested, or no answer

    @property
    def used_blocks(self) -> int:
        return self.total_blocks - self.free_blocks

    @property
    def idle(self) -> bool:
        """True if no sequence runs or waits there, as far as is known."""
        return not (self.running or self.waiting)

    def of_one(self, workers: int) -> Candidate:
        """Return the load of one of a pipeline's workers, each of which has a part of every block.

        So a pipeline is compared with a replica by what a block takes of a worker, not by its number of small blocks.
        """
        if workers == 1:
            return self
        return replace(
            self, free_blocks=self.free_blocks // workers, total_blocks=self.total_blocks // workers,
            waiting_blocks=self.waiting_blocks // workers, cached_blocks=self.cached_blocks // workers,
            sent_last_minute=self.sent_last_minute // workers,
        )  # fmt: skip
