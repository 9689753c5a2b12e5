"""A worker as a place for one request: what is known of its load, and what was forecast for the request there."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Forecast:
    """What would come of a request at a worker. Seconds from the state that the forecast began with.

    Infinite times: the request does not end within the forecast's horizon, or can never run there.
    """

    first_token: float
    last_token: float
    delayed: float  # seconds that others there would lose by it, summed over them
    preemptions: int  # until its last token
    sweeps: int  # the same
    spread: float = 0.0  # how wrong the estimates of lengths were there (``LengthSpread``); 0: not known yet


@dataclass(slots=True, kw_only=True)  # not frozen: made for each instance and request, and freezing would double that time
class Candidate:
    """A route and the load of its home. A block is a page of KV: ``block`` tokens on all layers of the route's home."""

    route: str  # id
    home: str  # worker
    running: int = 0  # sequences
    waiting: int = 0  # sequences, those in flight included
    free_blocks: int = 0
    total_blocks: int = 0
    waiting_blocks: int = 0  # that the prompts of waiting sequences need
    sent_last_minute: int = 0  # requests that this dispatcher sent there in the last 60 s
    cached_blocks: int = 0  # of this request's prompt, in the worker's prefix cache
    in_flight: int = 0  # requests sent there that the figures above have only because the dispatcher told of them
    forecast: Forecast | None = None  # None: not asked for, or no answer

    @property
    def used_blocks(self) -> int:
        return self.total_blocks - self.free_blocks

    def of_one(self, workers: int) -> Candidate:
        """As one of the workers of a pipeline bears it, each of which has a part of every block. So a pipeline is compared
        with a replica: by what a block takes of a worker, not by how many of these small ones it has."""
        if workers == 1:
            return self
        return replace(
            self, free_blocks=self.free_blocks // workers, total_blocks=self.total_blocks // workers,
            waiting_blocks=self.waiting_blocks // workers, cached_blocks=self.cached_blocks // workers,
            sent_last_minute=self.sent_last_minute // workers,
        )  # fmt: skip
