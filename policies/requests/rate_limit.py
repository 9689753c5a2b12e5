"""Rate limits and quotas of tenants: token buckets, a daily allowance, and a bound on concurrent requests.

Owns what tenants have spent. A request is charged on arrival with the most that it can cost (its prompt and all tokens it
may generate); the unused part is given back at its end. Time comes in as an argument; days are in UTC. The front maps keys
to tenants, and words refusals as HTTP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MINUTE, DAY = 60.0, 86400.0
EVERYBODY = "*"  # key of the limits of tenants without their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a tenant; 0: no limit.

    A bucket holds a minute's allowance, so that a burst of that size passes at once.
    """

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    tokens_per_day: int = 0
    concurrent_requests: int = 0


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """The state of one limit of a tenant."""

    limit: int
    remaining: int
    reset: float  # seconds until it is fully restored


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a charge.

    refused: the name of the limit that is exceeded, empty if the request may run. retry_after: seconds until the same
    request would be admitted; None if no waiting helps.
    """

    refused: str = ""
    retry_after: float | None = 0.0
    requests: LimitStatus | None = None
    tokens: LimitStatus | None = None


@dataclass(frozen=True, slots=True)
class TakenQuota:
    """The part of a tenant's limits that is taken: running requests, and requests and tokens of the minute and the day."""

    running: int = 0
    requests: float = 0.0
    tokens: float = 0.0
    today: int = 0


class Bucket:
    """A token bucket. It fills at ``limit / period`` a second up to ``limit``, and is never overdrawn."""

    def __init__(self, limit: int, period: float, now: float) -> None:
        self.limit, self.rate = limit, limit / period
        self.level, self.at = float(limit), now

    def fill(self, now: float) -> None:
        self.level = min(self.limit, self.level + max(0.0, now - self.at) * self.rate)
        self.at = max(self.at, now)

    def wait(self, amount: int) -> float | None:
        """Return the seconds until ``amount`` is available; None if it never can be. Call ``fill`` before."""
        if amount > self.limit:
            return None
        return max(0.0, (amount - self.level) / self.rate)

    def give_back(self, amount: int) -> None:
        self.level = min(float(self.limit), self.level + amount)

    def standing(self) -> LimitStatus:
        return LimitStatus(self.limit, int(max(0.0, self.level)), (self.limit - self.level) / self.rate)


@dataclass(slots=True)
class _Account:
    """The spending of one tenant."""

    limits: Limits
    requests: Bucket | None
    tokens: Bucket | None
    running: Counter[str] = field(default_factory=Counter)  # running requests by holder, which reports their ends
    today: int = 0  # number of the day of ``spent``
    spent: int = 0  # tokens charged on that day


class Quotas:
    """The quotas of all tenants (see the module).

    ``limits``: by tenant; ``"*"``: of every other one, each counted separately.
    """

    def __init__(self, limits: Mapping[str, Limits]) -> None:
        self._limits = dict(limits)
        self._accounts: dict[str, _Account] = {}

    def admit(self, tenant: str, tokens: int, now: float, wall: float, holder: str = "") -> Verdict:
        """Charge a request of at most ``tokens`` tokens; charge nothing if the verdict refuses it.

        now: seconds of a monotonic clock. wall: seconds since the epoch, for the day. holder: the caller of ``end``.
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
        """Settle an admitted request that is over: the unused part of its charge is given back."""
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
        """Forget a holder that is gone, with its running requests."""
        for account in self._accounts.values():
            account.running.pop(holder, None)

    # shares of gateways (``quota_shares.py``)

    @property
    def tenants(self) -> list[str]:
        """The tenants that have sent something, or have limits of their own here."""
        return list(self._accounts)

    def restrict(self, tenant: str, limits: Limits) -> None:
        """Give a tenant limits of its own, before it has sent anything."""
        self._limits[tenant] = limits

    def running(self, tenant: str, holder: str) -> int:
        """Return the running requests of a tenant that one holder has."""
        account = self._accounts.get(tenant)
        return account.running[holder] if account is not None else 0

    def taken(self, tenant: str, now: float, wall: float) -> TakenQuota:
        """Return what is taken of a tenant's limits."""
        account = self._account(tenant, now)
        if account is None:
            return TakenQuota()
        for bucket in (account.requests, account.tokens):
            if bucket is not None:
                bucket.fill(now)
        requests, tokens = (0.0 if b is None else b.limit - b.level for b in (account.requests, account.tokens))
        today = account.spent if account.today == int(wall // DAY) else 0
        return TakenQuota(account.running.total(), requests, tokens, today)

    def left(self, tenant: str, now: float, wall: float) -> TakenQuota:
        """Return what is left of a tenant's limits; 0 of one that is none, and never less."""
        limits, taken = self.limits(tenant), self.taken(tenant, now, wall)
        return TakenQuota(
            max(0, limits.concurrent_requests - taken.running),
            max(0.0, limits.requests_per_minute - taken.requests),
            max(0.0, limits.tokens_per_minute - taken.tokens),
            max(0, limits.tokens_per_day - taken.today),
        )

    def absorb(self, tenant: str, taken: TakenQuota, holder: str, now: float, wall: float) -> None:
        """Take over what a holder has counted by itself."""
        account = self._account(tenant, now)
        if account is None:
            return
        account.running[holder] = taken.running
        for bucket, amount in ((account.requests, taken.requests), (account.tokens, taken.tokens)):
            if bucket is not None:
                bucket.fill(now)
                bucket.level -= amount
        if account.today != int(wall // DAY):
            account.today, account.spent = int(wall // DAY), 0
        account.spent += taken.today

    def count(self, tenant: str, holder: str, running: int, now: float) -> None:
        """Note how many requests of a tenant a holder has running, as it counts them itself."""
        if (account := self._account(tenant, now)) is not None:
            account.running[holder] = running

    def standings(self, tenants: Iterable[str], now: float, wall: float) -> dict[str, dict[str, LimitStatus]]:
        """Return the state of the limits of ``tenants`` and of all tenants that have sent something, by tenant and limit."""
        return {tenant: self._standings(tenant, now, wall) for tenant in sorted({*tenants, *self._accounts})}

    def _standings(self, tenant: str, now: float, wall: float) -> dict[str, LimitStatus]:
        limits, account = self.limits(tenant), self._accounts.get(tenant)
        found: dict[str, LimitStatus] = {}
        for name, limit in (
            ("requests_per_minute", limits.requests_per_minute),
            ("tokens_per_minute", limits.tokens_per_minute),
        ):
            bucket = None if account is None else account.requests if name == "requests_per_minute" else account.tokens
            if bucket is not None:
                bucket.fill(now)
            if limit:
                found[name] = LimitStatus(limit, limit, 0.0) if bucket is None else bucket.standing()
        if limits.tokens_per_day:
            spent = 0 if account is None or account.today != int(wall // DAY) else account.spent
            left = max(0, limits.tokens_per_day - spent)
            found["tokens_per_day"] = LimitStatus(limits.tokens_per_day, left, DAY - wall % DAY if spent else 0.0)
        if limits.concurrent_requests:
            running = 0 if account is None else account.running.total()
            left = max(0, limits.concurrent_requests - running)
            found["concurrent_requests"] = LimitStatus(limits.concurrent_requests, left, 0.0)
        return found

    def limits(self, tenant: str) -> Limits:
        """Return the limits of a tenant."""
        return limits_for(self._limits, tenant)

    def _obstacle(self, account: _Account, tokens: int, now: float, wall: float) -> tuple[str, float | None] | None:
        """Return the exceeded limit and the seconds until it is not; of several, the one that lasts longest."""
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
            found.setdefault("concurrent_requests", 1.0)  # a guess: when one of them ends is not known here
        if not found:
            return None
        return max(found.items(), key=lambda item: float("inf") if item[1] is None else item[1])

    def _verdict(self, account: _Account, refused: str = "", retry_after: float | None = 0.0) -> Verdict:
        requests = account.requests.standing() if account.requests is not None else None
        tokens = account.tokens.standing() if account.tokens is not None else None
        return Verdict(refused, retry_after, requests, tokens)

    def _account(self, tenant: str, now: float) -> _Account | None:
        account = self._accounts.get(tenant)
        limits = self.limits(tenant)
        if account is None and limits != Limits():
            per_minute, tokens = limits.requests_per_minute, limits.tokens_per_minute
            account = self._accounts[tenant] = _Account(
                limits,
                Bucket(per_minute, MINUTE, now) if per_minute else None,
                Bucket(tokens, MINUTE, now) if tokens else None,
            )
        return account


def limits_for(limits: Mapping[str, Limits], tenant: str) -> Limits:
    """Return a tenant's limits: its own, or the ones of all others."""
    return limits.get(tenant, limits.get(EVERYBODY, Limits()))
