"""Shares of the tenants' limits: the part that each gateway may admit by itself while the head, which counts for all, is
away.

While there is a head, it is asked for every request, and once a second it sends each gateway its share: a part of
every limit by need, so that all shares together are the limit. A gateway without a head admits by the last share that it
has, and what it counts meanwhile it reports to the next head, which begins with nothing. Pure: time comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .rate_limit import Limits, Quotas, TakenQuota, Verdict, limits_for

EASED = 0.5  # part of the need before the last second in what is remembered
FORGOTTEN = 0.01  # requests; less need is none


@dataclass(frozen=True, slots=True)
class AccountShare:
    """A gateway's part of one tenant's limits, and of what is left of them: ``part`` of each.

    requests, tokens: left in this minute. today: left of this day. concurrent: this gateway's running requests, and more.
    """

    part: float
    requests: float = 0.0
    tokens: float = 0.0
    today: int = 0
    concurrent: int = 0


@dataclass(frozen=True, slots=True)
class QuotaShare:
    """A gateway's share of all limits. limiter: which one counts. others: its part for tenants that are not listed."""

    limiter: str
    others: float
    accounts: dict[str, AccountShare] = field(default_factory=dict)


class NeedOfGateways:
    """The need of each gateway for each tenant's limits: the requests that came there, the last second's most."""

    def __init__(self) -> None:
        self._now: dict[tuple[str, str], float] = {}  # (tenant, gateway) -> requests since the last look
        self._eased: dict[tuple[str, str], float] = {}

    def note(self, tenant: str, gateway: str) -> None:
        """Note a request."""
        self._now[tenant, gateway] = self._now.get((tenant, gateway), 0.0) + 1.0

    def look(self, gateway: str) -> None:
        """End a gateway's second."""
        for key in [key for key in {**self._now, **self._eased} if key[1] == gateway]:
            need = EASED * self._eased.pop(key, 0.0) + self._now.pop(key, 0.0)
            if need > FORGOTTEN:
                self._eased[key] = need

    def forget(self, gateway: str) -> None:
        """Forget a gateway that is gone."""
        for table in (self._now, self._eased):
            for key in [key for key in table if key[1] == gateway]:
                del table[key]

    def part(self, tenant: str, gateway: str, gateways: int) -> float:
        """Return a gateway's part of a tenant's limits. ``gateways``: their number; each has a little without need."""
        own = self._eased.get((tenant, gateway), 0.0)
        # what came to others since they looked counts, too, or all parts together would be more than the whole
        tables = self._eased, self._now
        others = [need for table in tables for (of, by), need in table.items() if of == tenant and by != gateway]
        return (own + 1.0) / (own + sum(others) + max(1, gateways))


def share_of(quotas: Quotas, need: NeedOfGateways, gateway: str, gateways: int, clocks: tuple[float, float]) -> QuotaShare:
    """Return a gateway's share now. ``clocks``: as ``now`` and ``wall`` of ``Quotas.admit``."""
    accounts = {}
    for tenant in quotas.tenants:
        part, left = need.part(tenant, gateway, gateways), quotas.left(tenant, *clocks)
        here, free = quotas.running(tenant, gateway), max(0, left.running)
        accounts[tenant] = AccountShare(
            part, part * left.requests, part * left.tokens, int(part * left.today), here + int(part * free)
        )
    return QuotaShare("", 1.0 / max(1, gateways), accounts)


class SharedQuotas:
    """The quotas of one gateway (see the module). ``limits``: of the whole server, by tenant."""

    def __init__(self, limits: Mapping[str, Limits]) -> None:
        self._limits = dict(limits)
        self._share = QuotaShare("", 1.0)
        self._at = 0.0
        self._own: Quotas | None = None  # made when the head is lost
        self._running: dict[str, int] = {}  # of this gateway, also admitted by the limiter

    @property
    def limiter(self) -> str:
        """The limiter that gave the last share; empty before the first."""
        return self._share.limiter

    @property
    def lost(self) -> bool:
        """True while requests are admitted here."""
        return self._own is not None

    def take(self, share: QuotaShare, now: float) -> None:
        """Take a share from a limiter, which counts from here on."""
        self._share, self._at = share, now
        self._own = None

    def lose(self, now: float, wall: float) -> None:
        """Begin to count here: the limiter does not answer."""
        if self._own is None:
            self._own = self._made(now, wall)

    def begun(self, tenant: str) -> None:
        """Note a request that the limiter has admitted."""
        self._running[tenant] = self._running.get(tenant, 0) + 1

    def admit(self, tenant: str, tokens: int, now: float, wall: float) -> Verdict:
        """Charge a request by this gateway's share."""
        own = self._own or self._made(now, wall)
        self._own = own
        if tenant not in own.tenants:
            own.restrict(tenant, self._scaled(tenant, AccountShare(self._share.others)))
        verdict = own.admit(tenant, tokens, now, wall)
        if not verdict.refused:
            self.begun(tenant)
        return verdict

    def end(self, tenant: str, charged: int, used: int, now: float) -> None:
        """Note the end of a request, and settle it if this gateway counts."""
        left = self._running.pop(tenant, 0) - 1
        if left > 0:
            self._running[tenant] = left
        if self._own is not None:
            self._own.end(tenant, charged, used, now)

    def report(self, now: float, wall: float) -> dict[str, TakenQuota]:
        """Return what is taken of this gateway's share of each tenant's limits, for a limiter that knows nothing."""
        own = self._own or self._made(now, wall)
        taken = {tenant: own.taken(tenant, now, wall) for tenant in own.tenants}
        running = {tenant: TakenQuota(count) for tenant, count in self._running.items() if tenant not in taken}
        return taken | running

    def _made(self, now: float, wall: float) -> Quotas:
        """Return quotas of this gateway's share, with what has come back since then."""
        made = Quotas({})
        for tenant, share in self._share.accounts.items():
            limits = self._scaled(tenant, share)
            made.restrict(tenant, limits)
            today = max(0, limits.tokens_per_day - share.today)
            taken = TakenQuota(
                self._running.get(tenant, 0),
                max(0.0, limits.requests_per_minute - share.requests),
                max(0.0, limits.tokens_per_minute - share.tokens),
                today,
            )
            made.absorb(tenant, taken, "", self._at, wall)
        return made

    def _scaled(self, tenant: str, share: AccountShare) -> Limits:
        """Return this gateway's part of a tenant's limits. A limit never becomes 0, which would be none."""
        whole = limits_for(self._limits, tenant)

        def scaled(limit: int) -> int:
            return max(1, round(limit * share.part)) if limit else 0

        return Limits(
            requests_per_minute=scaled(whole.requests_per_minute),
            tokens_per_minute=scaled(whole.tokens_per_minute),
            tokens_per_day=scaled(whole.tokens_per_day),
            concurrent_requests=(share.concurrent or scaled(whole.concurrent_requests)) if whole.concurrent_requests else 0,
        )
