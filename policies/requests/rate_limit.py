"""Rate limits and quotas, who may send how much: token buckets, a day's allowance and a bound on what runs at once, for each
tenant.

Owns what tenants have spent. A request is charged when it comes with the most that it can cost (its prompt and all tokens
it may generate); what it did not use is given back when it ends. Time comes in as an argument; the day is that of UTC.
Which key belongs to which tenant, and how a refusal is worded as HTTP, is the front's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MINUTE, DAY = 60.0, 86400.0
EVERYBODY = "*"  # the limits of tenants that have none of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """0: no limit. Buckets hold a minute's worth, so that a burst of that size passes at once."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    tokens_per_day: int = 0
    concurrent_requests: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """One limit of a tenant after a request was charged or refused."""

    limit: int
    remaining: int
    reset: float  # seconds until nothing of it is spent


@dataclass(frozen=True, slots=True)
class Verdict:
    """``refused``: the name of the limit that is in the way, empty where the request may go on.

    ``retry_after``: seconds until the same request would be let in; None where no waiting helps.
    """

    refused: str = ""
    retry_after: float | None = 0.0
    requests: Standing | None = None
    tokens: Standing | None = None


class Bucket:
    """Fills at ``limit / period`` a second up to ``limit``. May be overdrawn by nobody."""

    def __init__(self, limit: int, period: float, now: float) -> None:
        self.limit, self.rate = limit, limit / period
        self.level, self.at = float(limit), now

    def fill(self, now: float) -> None:
        self.level = min(self.limit, self.level + max(0.0, now - self.at) * self.rate)
        self.at = max(self.at, now)

    def wait(self, amount: int) -> float | None:
        """Seconds until ``amount`` is there; None when it never can be. Call ``fill`` before."""
        if amount > self.limit:
            return None
        return max(0.0, (amount - self.level) / self.rate)

    def give_back(self, amount: int) -> None:
        self.level = min(float(self.limit), self.level + amount)

    def standing(self) -> Standing:
        return Standing(self.limit, int(max(0.0, self.level)), (self.limit - self.level) / self.rate)


@dataclass(slots=True)
class _Account:
    """What one tenant has spent."""

    limits: Limits
    requests: Bucket | None
    tokens: Bucket | None
    running: Counter[str] = field(default_factory=Counter)  # by holder: who will say that they ended
    today: int = 0  # number of the day that ``spent`` is of
    spent: int = 0  # tokens charged that day


class Quotas:
    """See the module. ``limits`` by tenant; ``"*"`` holds for every other one, each with an account of its own."""

    def __init__(self, limits: Mapping[str, Limits]) -> None:
        self._limits = dict(limits)
        self._accounts: dict[str, _Account] = {}

    def admit(self, tenant: str, tokens: int, now: float, wall: float, holder: str = "") -> Verdict:
        """Charge a request of at most ``tokens`` tokens, or nothing where it is refused.

        now: seconds of a monotonic clock; wall: seconds since the epoch, for the day; holder: who will call ``end``.
        """
        account = self._account(tenant, now)
        if account is None:
            return Verdict()
        obstacle = self._obstacle(account, tokens, now, wall)
        if obstacle is not None:
            return self._verdict(account, *obstacle)
        if account.requests is not None:
            account.requests.level -= 1
        if account.tokens is not None:
            account.tokens.level -= tokens
        account.spent += tokens
        account.running[holder] += 1
        return self._verdict(account)

    def end(self, tenant: str, charged: int, used: int, now: float, holder: str = "") -> None:
        """A request that was let in is over: what it was charged for and did not use is given back."""
        account = self._accounts.get(tenant)
        if account is None:
            return
        if account.running[holder] > 0:
            account.running[holder] -= 1
        unused = max(0, charged - used)
        account.spent = max(0, account.spent - unused)
        if account.tokens is not None:
            account.tokens.fill(now)
            account.tokens.give_back(unused)

    def forget(self, holder: str) -> None:
        """The holder is gone, and what it let run with it."""
        for account in self._accounts.values():
            account.running.pop(holder, None)

    def standings(self, tenants: Iterable[str], now: float, wall: float) -> dict[str, dict[str, Standing]]:
        """Return how the limits of ``tenants``, and of any other that has sent something, stand now; by tenant and limit."""
        return {tenant: self._standings(tenant, now, wall) for tenant in sorted({*tenants, *self._accounts})}

    def _standings(self, tenant: str, now: float, wall: float) -> dict[str, Standing]:
        limits, account = self._limits_of(tenant), self._accounts.get(tenant)
        found: dict[str, Standing] = {}
        for name, limit in (
            ("requests_per_minute", limits.requests_per_minute),
            ("tokens_per_minute", limits.tokens_per_minute),
        ):
            bucket = None if account is None else account.requests if name == "requests_per_minute" else account.tokens
            if bucket is not None:
                bucket.fill(now)
            if limit:
                found[name] = Standing(limit, limit, 0.0) if bucket is None else bucket.standing()
        if limits.tokens_per_day:
            spent = 0 if account is None or account.today != int(wall // DAY) else account.spent
            left = max(0, limits.tokens_per_day - spent)
            found["tokens_per_day"] = Standing(limits.tokens_per_day, left, DAY - wall % DAY if spent else 0.0)
        if limits.concurrent_requests:
            running = 0 if account is None else account.running.total()
            left = max(0, limits.concurrent_requests - running)
            found["concurrent_requests"] = Standing(limits.concurrent_requests, left, 0.0)
        return found

    def _limits_of(self, tenant: str) -> Limits:
        return self._limits.get(tenant, self._limits.get(EVERYBODY, Limits()))

    def _obstacle(self, account: _Account, tokens: int, now: float, wall: float) -> tuple[str, float | None] | None:
        """The limit in the way and the seconds until it is not: of several, the one that lasts longest."""
        limits, found = account.limits, dict[str, float | None]()
        for name, bucket, amount in (
            ("requests_per_minute", account.requests, 1),
            ("tokens_per_minute", account.tokens, tokens),
        ):
            if bucket is not None:
                bucket.fill(now)
                wait = bucket.wait(amount)
                if wait is None or wait > 0:
                    found[name] = wait
        day = int(wall // DAY)
        if day != account.today:
            account.today, account.spent = day, 0
        if limits.tokens_per_day and account.spent + tokens > limits.tokens_per_day:
            found["tokens_per_day"] = None if tokens > limits.tokens_per_day else (day + 1) * DAY - wall
        if limits.concurrent_requests and account.running.total() >= limits.concurrent_requests:
            found.setdefault("concurrent_requests", 1.0)  # when one of them ends is not known here
        if not found:
            return None
        return max(found.items(), key=lambda item: float("inf") if item[1] is None else item[1])

    def _verdict(self, account: _Account, refused: str = "", retry_after: float | None = 0.0) -> Verdict:
        requests = account.requests.standing() if account.requests is not None else None
        tokens = account.tokens.standing() if account.tokens is not None else None
        return Verdict(refused, retry_after, requests, tokens)

    def _account(self, tenant: str, now: float) -> _Account | None:
        account = self._accounts.get(tenant)
        limits = self._limits_of(tenant)
        if account is None and limits != Limits():
            per_minute, tokens = limits.requests_per_minute, limits.tokens_per_minute
            account = self._accounts[tenant] = _Account(
                limits,
                Bucket(per_minute, MINUTE, now) if per_minute else None,
                Bucket(tokens, MINUTE, now) if tokens else None,
            )
        return account

    def limit(self, tenant: str, name: str) -> int:
        """The number behind a refusal."""
        value: int = getattr(self._limits_of(tenant), name)
        return value
