"""The admission limit of a gateway: admission control and load shedding, with a time to retry in each refusal.

Owns the two limits, the load of this gateway and of the others, and the rate at which requests end. A refusal tells the
client when its turn would come, so that a crowd of clients does not return all at once.

If there may be several accounts, none fills the gateway alone: each may hold ``ALPHA`` times what is still free, so there
is always room for one that holds little (dynamic thresholds: Choudhury and Hahne, "Dynamic Queue Length Thresholds for
Shared-Memory Packet Switches", 1998). One flood comes to hold 8/9 of the room, two of them 8/17 each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .admission import part
from .refusal import Refusal, RequestRefused
from .retry_after import CompletionRate

ALPHA = 8  # limit of an account, as a multiple of what is free
SILENT = 1.0  # seconds until a silent gateway counts as gone, with its requests


@dataclass(frozen=True, slots=True)
class Held:
    """The load of one gateway ``at`` some time: requests, and tokens still to compute (0 if these are not limited)."""

    requests: int
    tokens: int
    at: float = 0.0


class AdmissionLimit:
    """The admission limits: at most ``requests`` and ``tokens`` (0: no limit) in all ``sharers`` gateways together.

    Gateways tell each other their load. From one ``look`` to the next each takes no more than its part of what was free.
    """

    def __init__(self, requests: int, tokens: int, sharers: int = 1) -> None:
        self._all = Held(requests, tokens)
        self._sharers = self._least_sharers = sharers
        self._others: dict[str, Held] = {}
        self._limits = self._part(Held(0, 0))  # limits of this gateway now
        self.requests = 0  # requests that have not ended
        self.work = 0  # tokens they have still to compute, see ``dispatch.outstanding``
        self._by_account: dict[str, list[int]] = {}  # account -> [requests, work], for accounts with any
        self.pace = CompletionRate()

    def begin(self, account: str) -> None:
        self.requests += 1
        self._by_account.setdefault(account, [0, 0])[0] += 1

    def charge(self, account: str, change: int) -> None:
        """Change the tokens that a request has still to compute."""
        self.work += change
        self._by_account[account][1] += change

    def end(self, account: str, tokens: int, now: float) -> None:
        """Remove a request that is over, whatever its outcome; ``tokens`` were counted last."""
        self.requests -= 1
        self.work -= tokens
        held = self._by_account[account]
        held[0] -= 1
        held[1] -= tokens
        if not held[0]:
            del self._by_account[account]
        self.pace.ended(now)

    def share(self, sharers: int) -> None:
        """Share the limits among this number of gateways from the next ``tick`` on, or the settings' if that is larger."""
        self._sharers = max(self._least_sharers, sharers)

    def hear(self, gateway: str, held: Held) -> None:
        """Record the load of another gateway."""
        self._others[gateway] = held

    def tick(self, now: float) -> Held:
        """Take a part of what is free now; return this gateway's load."""
        self._others = {name: held for name, held in self._others.items() if now - held.at < SILENT}
        held = Held(self.requests, self.work if self._all.tokens else 0, now)
        self._limits = self._part(held)
        return held

    @property
    def limit(self) -> int:
        """The number of requests that this gateway may hold now."""
        return self._limits.requests

    def check(self, active: Iterable[tuple[str, int]]) -> None:
        """Raise AssertionError when a count is wrong.

        ``active``: account and tokens still to compute of each active request.
        """
        held: dict[str, list[int]] = {}
        for account, tokens in active:
            own = held.setdefault(account, [0, 0])
            own[:] = [own[0] + 1, own[1] + tokens]
        assert self._by_account == held, "what accounts hold is counted wrongly"
        assert [self.requests, self.work] == [sum(own[i] for own in held.values()) for i in (0, 1)], "a request is lost"

    def refusal(self, account: str, tokens: int, waiting: int, now: float, *, alone: bool) -> RequestRefused | None:
        """Return the refusal of a new request with ``tokens`` tokens, prompt and answer; None if there is room.

        An idle server takes any request. ``alone``: no other account can come, so this one may have all.
        """
        if not alone and (crowd := self._crowd(account, tokens)):
            wait = self.pace.forecast(1 + waiting, now)
            message = f"{account!r} has {crowd}; the rest is reserved for others; try again in about {wait:.0f} s"
            return RequestRefused(Refusal.OVERLOADED, message, wait)
        if self.requests >= self.limit:
            return self._full(f"{self.requests} requests, its limit", waiting, now)
        if not self._all.tokens or not self.requests or self.work + tokens <= self._limits.tokens:
            return None
        return self._full(f"{self.work} tokens to compute and accepts {self._limits.tokens}", waiting, now)

    def _crowd(self, account: str, tokens: int) -> str:
        """Return an account's load as text if it is at its limit now, else ""."""
        requests, work = self._by_account.get(account, (0, 0))
        if requests and requests >= ALPHA * (self.limit - self.requests):
            return f"{requests} of the {self.limit} requests that the gateway accepts"
        if self._all.tokens and work and work + tokens > ALPHA * (self._limits.tokens - self.work):
            return f"{work} of the {self._limits.tokens} tokens to compute that the gateway accepts"
        return ""

    def _part(self, held: Held) -> Held:
        others, sharers = self._others.values(), self._sharers
        requests = part(self._all.requests, held.requests, sum(other.requests for other in others), sharers)
        tokens = part(self._all.tokens, held.tokens, sum(other.tokens for other in others), sharers)
        return Held(requests, tokens)

    def _full(self, held: str, waiting: int, now: float) -> RequestRefused:
        wait = self.pace.forecast(1 + waiting, now)
        return RequestRefused(Refusal.OVERLOADED, f"the gateway has {held}; try again in about {wait:.0f} s", wait)
