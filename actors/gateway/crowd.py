"""Whether the gateway has all the requests that it takes, and when it will not.

Owns the two limits and the pace at which requests end. A refusal tells the client when its turn would come, so that a crowd
that comes back does not come back at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from blockwright.actors.gateway.messages import Fail
from blockwright.actors.gateway.port import Generation
from blockwright.actors.gateway.record import Record
from blockwright.policies.forecast import Pace


class Crowd:
    """``requests`` at most, and ``tokens`` still to compute at most (0: no limit): this gateway's share of the settings."""

    def __init__(self, requests: int, tokens: int) -> None:
        self._requests, self._tokens = requests, tokens
        self.pace = Pace()

    def refusal(self, wanted: Generation, active: Mapping[str, Record], waiting: int, now: float) -> Fail | None:
        """A 503 for ``wanted``, or None where there is room. A server with nothing to do takes whatever comes."""
        if len(active) >= self._requests:
            return self._full(wanted.id, f"{len(active)} requests, its limit", waiting, now)
        if not self._tokens or not active:
            return None
        work = sum(record.cost() for record in active.values())
        if work + len(wanted.prompt) + wanted.max_tokens <= self._tokens:
            return None
        return self._full(wanted.id, f"{work} tokens to compute and takes {self._tokens}", waiting, now)

    def _full(self, request: str, held: str, waiting: int, now: float) -> Fail:
        wait = self.pace.forecast(1 + waiting, now)
        sentence = f"the gateway has {held}; try again in about {wait:.0f} s"
        return Fail(request, 503, sentence, kind="server_error", code="unavailable", retry_after=wait)
