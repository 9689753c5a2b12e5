"""Forecasts of a request's first and last token at a worker, and of the delay it causes to others.

The worker is simulated with the request (``replay.py``), and without it for comparison. After Da and Kalyvianaki's Block,
whose predictor simulates the local scheduler; here it *is* the local scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..sweep.events import Submission
from .candidate import Forecast
from .lazy_replay import LazyReplay
from .lazy_replay_support import LazyReplayUnsupported
from .machines import LinkTimes
from .replay import MachineReplay
from .timeline import InFlightMessages, TimelineEntry

HORIZON = 50_000  # sweeps; a request that has not ended by then is forecast never to end
NEVER = float("inf")


class Forecaster:
    """Forecasts for one moment. For several requests, the course without them is simulated once.

    presents: the home, then the hosts of its routes, if any. in_flight: requests that were sent there and that its state
    does not show yet. now, links, under_way: as in ``MachineReplay``.
    """

    def __init__(
        self,
        presents: Sequence[TimelineEntry],
        now: float,
        *,
        in_flight: Sequence[Submission] = (),
        horizon: int = HORIZON,
        links: LinkTimes | None = None,
        under_way: Sequence[InFlightMessages] = (),
    ) -> None:
        self._presents = presents
        self._now = now
        self._in_flight = in_flight
        self._horizon = horizon
        self._links, self._under_way = links, under_way
        self._online = False  # offline sequences have been removed from ``presents``
        self._without: LazyReplay | MachineReplay | None = None
        self._played = 0  # sweeps for which it was simulated, if it had as many

    def fork(self) -> Forecaster:
        """Return the same on copies, to go on forecasting from here when its workers have moved on."""
        presents = [present.fork() for present in self._presents]
        links = None if self._links is None else self._links.fork()
        made = Forecaster(presents, self._now, horizon=self._horizon, links=links, under_way=self._under_way)
        return made.joined(self._in_flight)

    def joined(self, more: Sequence[Submission]) -> Forecaster:
        """Return the same with more requests in flight."""
        return Forecaster(
            self._presents, self._now, in_flight=[*self._in_flight, *more], horizon=self._horizon, links=self._links,
            under_way=self._under_way,
        )  # fmt: skip

    def forecast(self, target: Submission, *, delays: bool = True) -> Forecast:
        """Return the forecast for a request that arrives now. ``delays``: include the delay of others."""
        replay = self._play([*self._in_flight, target], target.request, self._horizon)
        timeline = replay.timeline
        last, spread = timeline.ends.get(target.request, NEVER), self._presents[0].spread
        if last == NEVER:
            return Forecast(NEVER, NEVER, 0.0, replay.preemptions, timeline.sweeps[-1], spread)
        first, delayed = timeline.first_tokens[target.request], self._delay(replay, target.request) if delays else 0.0
        return Forecast(first, last, delayed, replay.preemptions, timeline.sweeps[-1], spread)

    def _play(self, submissions: Sequence[Submission], request: str, sweeps: int) -> LazyReplay | MachineReplay:
        """Simulate: by lazy replay if possible, else by machine replay."""
        if not self._online:
            self._presents, self._online = [one.without_offline(self._now) for one in self._presents], True
        if len(self._presents) == 1:
            try:
                lazy = LazyReplay(self._presents[0], submissions, self._now)
                lazy.play(request, sweeps)
            except LazyReplayUnsupported:
                pass
            else:
                return lazy
        replay = MachineReplay(self._presents, submissions, self._now, self._links, self._under_way)
        replay.play(request, sweeps)
        return replay

    def _delay(self, replay: LazyReplay | MachineReplay, target: str) -> float:
        """Return the delay of the others: how much later ended ones end than without the request.

        Unfinished ones lag by the extra time of as many sweeps.
        """
        timeline, sweeps = replay.timeline, replay.timeline.sweeps[-1]
        if self._without is None or self._played < sweeps:
            self._played = max(sweeps, 2 * self._played)
            self._without = self._play(self._in_flight, "", self._played)
        without = self._without.timeline
        ended = [(at, without.ends[r]) for r, at in timeline.ends.items() if r != target and r in without.ends]
        lag = timeline.times[-1] - without.time_of(sweeps)
        return sum(max(0.0, at - before) for at, before in ended) + max(0.0, lag) * replay.present
