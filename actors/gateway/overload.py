"""Whether the gateway has all the requests that it takes, and when it will not.

Owns the two limits, what other gateways hold of them, and the pace at which requests end. A refusal tells the client when
its turn would come, so that a crowd that comes back does not come back at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from blockwright.actors.gateway.messages import Fail
from blockwright.actors.gateway.port import Generation
from blockwright.actors.gateway.record import Record
from blockwright.policies.requests.admission import part
from blockwright.policies.requests.retry_after import Pace

SILENT = 1.0  # seconds after which a gateway that says nothing holds nothing: it is gone, and its requests with it


@dataclass(frozen=True, slots=True)
class Held:
    """Requests, and tokens still to compute (0 where these are not limited), of one gateway ``at`` some time."""

    requests: int
    tokens: int
    at: float = 0.0


class Crowd:
    """``requests`` at most, and ``tokens`` at most (0: no limit), in all of the ``sharers`` gateways together.

    They tell each other what they hold. From one ``look`` to the next each takes no more than its part of what was free.
    """

    def __init__(self, requests: int, tokens: int, sharers: int = 1) -> None:
        self._all = Held(requests, tokens)
        self._sharers = sharers
        self._others: dict[str, Held] = {}
        self._own = self._part(Held(0, 0))  # the most that this gateway may hold now
        self.pace = Pace()

    def hear(self, gateway: str, held: Held) -> None:
        """What another gateway holds."""
        self._others[gateway] = held

    def look(self, active: Mapping[str, Record], now: float) -> Held:
        """Take a part of what is free now; what this gateway holds."""
        self._others = {name: held for name, held in self._others.items() if now - held.at < SILENT}
        held = Held(len(active), _work(active) if self._all.tokens else 0, now)
        self._own = self._part(held)
        return held

    def _part(self, held: Held) -> Held:
        others, sharers = self._others.values(), self._sharers
        requests = part(self._all.requests, held.requests, sum(other.requests for other in others), sharers)
        tokens = part(self._all.tokens, held.tokens, sum(other.tokens for other in others), sharers)
        return Held(requests, tokens)

    def refusal(self, wanted: Generation, active: Mapping[str, Record], waiting: int, now: float) -> Fail | None:
        """A 503 for ``wanted``, or None where there is room. A server with nothing to do takes whatever comes."""
        if len(active) >= self._own.requests:
            return self._full(wanted.id, f"{len(active)} requests, its limit", waiting, now)
        if not self._all.tokens or not active:
            return None
        work = _work(active)
        if work + len(wanted.prompt) + wanted.max_tokens <= self._own.tokens:
            return None
        return self._full(wanted.id, f"{work} tokens to compute and takes {self._own.tokens}", waiting, now)

    def _full(self, request: str, held: str, waiting: int, now: float) -> Fail:
        wait = self.pace.forecast(1 + waiting, now)
        sentence = f"the gateway has {held}; try again in about {wait:.0f} s"
        return Fail(request, 503, sentence, kind="server_error", code="unavailable", retry_after=wait)


def _work(active: Mapping[str, Record]) -> int:
    return sum(record.cost() for record in active.values())
